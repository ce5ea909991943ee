/* tune_params: what values of a parameter are tried: from steps across its range to steps half as wide around the best. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tune.h"

enum { MOST_PARAMS = 8 };

/* A policy or predictor taken apart. */
typedef struct method {
    char name[STK_SPEC_NAME_BYTES];
    uint32_t n;
    stk_param_info params[MOST_PARAMS];
    double values[MOST_PARAMS];
} method;

char *stk_tune_spec(stk_tune_config *c, uint32_t kind) { return kind == STK_METHOD_POLICY ? c->policy : c->predictor; }

static const char *spec_of(const stk_tune_config *c, uint32_t kind) {
    return kind == STK_METHOD_POLICY ? c->policy : c->predictor;
}

bool stk_tune_same_method(const stk_tune_config *a, const stk_tune_config *b, uint32_t kind) {
    return strcmp(stk_spec_parse(spec_of(a, kind)).name, stk_spec_parse(spec_of(b, kind)).name) == 0;
}

/* ---- From text to values and back ---------------------------------------------------------------------------------------- */

static double value_in(const char *params, const stk_param_info *p) {
    size_t n = strlen(p->name);
    for (const char *at = params; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, p->name, n) == 0 && at[n] == '=') return strtod(at + n + 1, NULL);
    return p->initial;
}

/* What has a parameter of its own elsewhere (how far it looks ahead), or is a limit of memory, is no choice. */
static bool is_choice(const stk_param_info *p) { return strcmp(p->name, "depth") != 0 && strcmp(p->name, "mib") != 0; }

static method take_apart(const char *text, uint32_t kind) {
    method m = {.n = 0};
    stk_spec spec = stk_spec_parse(text);
    stk_method_info info = {.struct_bytes = sizeof info};
    memcpy(m.name, spec.name, sizeof m.name);
    for (uint32_t i = 0; stk_get_method(kind, i, &info) == 1; i++) {
        if (strcmp(info.name, m.name) != 0) continue;
        stk_param_info p = {.struct_bytes = sizeof p};
        for (uint32_t k = 0; m.n < MOST_PARAMS && stk_get_method_param(kind, i, k, &p) == 1; k++) {
            if (!is_choice(&p)) continue;
            m.params[m.n] = p;
            m.values[m.n++] = value_in(spec.params, &p);
        }
    }
    return m;
}

/* Only those that are not as they come. False: they do not fit. */
static bool put_together(const method *m, char out[STK_SPEC_BYTES]) {
    size_t n = (size_t)snprintf(out, STK_SPEC_BYTES, "%s", m->name);
    char between = ':';
    for (uint32_t i = 0; i < m->n && n < STK_SPEC_BYTES; i++) {
        if (m->values[i] == m->params[i].initial) continue;
        n += (size_t)snprintf(out + n, STK_SPEC_BYTES - n, "%c%s=%.6g", between, m->params[i].name, m->values[i]);
        between = ',';
    }
    return n < STK_SPEC_BYTES;
}

uint32_t stk_tune_n_set(const char *spec) {
    const char *params = stk_spec_parse(spec).params;
    uint32_t n = params && *params ? 1 : 0;
    for (const char *p = params; p && (p = strchr(p, ',')); p++) n++;
    return n;
}

/* ---- What is tried ------------------------------------------------------------------------------------------------------- */

/* Counts are whole: as all that is said of them is. */
static bool is_whole(const stk_param_info *p) {
    return p->most > 1 && p->least == floor(p->least) && p->most == floor(p->most) && p->initial == floor(p->initial);
}

static void try_value(stk_tune_trials *out, const stk_tune_config *at, uint32_t kind, const method *m, uint32_t i, double value) {
    method changed = *m;
    if (is_whole(&m->params[i])) value = round(value);
    if (!(value >= m->params[i].least && value <= m->params[i].most) || value == m->values[i]) return;
    changed.values[i] = value;
    stk_tune_config c = *at;
    if (!put_together(&changed, stk_tune_spec(&c, kind))) return;
    for (uint32_t k = 0; k < out->n; k++)
        if (stk_tune_same(&out->items[k], &c)) return;
    if (out->n < STK_TUNE_TRIALS) out->items[out->n++] = c;
}

void stk_tune_coarse(const stk_tune_config *at, uint32_t kind, stk_tune_trials *out) {
    static const double powers[] = {4, 16, 0.25}, counts[] = {1, 8, 64, 512}, shares[] = {0.25, 0.75, -0.125, -0.5};
    method m = take_apart(spec_of(at, kind), kind);
    out->n = 0;
    for (uint32_t i = 0; i < m.n; i++) {
        const stk_param_info *p = &m.params[i];
        bool from_zero = p->initial == 0 && p->most > 20, wide = p->initial > 0 && p->most > 20 * p->initial;
        for (size_t k = 0; from_zero && k < STK_ARRAY_LEN(counts); k++) try_value(out, at, kind, &m, i, counts[k]);
        for (size_t k = 0; wide && k < STK_ARRAY_LEN(powers); k++) try_value(out, at, kind, &m, i, p->initial * powers[k]);
        for (size_t k = 0; !wide && !from_zero && k < STK_ARRAY_LEN(shares); k++)
            try_value(out, at, kind, &m, i,
                      p->initial + shares[k] * (shares[k] > 0 ? p->most - p->initial : p->initial - p->least));
    }
}

void stk_tune_fine(const stk_tune_config *best, uint32_t kind, const stk_tune_config *tried, uint32_t n_tried,
                   stk_tune_trials *out) {
    method m = take_apart(spec_of(best, kind), kind);
    out->n = 0;
    for (uint32_t i = 0; i < m.n; i++) {
        double below = -INFINITY, above = INFINITY;
        for (uint32_t k = 0; k < n_tried; k++) {
            double value = value_in(stk_spec_parse(spec_of(&tried[k], kind)).params, &m.params[i]);
            if (value < m.values[i]) below = fmax(below, value);
            if (value > m.values[i]) above = fmin(above, value);
        }
        if (isfinite(below)) try_value(out, best, kind, &m, i, (m.values[i] + below) / 2);
        if (isfinite(above)) try_value(out, best, kind, &m, i, (m.values[i] + above) / 2);
    }
}
