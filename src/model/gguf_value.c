/* gguf: typed reads of metadata, and values as text. */
#include "gguf.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "gguf_parse.h"

enum { SHOWN_ITEMS = 8, SHOWN_ITEM_BYTES = 48 };

static int fail_value(const stk_gguf *g, const stk_gguf_value *v, const char *fmt, ...) STK_PRINTF(3, 4);
static int fail_value(const stk_gguf *g, const stk_gguf_value *v, const char *fmt, ...) {
    char what[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return stk_fail(STK_EFORMAT, "%s: offset %" PRIu64 ": %.96s: %s", g->files[0].path, g->value_offsets[v - g->values],
                    v->key.text, what);
}

/* Item i as an integer: *u, or *s when it is signed. False when it is no integer. */
static bool integer_at(const stk_gguf_value *v, uint64_t i, bool *is_signed, uint64_t *u, int64_t *s) {
    *is_signed = false;
    switch (v->item) {
    case STK_GGUF_U8:
    case STK_GGUF_BOOL: *u = ((const uint8_t *)v->data)[i]; return true;
    case STK_GGUF_U16: *u = ((const uint16_t *)v->data)[i]; return true;
    case STK_GGUF_U32: *u = ((const uint32_t *)v->data)[i]; return true;
    case STK_GGUF_U64: *u = ((const uint64_t *)v->data)[i]; return true;
    default: break;
    }
    *is_signed = true;
    switch (v->item) {
    case STK_GGUF_I8: *s = ((const int8_t *)v->data)[i]; return true;
    case STK_GGUF_I16: *s = ((const int16_t *)v->data)[i]; return true;
    case STK_GGUF_I32: *s = ((const int32_t *)v->data)[i]; return true;
    case STK_GGUF_I64: *s = ((const int64_t *)v->data)[i]; return true;
    default: return false;
    }
}

static int u32_of(const stk_gguf *g, const stk_gguf_value *v, uint64_t i, uint32_t *out) {
    bool is_signed;
    uint64_t u = 0;
    int64_t s = 0;
    if (!integer_at(v, i, &is_signed, &u, &s))
        return fail_value(g, v, "is a %s, expected an integer", stk_gguf_type_name(v->item));
    if (is_signed && s < 0) return fail_value(g, v, "is %" PRId64 ", expected 0 or more", s);
    if (is_signed) u = (uint64_t)s;
    if (u > UINT32_MAX) return fail_value(g, v, "is %" PRIu64 ", which is more than 32 bits hold", u);
    *out = (uint32_t)u;
    return 1;
}

int stk_gguf_u32(const stk_gguf *g, const char *key, uint32_t *out) {
    const stk_gguf_value *v = stk_gguf_find(g, key);
    if (!v) return 0;
    if (v->type == STK_GGUF_ARRAY) return fail_value(g, v, "is an array, expected an integer");
    return u32_of(g, v, 0, out);
}

int stk_gguf_u32_at(const stk_gguf *g, const char *key, uint64_t i, uint32_t *out) {
    const stk_gguf_value *v = stk_gguf_find(g, key);
    if (!v) return 0;
    if (v->type != STK_GGUF_ARRAY) return u32_of(g, v, 0, out);
    if (i >= v->n) return fail_value(g, v, "has %" PRIu64 " items, expected one for each layer", v->n);
    return u32_of(g, v, i, out);
}

int stk_gguf_f32(const stk_gguf *g, const char *key, float *out) {
    const stk_gguf_value *v = stk_gguf_find(g, key);
    if (!v) return 0;
    bool is_signed;
    uint64_t u = 0;
    int64_t s = 0;
    if (v->type == STK_GGUF_F32) {
        *out = *(const float *)v->data;
    } else if (v->type == STK_GGUF_F64) {
        double x = *(const double *)v->data;
        if (isfinite(x) && fabs(x) > FLT_MAX) return fail_value(g, v, "is %g, which float32 does not hold", x);
        *out = (float)x;
    } else if (v->type != STK_GGUF_ARRAY && v->type != STK_GGUF_BOOL && integer_at(v, 0, &is_signed, &u, &s)) {
        *out = is_signed ? (float)s : (float)u;
    } else {
        return fail_value(g, v, "is a %s, expected a number", stk_gguf_type_name(v->type));
    }
    return 1;
}

int stk_gguf_bool(const stk_gguf *g, const char *key, bool *out) {
    const stk_gguf_value *v = stk_gguf_find(g, key);
    if (!v) return 0;
    if (v->type != STK_GGUF_BOOL) return fail_value(g, v, "is a %s, expected a bool", stk_gguf_type_name(v->type));
    *out = *(const uint8_t *)v->data != 0;
    return 1;
}

int stk_gguf_str(const stk_gguf *g, const char *key, stk_gguf_string *out) {
    const stk_gguf_value *v = stk_gguf_find(g, key);
    if (!v) return 0;
    if (v->type != STK_GGUF_STRING) return fail_value(g, v, "is a %s, expected a string", stk_gguf_type_name(v->type));
    *out = *(const stk_gguf_string *)v->data;
    return 1;
}

const char *stk_gguf_type_name(enum stk_gguf_type type) {
    static const char *const names[] = {
        [STK_GGUF_U8] = "u8",         [STK_GGUF_I8] = "i8",       [STK_GGUF_U16] = "u16", [STK_GGUF_I16] = "i16",
        [STK_GGUF_U32] = "u32",       [STK_GGUF_I32] = "i32",     [STK_GGUF_F32] = "f32", [STK_GGUF_BOOL] = "bool",
        [STK_GGUF_STRING] = "string", [STK_GGUF_ARRAY] = "array", [STK_GGUF_U64] = "u64", [STK_GGUF_I64] = "i64",
        [STK_GGUF_F64] = "f64",
    };
    return (unsigned)type < STK_ARRAY_LEN(names) ? names[type] : "?";
}

/* ---- Text --------------------------------------------------------------------------------------------------------------- */

/* Output that stops, whole pieces only, where `cap` is reached. */
typedef struct text {
    char *out;
    size_t n, cap;
    bool full;
} text;

static void put(text *t, const char *piece, size_t n) {
    if (t->full || n >= t->cap - t->n) {
        t->full = true;
        return;
    }
    memcpy(t->out + t->n, piece, n);
    t->n += n;
}

static void put_format(text *t, const char *fmt, ...) STK_PRINTF(2, 3);
static void put_format(text *t, const char *fmt, ...) {
    char piece[64];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(piece, sizeof piece, fmt, ap);
    va_end(ap);
    put(t, piece, (size_t)n);
}

/* Bytes of the well-formed UTF-8 character at s that a terminal may show; 0 when there is none. */
static size_t printable_char(const unsigned char *s, uint64_t left) {
    if (s[0] >= 0x20 && s[0] < 0x7f) return 1;
    size_t n = s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    if (n == 0 || n > left) return 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
    }
    if (s[0] == 0xc2 && s[1] < 0xa0) return 0; /* C1 controls */
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0)) return 0;
    if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90)) return 0;
    return n;
}

/* Files are not trusted to be shown as they are: control characters and stray bytes are escaped. */
static void put_string(text *t, const stk_gguf_string *s, uint64_t max_bytes) {
    uint64_t i = 0;
    while (i < s->bytes && i < max_bytes && !t->full) {
        const unsigned char *c = (const unsigned char *)s->text + i;
        size_t n = printable_char(c, s->bytes - i);
        if (n > 0)
            put(t, (const char *)c, n);
        else if (*c == '\n')
            put(t, "\\n", 2);
        else if (*c == '\t')
            put(t, "\\t", 2);
        else
            put_format(t, "\\x%02x", *c);
        i += n > 0 ? n : 1;
    }
    if (i < s->bytes) put(t, "...", 3);
}

static void put_item(text *t, const stk_gguf_value *v, uint64_t i) {
    bool is_signed;
    uint64_t u = 0;
    int64_t s = 0;
    if (v->item == STK_GGUF_STRING) {
        bool in_array = v->type == STK_GGUF_ARRAY;
        if (in_array) put(t, "\"", 1);
        put_string(t, (const stk_gguf_string *)v->data + i, in_array ? SHOWN_ITEM_BYTES : UINT64_MAX);
        if (in_array) put(t, "\"", 1);
    } else if (v->item == STK_GGUF_BOOL) {
        put_format(t, "%s", ((const uint8_t *)v->data)[i] ? "true" : "false");
    } else if (v->item == STK_GGUF_F32) {
        put_format(t, "%.9g", (double)((const float *)v->data)[i]);
    } else if (v->item == STK_GGUF_F64) {
        put_format(t, "%.17g", ((const double *)v->data)[i]);
    } else if (integer_at(v, i, &is_signed, &u, &s)) {
        if (is_signed)
            put_format(t, "%" PRId64, s);
        else
            put_format(t, "%" PRIu64, u);
    }
}

void stk_gguf_format(const stk_gguf_value *value, char *out, size_t cap) {
    if (cap == 0) return;
    /* Room for the dots that say that the text was cut. */
    text t = {.out = out, .cap = cap > 4 ? cap - 3 : cap};
    if (value->type == STK_GGUF_ARRAY) {
        put(&t, "[", 1);
        for (uint64_t i = 0; i < value->n && i < SHOWN_ITEMS; i++) {
            if (i > 0) put(&t, ", ", 2);
            put_item(&t, value, i);
        }
        if (value->n > SHOWN_ITEMS) put_format(&t, ", ... %" PRIu64 " items", value->n);
        put(&t, "]", 1);
    } else {
        put_item(&t, value, 0);
    }
    if (t.full && cap > 4) {
        memcpy(out + t.n, "...", 3);
        t.n += 3;
    }
    out[t.n] = 0;
}
