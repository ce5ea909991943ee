/* gguf: opening a model of one or several parts, checks over all of them, and lookups. The parser is gguf_parse.c. */
#include "gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_parse.h"

/* The ending of a part's file name, "-00002-of-00003.gguf"; at most 65,535 parts. */
#define PART_ENDING "-%05" PRIu32 "-of-%05" PRIu32 ".gguf"
enum { ENDING_CAP = 40 };

static stk_gguf *new_object(void) { return calloc(1, sizeof(stk_gguf)); }

static int parse_new(stk_gguf **out, const char *path) {
    *out = new_object();
    if (!*out) return stk_fail(STK_ENOMEM, "%s: the system refused memory", path);
    return stk_gguf_parse(*out, path);
}

/* What a file says of its place in a split model; *n_part is 1 when it is whole. */
static int split_of(const stk_gguf *g, uint32_t *part, uint32_t *n_part) {
    *part = 0;
    *n_part = 1;
    STK_TRY(stk_gguf_u32(g, "split.no", part));
    STK_TRY(stk_gguf_u32(g, "split.count", n_part));
    if (*n_part == 0) *n_part = 1;
    if (*n_part > UINT16_MAX || *part >= *n_part) {
        return stk_fail(STK_EFORMAT,
                        "%s: split.no is %" PRIu32 " and split.count %" PRIu32 ", expected less than it, and at most 65535",
                        stk_gguf_path(g, 0), *part, *n_part);
    }
    return 0;
}

/* The path of another part, from that of part `part`. *out is malloced. */
static int part_path(char **out, const char *path, uint32_t part, uint32_t n_part, uint32_t other) {
    char ending[ENDING_CAP];
    size_t n = (size_t)snprintf(ending, sizeof ending, PART_ENDING, part + 1, n_part), path_bytes = strlen(path);
    if (path_bytes <= n || strcmp(path + path_bytes - n, ending) != 0) {
        return stk_fail(STK_EFORMAT,
                        "%s: is part %" PRIu32 " of %" PRIu32
                        " (split.no, split.count), but its name does not end in %s: without that "
                        "the other parts cannot be found",
                        path, part + 1, n_part, ending);
    }
    *out = malloc(path_bytes + 1);
    if (!*out) return stk_fail(STK_ENOMEM, "%s: the system refused memory", path);
    memcpy(*out, path, path_bytes - n);
    snprintf(*out + path_bytes - n, n + 1, PART_ENDING, other + 1, n_part);
    return 0;
}

/* Parses part `other` and checks that it says so. */
static int parse_part(stk_gguf **out, const char *path, uint32_t part, uint32_t n_part, uint32_t other) {
    char *other_path = NULL;
    uint32_t found, n_found;
    int rc;
    STK_TRYGOTO(part_path(&other_path, path, part, n_part, other), rc, out);
    rc = parse_new(out, other_path);
    if (rc < 0) rc = stk_fail_in(rc, "part %" PRIu32 " of %" PRIu32, other + 1, n_part);
    if (rc < 0) goto out;
    STK_TRYGOTO(split_of(*out, &found, &n_found), rc, out);
    if (found != other || n_found != n_part) {
        rc = stk_fail(STK_EFORMAT,
                      "%s: says that it is part %" PRIu32 " of %" PRIu32 " (split.no, split.count), expected part %" PRIu32
                      " of %" PRIu32,
                      other_path, found + 1, n_found, other + 1, n_part);
    }
out:
    free(other_path);
    if (rc < 0) stk_gguf_close(out);
    return rc;
}

/* Appends the tensors and the file of `part`, which is used up. */
static int append(stk_gguf *g, stk_gguf *part) {
    stk_gguf_tensor *tensors = stk_gguf_alloc(g, g->n_tensor + part->n_tensor, sizeof *tensors);
    if (!tensors) return stk_fail(STK_ENOMEM, "%s: the system refused memory for its tensors", part->files[0].path);
    memcpy(tensors, g->tensors, g->n_tensor * sizeof *tensors);
    for (uint64_t i = 0; i < part->n_tensor; i++) {
        tensors[g->n_tensor + i] = part->tensors[i];
        tensors[g->n_tensor + i].file = g->n_file;
    }
    g->tensors = tensors;
    g->n_tensor += part->n_tensor;
    g->files[g->n_file++] = part->files[0];
    stk_gguf_block **tail = &part->arena;
    while (*tail) tail = &(*tail)->next;
    *tail = g->arena;
    g->arena = part->arena;
    part->arena = NULL;
    return 0;
}

/* Reads the parts behind the first, which `g` holds. */
static int add_parts(stk_gguf *g, uint32_t n_part) {
    stk_gguf_file *files = stk_gguf_alloc(g, n_part, sizeof *files);
    if (!files) return stk_fail(STK_ENOMEM, "%s: the system refused memory", g->files[0].path);
    files[0] = g->files[0];
    g->files = files;
    for (uint32_t i = 1; i < n_part; i++) {
        stk_gguf *part = NULL;
        int rc = parse_part(&part, g->files[0].path, 0, n_part, i);
        if (rc == 0) rc = append(g, part);
        stk_gguf_close(&part);
        STK_TRY(rc);
    }
    uint32_t n_tensor;
    int found = stk_gguf_u32(g, "split.tensors.count", &n_tensor);
    if (found == 1 && n_tensor != g->n_tensor) {
        return stk_fail(STK_EFORMAT, "%s: split.tensors.count is %" PRIu32 ", but the %" PRIu32 " parts have %" PRIu64 " tensors",
                        g->files[0].path, n_tensor, n_part, g->n_tensor);
    }
    return found < 0 ? found : 0;
}

static int compare_names(const void *a, const void *b) {
    return stk_gguf_string_compare(&(*(const stk_gguf_tensor *const *)a)->name, &(*(const stk_gguf_tensor *const *)b)->name);
}

static int compare_places(const void *a, const void *b) {
    const stk_gguf_tensor *x = *(const stk_gguf_tensor *const *)a, *y = *(const stk_gguf_tensor *const *)b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* No name twice, no byte in two tensors. Leaves the index by name. */
static int index_tensors(stk_gguf *g) {
    const stk_gguf_tensor **order = stk_gguf_alloc(g, g->n_tensor, sizeof *order);
    if (!order) return stk_fail(STK_ENOMEM, "%s: the system refused memory for its tensors", g->files[0].path);
    for (uint64_t i = 0; i < g->n_tensor; i++) order[i] = &g->tensors[i];
    qsort(order, g->n_tensor, sizeof *order, compare_places);
    for (uint64_t i = 1; i < g->n_tensor; i++) {
        const stk_gguf_tensor *a = order[i - 1], *b = order[i];
        if (a->file == b->file && a->offset + a->bytes > b->offset) {
            return stk_fail(STK_EFORMAT, "%s: offset %" PRIu64 ": %s: overlaps with %s", g->files[b->file].path, b->offset,
                            b->name.text, a->name.text);
        }
    }
    qsort(order, g->n_tensor, sizeof *order, compare_names);
    for (uint64_t i = 1; i < g->n_tensor; i++) {
        const stk_gguf_tensor *a = order[i - 1], *b = order[i];
        if (stk_gguf_string_compare(&a->name, &b->name) == 0) {
            const stk_gguf_tensor *later = STK_MAX(a, b);
            return stk_fail(STK_EFORMAT, "%s: offset %" PRIu64 ": %s: a tensor of this name is there twice",
                            g->files[later->file].path, later->offset, later->name.text);
        }
    }
    g->tensors_by_name = order;
    return 0;
}

int stk_gguf_open(stk_gguf **out, const char *path) {
    stk_gguf *g = NULL, *first = NULL;
    uint32_t part, n_part;
    int rc;
    STK_TRYGOTO(parse_new(&g, path), rc, out);
    STK_TRYGOTO(split_of(g, &part, &n_part), rc, out);
    if (part > 0) {
        STK_TRYGOTO(parse_part(&first, path, part, n_part, 0), rc, out);
        stk_gguf_close(&g);
        g = first;
    }
    if (n_part > 1) STK_TRYGOTO(add_parts(g, n_part), rc, out);
    STK_TRYGOTO(index_tensors(g), rc, out);
    *out = g;
    return 0;
out:
    stk_gguf_close(&g);
    return rc;
}

void stk_gguf_close(stk_gguf **g) {
    if (!*g) return;
    for (stk_gguf_block *block = (*g)->arena; block;) {
        stk_gguf_block *next = block->next;
        free(block);
        block = next;
    }
    free(*g);
    *g = NULL;
}

uint32_t stk_gguf_n_file(const stk_gguf *g) { return g->n_file; }
const char *stk_gguf_path(const stk_gguf *g, uint32_t file) { return g->files[file].path; }
uint64_t stk_gguf_file_bytes(const stk_gguf *g, uint32_t file) { return g->files[file].bytes; }
uint64_t stk_gguf_head_bytes(const stk_gguf *g, uint32_t file) { return g->files[file].head_bytes; }
uint64_t stk_gguf_n_value(const stk_gguf *g) { return g->n_value; }
const stk_gguf_value *stk_gguf_value_at(const stk_gguf *g, uint64_t i) { return &g->values[i]; }
uint64_t stk_gguf_n_tensor(const stk_gguf *g) { return g->n_tensor; }
const stk_gguf_tensor *stk_gguf_tensor_at(const stk_gguf *g, uint64_t i) { return &g->tensors[i]; }

static int compare_to_key(const void *key, const void *item) {
    return stk_gguf_string_compare(key, &(*(const stk_gguf_value *const *)item)->key);
}

static int compare_to_name(const void *name, const void *item) {
    return stk_gguf_string_compare(name, &(*(const stk_gguf_tensor *const *)item)->name);
}

const stk_gguf_value *stk_gguf_find(const stk_gguf *g, const char *key) {
    stk_gguf_string wanted = {key, strlen(key)};
    const stk_gguf_value **found = bsearch(&wanted, g->values_by_key, g->n_value, sizeof *g->values_by_key, compare_to_key);
    return found ? *found : NULL;
}

const stk_gguf_tensor *stk_gguf_find_tensor(const stk_gguf *g, const char *name) {
    stk_gguf_string wanted = {name, strlen(name)};
    const stk_gguf_tensor **found =
        bsearch(&wanted, g->tensors_by_name, g->n_tensor, sizeof *g->tensors_by_name, compare_to_name);
    return found ? *found : NULL;
}
