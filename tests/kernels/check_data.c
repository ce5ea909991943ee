/* check_data: activations and weights that are ordinary, extreme, or hostile. */
#include <string.h>

#include "check.h"
#include "src/numeric.h"

static const char *const style_names[CHECK_N_STYLE] = {
    "ordinary", "neighbours of +-127", "1e6",  "1e-40 to 1e-30", "around 2^-100",
    "ties",     "one infinity or NaN", "zero", "huge to tiny",   "next to ties"};

const char *check_style_name(uint32_t style) { return style_names[style]; }

static float sign_of(uint32_t bits) { return bits & 1u ? -1.0f : 1.0f; }

/* A float within two of where amax / 127 times a number and a half lies: any other rounding of the scale shows. */
static float next_to_tie(float amax) {
    float tie = (float)((double)amax / 127.0 * ((double)check_below(126) + 0.5));
    return sign_of(check_random()) * stk_bits_f32(stk_f32_bits(tie) + check_below(5) - 2);
}

/* A value for position i of a group whose random word is `group`. */
static float activation(uint32_t style, uint32_t group, uint32_t i) {
    static const float threshold[4] = {0x1p-100f, 0x1.fffffep-101f, 0x1.000002p-100f, 0x1p-101f};
    float u = check_uniform(), amax = 1.0f + (float)(group >> 8) * 0x1p-24f;
    switch (style) {
    case 0: return u;
    case 1: return group & 2u ? sign_of(i) : group & 4u ? sign_of(group) : sign_of(check_random());
    case 2: return 1e6f * u;
    case 3: return (group & 1u ? 1e-40f : 1e-30f) * u;
    case 4: return i == group % STK_GROUP ? sign_of(group) * threshold[group >> 8 & 3u] : u * 0x1p-101f;
    case 5: return i == group % STK_GROUP ? 127.0f : (float)(int32_t)check_below(253) * 0.5f - 63.0f;
    case 7: return sign_of(check_random()) * 0.0f;
    case 8: return u * exp2f((float)(group % 240u) - 120.0f);
    case 9: return i == group % STK_GROUP ? amax : next_to_tie(amax);
    default: return u;
    }
}

void check_fill_activations(uint32_t style, float *x, uint32_t n) {
    static const float hostile[4] = {INFINITY, -INFINITY, NAN, 3.4e38f};
    for (uint32_t i = 0, group = 0; i < n; i++) {
        if (i % STK_GROUP == 0) group = check_random();
        x[i] = activation(style, group, i % STK_GROUP);
    }
    if (style == 6) x[check_below(n)] = hostile[check_below(4)];
}

static const char *const flavour_names[CHECK_N_FLAVOUR] = {"ordinary", "largest codes", "smallest codes", "patterns",
                                                           "hostile scales"};

const char *check_flavour_name(uint32_t flavour) { return flavour_names[flavour]; }

static void fill_codes(enum stk_type type, uint32_t flavour, uint8_t *block, uint32_t bytes) {
    static const uint8_t patterns[8] = {0x00, 0xff, 0x0f, 0xf0, 0x80, 0x7f, 0x55, 0xaa};
    for (uint32_t i = 0; i < bytes; i++) block[i] = (uint8_t)check_random();
    if (flavour == 1) memset(block, type == STK_TYPE_Q8_0 ? 0x7f : 0xff, bytes);
    if (flavour == 2) memset(block, type == STK_TYPE_Q8_0 ? 0x80 : 0x00, bytes);
    if (flavour == 3) {
        uint8_t pattern[2] = {patterns[check_below(8)], patterns[check_below(8)]};
        for (uint32_t i = 0; i < bytes; i++) block[i] = pattern[i % 2];
    }
}

/* An f16 scale. Infinities and NaN come in every fourth row alone, so that the other rows have numbers to compare. */
static uint16_t scale(uint32_t flavour, uint32_t row) {
    static const uint16_t hostile[] = {0x7c00, 0xfc00, 0x7e00, 0xfdff},
                          hard[] = {0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x0000, 0x8000};
    if (flavour == 4 && row % 4 == 1 && check_below(4) == 0) return hostile[check_below(STK_ARRAY_LEN(hostile))];
    if (flavour == 4) return hard[check_below(STK_ARRAY_LEN(hard))];
    return stk_f32_f16(0.02f * check_uniform());
}

static void fill_float(enum stk_type type, uint32_t flavour, uint32_t row, uint8_t *weight) {
    float w = check_uniform();
    uint32_t bits = check_random();
    if (flavour == 1) w = sign_of(bits) * (type == STK_TYPE_F16 ? 65504.0f : 0x1p120f);
    if (flavour == 2)
        w = sign_of(bits) * (type == STK_TYPE_F16 ? 0x1p-24f * (float)(bits & 1023u) : 0x1p-133f * (float)(bits & 127u));
    if (flavour == 3) w = (float)(int32_t)(bits % 5u) - 2.0f;
    bool hostile = flavour == 4 && row % 4 == 1 && check_below(16) == 0;
    if (flavour == 4 && !hostile) w = ldexpf(w, (int)(bits % 60u) - 45);
    uint32_t word = hostile ? bits : stk_f32_bits(w);
    uint16_t half = hostile ? (uint16_t)bits : stk_f32_f16(w);
    if (type == STK_TYPE_F32) memcpy(weight, &word, 4);
    if (type == STK_TYPE_F16) memcpy(weight, &half, 2);
    if (type == STK_TYPE_BF16) memcpy(weight, (uint8_t *)&word + 2, 2);
}

void check_fill_rows(enum stk_type type, uint32_t flavour, uint32_t n_rows, uint32_t n_in, uint8_t *rows) {
    const stk_type_info *info = stk_type_info_get(type);
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t b = 0; b < n_in / info->block; b++, rows += info->block_bytes) {
            if (!stk_type_is_quantized(type)) {
                fill_float(type, flavour, row, rows);
                continue;
            }
            fill_codes(type, flavour, rows, info->block_bytes);
            uint16_t d = scale(flavour, row), dmin = scale(flavour, row);
            memcpy(rows + (type == STK_TYPE_Q6_K ? 208 : 0), &d, 2);
            if (type == STK_TYPE_Q4_K || type == STK_TYPE_Q5_K) memcpy(rows + 2, &dmin, 2);
        }
}
