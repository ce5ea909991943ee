/* drive: the arithmetic of a drive, the order in which it is given pieces, and the text that describes one. */
#include "drive.h"

#include <string.h>

enum { PREFETCH_DEPTH = 2, PREFETCH_PIECE_LEAST = 16 << 10, PREFETCH_PIECE_MOST = 256 << 10, PIECE_UNIT = 4096 };
static const double PREFETCH_PIECE_NS = 100000;
enum { SPREAD = 4 }; /* reordered completions are late by up to so many times of the read itself */
static const uint64_t SPREAD_MIN_NS = 100000;
static const double NS_PER_S = 1e9;
static const double BANDWIDTH_MAX = 1e15;    /* bytes a second */
static const double LATENCY_MAX_NS = 3.6e12; /* an hour */

typedef struct part {
    const char *text;
    size_t n;
} part;

static bool part_is(part p, const char *word) { return strlen(word) == p.n && memcmp(p.text, word, p.n) == 0; }

/* Cuts off `word` at the start, if it is there. */
static bool part_after(part *p, const char *word) {
    size_t n = strlen(word);
    if (p->n < n || memcmp(p->text, word, n) != 0) return false;
    p->text += n;
    p->n -= n;
    return true;
}

/* A decimal number such as 3.5 at the start (strtod would depend on the locale); the rest stays. */
static bool parse_decimal(part *p, double *out) {
    double value = 0, unit = 1;
    size_t i = 0, n_digit = 0;
    bool point = false;
    for (; i < p->n; i++) {
        char c = p->text[i];
        if (c == '.' && !point) {
            point = true;
        } else if (c >= '0' && c <= '9') {
            value = value * 10 + (c - '0');
            if (point) unit *= 10;
            n_digit++;
        } else {
            break;
        }
    }
    p->text += i;
    p->n -= i;
    *out = value / unit;
    return n_digit > 0 && n_digit < 20;
}

static bool parse_whole(part p, uint64_t *out) {
    uint64_t value = 0;
    if (p.n == 0) return false;
    for (size_t i = 0; i < p.n; i++) {
        if (p.text[i] < '0' || p.text[i] > '9') return false;
        if (stk_mul_overflow(value, 10, &value) || stk_add_overflow(value, (uint64_t)(p.text[i] - '0'), &value)) return false;
    }
    *out = value;
    return true;
}

/* Bytes a second; drives are sold in powers of 1000. */
static bool parse_bandwidth(part p, double *out) {
    if (!parse_decimal(&p, out)) return false;
    if (part_is(p, "k") || part_is(p, "K"))
        *out *= 1e3;
    else if (part_is(p, "M"))
        *out *= 1e6;
    else if (part_is(p, "G"))
        *out *= 1e9;
    else if (p.n)
        return false;
    return *out >= 1 && *out <= BANDWIDTH_MAX;
}

static bool parse_latency(part p, uint64_t *out) {
    double value;
    if (!parse_decimal(&p, &value)) return false;
    if (part_is(p, "us"))
        value *= 1e3;
    else if (part_is(p, "ms"))
        value *= 1e6;
    else
        return false;
    if (value > LATENCY_MAX_NS) return false;
    *out = (uint64_t)value;
    return true;
}

static bool parse_option(stk_drive *drive, part p) {
    if (part_is(p, "reorder")) {
        drive->reorder = true;
        return true;
    }
    if (part_after(&p, "seed=")) return parse_whole(p, &drive->seed);
    if (part_after(&p, "eio=")) return parse_whole(p, &drive->eio_at) && drive->eio_at > 0;
    if (part_after(&p, "eio-ahead=")) return parse_whole(p, &drive->eio_ahead_at) && drive->eio_ahead_at > 0;
    if (part_after(&p, "blank=")) return parse_whole(p, &drive->blank_at) && drive->blank_at > 0;
    if (part_after(&p, "short=")) return parse_whole(p, &drive->short_at) && drive->short_at > 0;
    return false;
}

int stk_drive_parse(stk_drive *drive, const char *text, uint64_t seed) {
    static const char form[] =
        "emu:BANDWIDTH,LATENCY[,reorder][,seed=N][,eio=N][,eio-ahead=N][,short=N][,blank=N], for example emu:3.5G,80us";
    *drive = (stk_drive){.seed = seed};
    double bandwidth = 0;
    size_t n_part = 0;
    for (const char *at = text;; n_part++) {
        part p = {at, strcspn(at, ",")};
        bool ok = n_part == 0   ? parse_bandwidth(p, &bandwidth)
                  : n_part == 1 ? parse_latency(p, &drive->latency_ns)
                                : parse_option(drive, p);
        if (!ok) {
            const char *what = n_part == 0 ? "bandwidth" : n_part == 1 ? "latency" : "option";
            return stk_fail(STK_EINVAL, "emulated drive: %s '%.*s' is not understood; write %s", what, (int)STK_MIN(p.n, 64u),
                            p.text, form);
        }
        if (!at[p.n]) break;
        at += p.n + 1;
    }
    if (n_part < 1) return stk_fail(STK_EINVAL, "emulated drive: the latency is missing; write %s", form);
    drive->bytes_per_ns = bandwidth / NS_PER_S;
    return 0;
}

bool stk_drive_takes(enum stk_io_class cls, uint32_t depth, uint32_t n_flying) {
    return n_flying < (cls == STK_IO_DEMAND ? depth : STK_MIN(depth, (uint32_t)PREFETCH_DEPTH));
}

static uint32_t prefetch_piece(double bytes_per_ns) {
    double bytes = bytes_per_ns > 0 ? bytes_per_ns * PREFETCH_PIECE_NS : 0.5 * PREFETCH_PIECE_MOST;
    bytes = STK_MIN(STK_MAX(bytes, (double)PREFETCH_PIECE_LEAST), (double)PREFETCH_PIECE_MOST);
    return (uint32_t)bytes / PIECE_UNIT * PIECE_UNIT;
}

uint32_t stk_drive_piece(enum stk_io_class cls, uint32_t piece_bytes, uint64_t left_bytes, double bytes_per_ns) {
    uint32_t most = cls == STK_IO_DEMAND ? piece_bytes : STK_MIN(piece_bytes, prefetch_piece(bytes_per_ns));
    return (uint32_t)STK_MIN((uint64_t)most, left_bytes);
}

uint64_t stk_drive_ahead_bytes(double bytes_per_ns) { return (uint64_t)PREFETCH_DEPTH * prefetch_piece(bytes_per_ns); }

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t stk_drive_submit(stk_drive *drive, uint64_t now_ns, uint64_t bytes) {
    uint64_t transfer_ns = (uint64_t)((double)bytes / drive->bytes_per_ns + 0.5);
    uint64_t start_ns = STK_MAX(now_ns + drive->latency_ns, drive->free_at_ns);
    drive->free_at_ns = start_ns + transfer_ns;
    drive->n_read++;
    if (!drive->reorder) return drive->free_at_ns;
    uint64_t spread_ns = SPREAD * (drive->latency_ns + transfer_ns);
    return drive->free_at_ns + next_random(&drive->seed) % STK_MAX(spread_ns, SPREAD_MIN_NS);
}
