/*
 * learned_lanes_loops: the loops of learned_lanes.h, included once by each file that makes a table (LANES_TABLE, LANES_NAME).
 * What is written in vectors here has its width from the instructions that the file is compiled with; plain loops are left to the
 * compiler.
 */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "cache/learned_lanes.h"

enum { GROUP = 256, N_WORD = STK_LANES_WINDOW / 64 };

/* vf: a vector of WIDTH floats; V(op): an operation on it; EQUAL_BITS: bit i: lane i of both is equal; OF_BYTES: WIDTH bytes as
 * floats. */
#if defined(__AVX512BW__)
enum { WIDTH = 16 };
typedef __m512 vf;
#define V(op)            _mm512_##op
#define EQUAL_BITS(a, b) ((uint32_t)_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ))
#define OF_BYTES(p)      _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p))))
#elif defined(__AVX2__)
enum { WIDTH = 8 };
typedef __m256 vf;
#define V(op)            _mm256_##op
#define EQUAL_BITS(a, b) ((uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)))
#define OF_BYTES(p)      _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p))))
#else
enum { WIDTH = 4 };
typedef __m128 vf;
#define V(op)            _mm_##op
#define EQUAL_BITS(a, b) ((uint32_t)_mm_movemask_ps(_mm_cmpeq_ps(a, b)))
#define OF_BYTES(p)      of_bytes(p)
static inline __m128 of_bytes(const uint8_t *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    const __m128i zero = _mm_setzero_si128(), bytes = _mm_cvtsi32_si128(four);
    return _mm_cvtepi32_ps(_mm_unpacklo_epi16(_mm_unpacklo_epi8(bytes, zero), zero));
}
#endif

/* ---- Experts ------------------------------------------------------------------------------------------------------------ */

static inline float least_of(vf v) {
#if defined(__AVX512BW__)
    __m256 eight = _mm256_min_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 x = _mm_min_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#elif defined(__AVX2__)
    __m128 x = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
#else
    __m128 x = v;
#endif
    x = _mm_min_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_min_ss(x, _mm_shuffle_ps(x, x, 1)));
}

/* Where the lowest stands cannot be foreseen, hence no branch on it. */
static uint32_t lowest(const float *x, const float *bar, uint32_t n, float *least) {
    vf of[4], low; /* four at a time, as one after the other would wait for one another */
    for (size_t j = 0; j < 4; j++) of[j] = V(set1_ps)(INFINITY);
    for (size_t i = 0; i < n; i += 4 * WIDTH)
        for (size_t j = 0; j < 4; j++)
            of[j] = V(min_ps)(of[j], V(add_ps)(V(loadu_ps)(x + i + j * WIDTH), V(loadu_ps)(bar + i + j * WIDTH)));
    *least = least_of(V(min_ps)(V(min_ps)(of[0], of[1]), V(min_ps)(of[2], of[3])));
    low = V(set1_ps)(*least);
    uint32_t at = 0;
    for (uint32_t i = n; i > 0;) {
        uint64_t equal = 0;
        i -= 64;
        for (size_t j = 0; j < 64; j += WIDTH)
            equal |= (uint64_t)EQUAL_BITS(low, V(add_ps)(V(loadu_ps)(x + i + j), V(loadu_ps)(bar + i + j))) << j;
        uint32_t here = i + (uint32_t)__builtin_ctzll(equal | (uint64_t)1 << 63);
        at = equal ? here : at;
    }
    return at;
}

static void fade(float *fading, const uint64_t *set, const float *add, uint32_t n) {
#if defined(__AVX512BW__)
    for (size_t f = 0; f < STK_LANES_FADING; f++, fading += n) {
        if (!(add[f] > 0)) continue;
        const __m512 by = _mm512_set1_ps(add[f]);
        for (size_t i = 0; i < n; i += 16) {
            uint16_t bits;
            memcpy(&bits, (const char *)set + i / 8, sizeof bits);
            __m512 x = _mm512_loadu_ps(fading + i);
            _mm512_storeu_ps(fading + i, _mm512_mask_add_ps(x, bits, x, by));
        }
    }
#else
    float by[STK_LANES_FADING], *row[STK_LANES_FADING];
    uint32_t n_row = 0;
    for (size_t f = 0; f < STK_LANES_FADING; f++) {
        by[n_row] = add[f];
        row[n_row] = fading + f * n;
        n_row += add[f] > 0;
    }
    for (uint32_t w = 0; w < n / 64; w++)
        for (uint64_t bits = set[w]; bits; bits &= bits - 1) {
            uint32_t e = w * 64 + (uint32_t)__builtin_ctzll(bits);
            for (uint32_t f = 0; f < n_row; f++) row[f][e] += by[f];
        }
#endif
}

static void weigh(float *out, const float *fading, const uint8_t *votes, const float *w, uint32_t n) {
    vf by[STK_LANES_FADING + STK_LANES_LAGS];
    for (size_t f = 0; f < STK_LANES_FADING + STK_LANES_LAGS; f++) by[f] = V(set1_ps)(w[f]);
    for (size_t i = 0; i < n; i += WIDTH) {
        vf s = V(mul_ps)(by[0], V(loadu_ps)(fading + i));
        for (size_t f = 1; f < STK_LANES_FADING; f++) s = V(add_ps)(s, V(mul_ps)(by[f], V(loadu_ps)(fading + f * n + i)));
        for (size_t g = 0; g < STK_LANES_LAGS; g++)
            s = V(add_ps)(s, V(mul_ps)(by[STK_LANES_FADING + g], OF_BYTES(votes + g * n + i)));
        V(storeu_ps)(out + i, s);
    }
}

static float dot(const float *a, const float *b, uint32_t n) {
    vf sums[16 / WIDTH];
    for (size_t j = 0; j < 16 / WIDTH; j++) sums[j] = V(setzero_ps)();
    for (size_t i = 0; i < n; i += 16)
        for (size_t j = 0; j < 16 / WIDTH; j++)
            sums[j] = V(add_ps)(sums[j], V(mul_ps)(V(loadu_ps)(a + i + j * WIDTH), V(loadu_ps)(b + i + j * WIDTH)));
#if defined(__AVX512BW__)
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sums[0]), _mm512_extractf32x8_ps(sums[0], 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#elif defined(__AVX2__)
    __m256 eight = _mm256_add_ps(sums[0], sums[1]);
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
#else
    __m128 x = _mm_add_ps(_mm_add_ps(sums[0], sums[2]), _mm_add_ps(sums[1], sums[3]));
#endif
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}

/* ---- Tokens looked back at ---------------------------------------------------------------------------------------------- */

#if !defined(__AVX2__)
/* The bits of a byte as bytes. */
#define SPREAD1(x)                                                                                                               \
    ((uint64_t)((x)&1) | (uint64_t)((x) >> 1 & 1) << 8 | (uint64_t)((x) >> 2 & 1) << 16 | (uint64_t)((x) >> 3 & 1) << 24 |       \
     (uint64_t)((x) >> 4 & 1) << 32 | (uint64_t)((x) >> 5 & 1) << 40 | (uint64_t)((x) >> 6 & 1) << 48 |                          \
     (uint64_t)((x) >> 7 & 1) << 56)
#define SPREAD4(x)  SPREAD1(x), SPREAD1((x) + 1), SPREAD1((x) + 2), SPREAD1((x) + 3)
#define SPREAD16(x) SPREAD4(x), SPREAD4((x) + 4), SPREAD4((x) + 8), SPREAD4((x) + 12)
#define SPREAD64(x) SPREAD16(x), SPREAD16((x) + 16), SPREAD16((x) + 32), SPREAD16((x) + 48)
static const uint64_t spread_bits[256] = {SPREAD64(0), SPREAD64(64), SPREAD64(128), SPREAD64(192)};
#endif

#if !defined(__AVX2__)
enum { N_PLANE = 4 };

/* How many rows have each bit, as binary numbers that stand upright. */
static void count_bits(uint64_t planes[N_PLANE][N_WORD], const uint64_t *const *used, uint32_t n_used) {
    memset(planes, 0, sizeof(uint64_t) * N_PLANE * N_WORD);
    for (uint32_t i = 0; i < n_used; i++) {
        const uint64_t *restrict row = used[i];
        for (size_t w = 0; w < N_WORD; w++) {
            uint64_t carry = row[w];
            for (size_t b = 0; b < N_PLANE; b++) {
                uint64_t both = planes[b][w] & carry;
                planes[b][w] ^= carry;
                carry = both;
            }
        }
    }
}
#endif

#if defined(__AVX2__) && !defined(__AVX512BW__)
/* 32 bits as bytes, 0 or 255. */
static inline __m256i bytes_of_bits(const char *p) {
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    int32_t bits;
    memcpy(&bits, p, sizeof bits);
    return _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread), bit), bit);
}

/* As resemble, of at most 7 rows with 3 planes, of at most 15 with 4: how many rows have each bit, as binary numbers that stand
 * upright. */
static inline __attribute__((always_inline)) void resemble_planes(uint8_t *like, const uint64_t *const *used, uint32_t n_used,
                                                                  const size_t n_plane) {
    const __m256i low6 = _mm256_set1_epi8(63);
    for (size_t w = 0; w < N_WORD; w += 4) {
        __m256i planes[4];
        char halves[4][32];
        for (size_t b = 0; b < n_plane; b++) planes[b] = _mm256_setzero_si256();
        for (uint32_t i = 0; i < n_used; i++) {
            __m256i carry = _mm256_loadu_si256((const __m256i *)(const void *)(used[i] + w));
            for (size_t b = 0; b < n_plane; b++) {
                __m256i both = _mm256_and_si256(planes[b], carry);
                planes[b] = _mm256_xor_si256(planes[b], carry);
                carry = both;
            }
        }
        for (size_t b = 0; b < n_plane; b++) _mm256_storeu_si256((__m256i *)(void *)halves[b], planes[b]);
        for (size_t h = 0; h < 32; h += 4) {
            __m256i *at = (__m256i *)(void *)(like + w * 64 + h * 8), x = _mm256_loadu_si256(at);
            x = _mm256_sub_epi8(x, _mm256_and_si256(_mm256_srli_epi16(x, 2), low6));
            for (size_t b = 0; b < n_plane; b++) {
                __m256i has = bytes_of_bits(halves[b] + h);
                x = _mm256_add_epi8(x, _mm256_and_si256(has, _mm256_set1_epi8((char)(4 << b))));
            }
            _mm256_storeu_si256(at, x);
        }
    }
}
#endif

static void resemble(uint8_t *restrict like, const uint64_t *const *used, uint32_t n_used) {
#if defined(__AVX512BW__)
    const __m512i low6 = _mm512_set1_epi8(63), four = _mm512_set1_epi8(4);
    for (size_t w = 0; w < N_WORD; w++) {
        __m512i x = _mm512_loadu_si512(like + w * 64);
        x = _mm512_sub_epi8(x, _mm512_and_si512(_mm512_srli_epi16(x, 2), low6));
        for (uint32_t i = 0; i < n_used; i++) x = _mm512_mask_add_epi8(x, used[i][w], x, four);
        _mm512_storeu_si512(like + w * 64, x);
    }
#elif defined(__AVX2__)
    if (n_used < 8)
        resemble_planes(like, used, n_used, 3);
    else
        resemble_planes(like, used, n_used, 4);
#else
    uint64_t planes[N_PLANE][N_WORD];
    count_bits(planes, used, n_used);
    for (size_t q = 0; q < STK_LANES_WINDOW; q += 8) {
        uint64_t x, add = 0;
        memcpy(&x, like + q, sizeof x);
        x -= x >> 2 & 0x3f3f3f3f3f3f3f3f; /* no byte borrows from another */
        for (size_t b = 0; b < N_PLANE; b++) add |= spread_bits[planes[b][q / 64] >> q % 64 & 255] << b;
        x += 4 * add;
        memcpy(like + q, &x, sizeof x);
    }
#endif
}

/* Bit i: x[i] >= bound, of 64; bound > 0. */
static inline uint64_t at_least(const uint8_t *x, uint8_t bound) {
#if defined(__AVX512BW__)
    return _mm512_cmpge_epu8_mask(_mm512_loadu_si512(x), _mm512_set1_epi8((char)bound));
#else
    uint64_t bits = 0;
    const __m128i b = _mm_set1_epi8((char)bound);
    for (size_t i = 0; i < 64; i += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(x + i));
        bits |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(v, b), v)) << i;
    }
    return bits;
#endif
}

/* The highest bound that `want` of the groups reach, at least 1: as many tokens reach it, and not many more. */
static uint8_t find_bound(const uint8_t *restrict like, uint32_t want) {
    uint8_t most[GROUP];
    uint32_t low = 1, high = 256; /* `want` reach low unless too few reach 1; fewer reach high */
    memcpy(most, like, sizeof most);
    for (size_t i = GROUP; i < STK_LANES_WINDOW; i += GROUP)
        for (size_t g = 0; g < GROUP; g++) most[g] = like[i + g] > most[g] ? like[i + g] : most[g];
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2, n = 0;
        for (size_t g = 0; g < GROUP; g += 64) n += (uint32_t)__builtin_popcountll(at_least(most + g, (uint8_t)middle));
        if (n >= want)
            low = middle;
        else
            high = middle;
    }
    return (uint8_t)low;
}

static uint32_t likest(const uint8_t *like, uint32_t want, uint16_t *list, uint8_t *least) {
    uint8_t bound = *least = find_bound(like, want);
    uint32_t n = 0;
    for (uint32_t q = 0; q < STK_LANES_WINDOW; q += 64)
        for (uint64_t bits = at_least(like + q, bound); bits; bits &= bits - 1)
            list[n++] = (uint16_t)(q + (uint32_t)__builtin_ctzll(bits));
    return n;
}

static inline void share_words(uint8_t *shared, const uint64_t *set, const uint64_t *const *past, uint32_t n, size_t n_word) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        for (size_t w = 0; w < n_word; w++) bits += (uint32_t)__builtin_popcountll(set[w] & past[i][w]);
        shared[i] = (uint8_t)bits;
    }
}

/* The usual sizes without a loop. */
static void share(uint8_t *shared, const uint64_t *set, const uint64_t *const *past, uint32_t n, uint32_t n_word) {
    if (n_word == 1)
        share_words(shared, set, past, n, 1);
    else if (n_word == 2)
        share_words(shared, set, past, n, 2);
    else
        share_words(shared, set, past, n, n_word);
}

/* ---- Votes -------------------------------------------------------------------------------------------------------------- */

#if defined(__AVX2__) && !defined(__AVX512BW__)
/* sum[e] += add where bit e of 64 is set. */
static inline void add_where(__m256i sum[2], const uint64_t *bits, __m256i add) {
    for (size_t h = 0; h < 2; h++)
        sum[h] = _mm256_add_epi8(sum[h], _mm256_and_si256(bytes_of_bits((const char *)bits + 4 * h), add));
}
#endif

static void vote(uint8_t *votes, const uint64_t *const *rows, const uint8_t *of, uint32_t n, uint32_t n_word) {
#if defined(__AVX512BW__)
    for (size_t w = 0; w < n_word; w++) {
        __m512i lag[STK_LANES_LAGS];
        for (size_t g = 0; g < STK_LANES_LAGS; g++) lag[g] = _mm512_setzero_si512();
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t *row = rows[i] + w;
            const __m512i add = _mm512_set1_epi8((char)of[i]);
            lag[0] = _mm512_mask_add_epi8(lag[0], row[0], lag[0], add);
            lag[1] = _mm512_mask_add_epi8(lag[1], row[n_word], lag[1], add);
            for (size_t a = 2; a < 4; a++) lag[2] = _mm512_mask_add_epi8(lag[2], row[a * n_word], lag[2], add);
            for (size_t a = 4; a < 8; a++) lag[3] = _mm512_mask_add_epi8(lag[3], row[a * n_word], lag[3], add);
        }
        for (size_t g = 0; g < STK_LANES_LAGS; g++) _mm512_storeu_si512(votes + (g * n_word + w) * 64, lag[g]);
    }
#elif defined(__AVX2__)
    for (size_t w = 0; w < n_word; w++) {
        __m256i lag[STK_LANES_LAGS][2];
        for (size_t g = 0; g < STK_LANES_LAGS; g++) lag[g][0] = lag[g][1] = _mm256_setzero_si256();
        for (uint32_t i = 0; i < n; i++) {
            const uint64_t *row = rows[i] + w;
            const __m256i add = _mm256_set1_epi8((char)of[i]);
            add_where(lag[0], row, add);
            add_where(lag[1], row + n_word, add);
            for (size_t a = 2; a < 4; a++) add_where(lag[2], row + a * n_word, add);
            for (size_t a = 4; a < 8; a++) add_where(lag[3], row + a * n_word, add);
        }
        for (size_t g = 0; g < STK_LANES_LAGS; g++)
            for (size_t h = 0; h < 2; h++)
                _mm256_storeu_si256((__m256i *)(void *)(votes + (g * n_word + w) * 64 + h * 32), lag[g][h]);
    }
#else
    static const uint8_t lag_of[STK_LANES_AHEAD] = {0, 1, 2, 2, 3, 3, 3, 3};
    memset(votes, 0, (size_t)STK_LANES_LAGS * n_word * 64);
    for (uint32_t i = 0; i < n; i++)
        for (size_t a = 0; a < STK_LANES_AHEAD; a++)
            for (size_t w = 0; w < n_word; w++)
                for (uint64_t bits = rows[i][a * n_word + w]; bits; bits &= bits - 1)
                    votes[(lag_of[a] * n_word + w) * 64 + (size_t)__builtin_ctzll(bits)] += of[i];
#endif
}

const stk_lanes LANES_TABLE = {.name = LANES_NAME,
                               .lowest = lowest,
                               .fade = fade,
                               .weigh = weigh,
                               .dot = dot,
                               .resemble = resemble,
                               .likest = likest,
                               .share = share,
                               .vote = vote};
