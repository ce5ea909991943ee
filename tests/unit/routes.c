/* routes: readers of three formats of recorded routing. */
#include "routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void routes_free(routes *r) {
    free(r->n_tok);
    free(r->ids);
    *r = (routes){0};
}

static bool take(routes *r, uint64_t n_tok) {
    uint64_t n = n_tok * r->n_layer * r->k;
    if (!r->n_layer || !r->n_expert || !r->k || n > (uint64_t)1 << 30) return false;
    uint16_t *ids = realloc(r->ids, (n ? n : 1) * sizeof *ids);
    if (ids) r->ids = ids;
    return ids != NULL;
}

static bool read_mrt8(routes *r, FILE *f) {
    char magic[4];
    uint32_t head[4], of_seq[2];
    uint64_t n_tok = 0;
    if (fread(magic, 4, 1, f) != 1 || memcmp(magic, "MRT8", 4) != 0 || fread(head, sizeof head, 1, f) != 1) return false;
    *r = (routes){.n_layer = head[0], .n_expert = head[1], .k = head[2], .n_seq = head[3]};
    if (r->n_seq > 1 << 20 || !(r->n_tok = calloc(r->n_seq + 1, sizeof *r->n_tok))) return false;
    for (uint32_t s = 0; s < r->n_seq; s++) {
        if (fread(of_seq, sizeof of_seq, 1, f) != 1 || !take(r, n_tok + of_seq[0])) return false;
        r->n_tok[s] = of_seq[0];
        uint64_t n = (uint64_t)of_seq[0] * r->n_layer * r->k;
        uint16_t *to = r->ids + n_tok * r->n_layer * r->k;
        for (uint64_t i = 0; i < n; i++) {
            int c = getc(f);
            if (c == EOF) return false;
            to[i] = c == 0xff ? ROUTES_NONE : (uint16_t)c;
        }
        n_tok += of_seq[0];
    }
    return true;
}

static bool read_csv(routes *r, FILE *f) {
    char line[512];
    uint32_t step, layer, slot, expert;
    *r = (routes){.n_seq = 1};
    if (!(r->n_tok = calloc(1, sizeof *r->n_tok))) return false;
    while (fgets(line, sizeof line, f)) {
        char *at = strstr(line, "n_layer=");
        if (*line == '#' && at && sscanf(at, "n_layer=%u n_expert=%u n_expert_used=%u", &r->n_layer, &r->n_expert, &r->k) != 3)
            return false;
        if (sscanf(line, "%*u,%*u,%u,%u,%u,%u", &step, &layer, &slot, &expert) != 4) continue;
        if (layer >= r->n_layer || slot >= r->k || expert >= r->n_expert || step > 1 << 20) return false;
        if (step >= r->n_tok[0]) {
            uint64_t row = (uint64_t)r->n_layer * r->k, old = r->n_tok[0] * row;
            if (!take(r, step + 1)) return false;
            memset(r->ids + old, 0xff, ((step + 1) * row - old) * sizeof *r->ids);
            r->n_tok[0] = step + 1;
        }
        r->ids[((uint64_t)step * r->n_layer + layer) * r->k + slot] = (uint16_t)expert;
    }
    return r->n_tok[0] > 0;
}

static bool read_json(routes *r, FILE *f) {
    static char text[1 << 20];
    uint64_t n = 0, cap = 1 << 18;
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    const char *experts = strstr(text, "\"expertsPerLayer\":"), *layers = strstr(text, "\"layers\":"),
               *k = strstr(text, "\"topK\":");
    const char *at = strstr(text, "\"selections\":");
    *r = (routes){.n_seq = 1};
    if (!experts || !layers || !k || !at || !(r->n_tok = calloc(1, sizeof *r->n_tok))) return false;
    r->n_expert = (uint32_t)strtoul(strchr(experts, ':') + 1, NULL, 10);
    r->n_layer = (uint32_t)strtoul(strchr(layers, ':') + 1, NULL, 10);
    r->k = (uint32_t)strtoul(strchr(k, ':') + 1, NULL, 10);
    if (!(r->ids = calloc(cap, sizeof *r->ids)) || !r->n_layer || !r->k) return false;
    for (int depth = 0; n < cap;) {
        at += strcspn(at, "[]0123456789");
        if (*at == 0) return false;
        if (*at == '[' || *at == ']') {
            depth += *at++ == '[' ? 1 : -1;
            if (depth == 0) break;
            continue;
        }
        char *end;
        r->ids[n++] = (uint16_t)strtoul(at, &end, 10);
        at = end;
    }
    r->n_tok[0] = (uint32_t)(n / ((uint64_t)r->n_layer * r->k));
    return r->n_tok[0] > 0;
}

static bool ends_with(const char *s, const char *end) {
    return strlen(s) >= strlen(end) && strcmp(s + strlen(s) - strlen(end), end) == 0;
}

bool routes_read(routes *r, const char *path) {
    char command[4096];
    bool is_packed = ends_with(path, ".xz"), is_good;
    *r = (routes){0};
    if ((size_t)snprintf(command, sizeof command, "xz -dc '%s'", path) >= sizeof command) return false;
    FILE *f = is_packed ? popen(command, "r") : fopen(path, "r");
    if (!f) return false;
    if (ends_with(path, ".csv"))
        is_good = read_csv(r, f);
    else if (ends_with(path, ".json"))
        is_good = read_json(r, f);
    else
        is_good = read_mrt8(r, f);
    if (is_packed)
        is_good = pclose(f) == 0 && is_good;
    else
        fclose(f);
    if (!is_good) routes_free(r);
    return is_good;
}
