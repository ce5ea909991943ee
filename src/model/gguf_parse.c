/* gguf: the parser of one file. Reads forward through a small buffer, by pread: a mapped file that is cut short kills the
 * process. */
#include "gguf_parse.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "experts/quant.h"

enum {
    BUFFER_BYTES = 64 << 10,
    PAGE_BYTES = 4096,
    BLOCK_BYTES = 256 << 10,
    MIN_VALUE_BYTES = 8 + 1 + 4 + 1,          /* key, type, value */
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* name, n_dim, one dim, type, offset */
    FIELD_BYTES = 96,                         /* of a field's name in a message */
};

typedef struct reader {
    stk_gguf *g;
    const char *path;
    int fd;
    uint64_t file_bytes;
    uint64_t pos;                      /* of the next byte to take */
    uint64_t buffer_pos, buffer_bytes; /* what of the file is in the buffer */
    unsigned char buffer[BUFFER_BYTES];
} reader;

void *stk_gguf_alloc(stk_gguf *g, uint64_t n, uint64_t item_bytes) {
    uint64_t bytes;
    if (stk_mul_overflow(n, item_bytes, &bytes) || bytes > PTRDIFF_MAX - BLOCK_BYTES) return NULL;
    bytes = stk_align_up(bytes, 16);
    stk_gguf_block *block = g->arena;
    if (!block || bytes > block->size - block->used) {
        uint64_t size = STK_MAX(bytes, BLOCK_BYTES);
        block = malloc(sizeof *block + size);
        if (!block) return NULL;
        *block = (stk_gguf_block){.next = g->arena, .size = size};
        g->arena = block;
    }
    void *p = block->data + block->used;
    block->used += bytes;
    return p;
}

int stk_gguf_string_compare(const stk_gguf_string *a, const stk_gguf_string *b) {
    int order = memcmp(a->text, b->text, STK_MIN(a->bytes, b->bytes));
    return order ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int fail_at(const reader *r, int code, uint64_t offset, const char *field, const char *fmt, ...) STK_PRINTF(5, 6);
static int fail_at(const reader *r, int code, uint64_t offset, const char *field, const char *fmt, ...) {
    char what[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return stk_fail(code, "%s: offset %" PRIu64 ": %.*s: %s", r->path, offset, FIELD_BYTES, field, what);
}

static int fail_memory(const reader *r, const char *field) {
    return fail_at(r, STK_ENOMEM, r->pos, field, "the system refused memory for it");
}

static int read_at(const reader *r, void *dst, uint64_t n, uint64_t offset) {
    for (uint64_t done = 0; done < n;) {
        ssize_t got = pread(r->fd, (char *)dst + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return stk_fail_errno(errno, "%s: offset %" PRIu64 ": cannot read", r->path, offset + done);
        if (got == 0)
            return stk_fail(STK_EIO, "%s: offset %" PRIu64 ": the file shrank while it was read", r->path, offset + done);
        done += (uint64_t)got;
    }
    return 0;
}

/* The next n bytes of the file. */
static int take(reader *r, const char *field, void *dst, uint64_t n) {
    uint64_t left = r->file_bytes - r->pos;
    if (n > left) {
        return fail_at(r, STK_EFORMAT, r->pos, field, "needs %" PRIu64 " bytes, but the file ends after %" PRIu64 " (cut off?)",
                       n, left);
    }
    unsigned char *out = dst;
    while (n > 0) {
        uint64_t skip = r->pos - r->buffer_pos;
        if (skip >= r->buffer_bytes) {
            if (n >= BUFFER_BYTES) {
                STK_TRY(read_at(r, out, n, r->pos));
                r->pos += n;
                return 0;
            }
            uint64_t fill = STK_MIN(BUFFER_BYTES, r->file_bytes - r->pos);
            r->buffer_bytes = 0;
            STK_TRY(read_at(r, r->buffer, fill, r->pos));
            r->buffer_pos = r->pos;
            r->buffer_bytes = fill;
            skip = 0;
        }
        uint64_t part = STK_MIN(n, r->buffer_bytes - skip);
        memcpy(out, r->buffer + skip, part);
        out += part;
        n -= part;
        r->pos += part;
    }
    return 0;
}

/* Whether `n` items of at least `min_bytes` each can be in the rest of the file. */
static int check_count(const reader *r, const char *field, uint64_t n, uint64_t min_bytes) {
    uint64_t left = r->file_bytes - r->pos;
    if (n <= left / min_bytes) return 0;
    return fail_at(r, STK_EFORMAT, r->pos, field, "%" PRIu64 " items cannot be in the %" PRIu64 " bytes that are left", n, left);
}

static int take_string(reader *r, const char *field, stk_gguf_string *out) {
    STK_TRY(take(r, field, &out->bytes, sizeof out->bytes));
    STK_TRY(check_count(r, field, out->bytes, 1));
    char *text = stk_gguf_alloc(r->g, out->bytes + 1, 1);
    if (!text) return fail_memory(r, field);
    STK_TRY(take(r, field, text, out->bytes));
    text[out->bytes] = 0;
    out->text = text;
    return 0;
}

/* A key or a tensor's name: used as a C string and in messages, so it must be printable. */
static int take_name(reader *r, const char *field, uint64_t max_bytes, stk_gguf_string *out) {
    uint64_t at = r->pos;
    STK_TRY(take_string(r, field, out));
    if (out->bytes == 0 || out->bytes > max_bytes) {
        return fail_at(r, STK_EFORMAT, at, field, "%" PRIu64 " bytes long, expected 1 to %" PRIu64, out->bytes, max_bytes);
    }
    for (uint64_t i = 0; i < out->bytes; i++) {
        unsigned char c = (unsigned char)out->text[i];
        if (c < 0x20 || c == 0x7f)
            return fail_at(r, STK_EFORMAT, at, field, "byte %" PRIu64 " is control character 0x%02x", i, c);
    }
    return 0;
}

uint64_t stk_gguf_item_bytes(uint32_t type) {
    static const uint8_t bytes[] = {
        [STK_GGUF_U8] = 1,  [STK_GGUF_I8] = 1,  [STK_GGUF_BOOL] = 1, [STK_GGUF_U16] = 2, [STK_GGUF_I16] = 2, [STK_GGUF_U32] = 4,
        [STK_GGUF_I32] = 4, [STK_GGUF_F32] = 4, [STK_GGUF_U64] = 8,  [STK_GGUF_I64] = 8, [STK_GGUF_F64] = 8,
    };
    return type < STK_ARRAY_LEN(bytes) ? bytes[type] : 0;
}

static int take_strings(reader *r, const char *field, uint64_t n, const void **out) {
    STK_TRY(check_count(r, field, n, sizeof(uint64_t)));
    stk_gguf_string *strings = stk_gguf_alloc(r->g, n, sizeof *strings);
    if (!strings) return fail_memory(r, field);
    for (uint64_t i = 0; i < n; i++) STK_TRY(take_string(r, field, &strings[i]));
    *out = strings;
    return 0;
}

static int take_items(reader *r, const char *field, uint32_t type, uint64_t n, const void **out) {
    uint64_t size = stk_gguf_item_bytes(type), at = r->pos;
    STK_TRY(check_count(r, field, n, size));
    unsigned char *items = stk_gguf_alloc(r->g, n, size);
    if (!items) return fail_memory(r, field);
    STK_TRY(take(r, field, items, n * size));
    for (uint64_t i = 0; type == STK_GGUF_BOOL && i < n; i++) {
        if (items[i] > 1) return fail_at(r, STK_EFORMAT, at + i, field, "a bool is %u, expected 0 or 1", items[i]);
    }
    *out = items;
    return 0;
}

static int take_value(reader *r, stk_gguf_value *v) {
    STK_TRY(take_name(r, "metadata key", STK_GGUF_MAX_KEY_BYTES, &v->key));
    const char *field = v->key.text;
    uint32_t type;
    uint64_t at = r->pos;
    STK_TRY(take(r, field, &type, sizeof type));
    v->n = 1;
    v->type = v->item = (enum stk_gguf_type)type;
    if (type == STK_GGUF_ARRAY) {
        at = r->pos;
        STK_TRY(take(r, field, &type, sizeof type));
        STK_TRY(take(r, field, &v->n, sizeof v->n));
        v->item = (enum stk_gguf_type)type;
        if (type == STK_GGUF_ARRAY) return fail_at(r, STK_EUNSUPPORTED, at, field, "arrays of arrays are not supported");
    }
    if (type == STK_GGUF_STRING) return take_strings(r, field, v->n, &v->data);
    if (!stk_gguf_item_bytes(type)) return fail_at(r, STK_EFORMAT, at, field, "unknown value type %" PRIu32, type);
    return take_items(r, field, type, v->n, &v->data);
}

static int compare_values(const void *a, const void *b) {
    return stk_gguf_string_compare(&(*(const stk_gguf_value *const *)a)->key, &(*(const stk_gguf_value *const *)b)->key);
}

static int take_values(reader *r, uint64_t n) {
    stk_gguf *g = r->g;
    STK_TRY(check_count(r, "metadata count", n, MIN_VALUE_BYTES));
    uint64_t *offsets = stk_gguf_alloc(g, n, sizeof *offsets);
    g->values = stk_gguf_alloc(g, n, sizeof *g->values);
    g->values_by_key = stk_gguf_alloc(g, n, sizeof *g->values_by_key);
    if (!offsets || !g->values || !g->values_by_key) return fail_memory(r, "metadata");
    g->value_offsets = offsets;
    for (uint64_t i = 0; i < n; i++) {
        offsets[i] = r->pos;
        STK_TRY(take_value(r, &g->values[i]));
        g->values_by_key[i] = &g->values[i];
    }
    qsort(g->values_by_key, n, sizeof *g->values_by_key, compare_values);
    for (uint64_t i = 1; i < n; i++) {
        const stk_gguf_value *a = g->values_by_key[i - 1], *b = g->values_by_key[i];
        if (stk_gguf_string_compare(&a->key, &b->key) == 0) {
            uint64_t at = offsets[STK_MAX(a, b) - g->values];
            return fail_at(r, STK_EFORMAT, at, b->key.text, "this metadata key is there twice");
        }
    }
    g->n_value = n;
    return 0;
}

/* Shape and type; the offset is still that of the file's data section. */
static int take_tensor(reader *r, stk_gguf_tensor *t) {
    STK_TRY(take_name(r, "tensor name", STK_GGUF_MAX_NAME_BYTES, &t->name));
    const char *field = t->name.text;
    uint64_t at = r->pos, n_row = 1, row_bytes;
    STK_TRY(take(r, field, &t->n_dim, sizeof t->n_dim));
    if (t->n_dim < 1 || t->n_dim > 4)
        return fail_at(r, STK_EFORMAT, at, field, "%" PRIu32 " dimensions, expected 1 to 4", t->n_dim);
    at = r->pos;
    for (uint32_t d = 0; d < 4; d++) t->dim[d] = 1;
    STK_TRY(take(r, field, t->dim, t->n_dim * sizeof t->dim[0]));
    for (uint32_t d = 0; d < 4; d++) {
        if (t->dim[d] == 0) return fail_at(r, STK_EFORMAT, at, field, "dimension %" PRIu32 " is 0", d);
        if (d > 0 && stk_mul_overflow(n_row, t->dim[d], &n_row)) return fail_at(r, STK_EFORMAT, at, field, "its size overflows");
    }
    at = r->pos;
    STK_TRY(take(r, field, &t->type, sizeof t->type));
    if (!stk_type_info_get(t->type)) return fail_at(r, STK_EUNSUPPORTED, at, field, "unknown tensor type %" PRIu32, t->type);
    int rc = stk_type_row_bytes(t->type, t->dim[0], &row_bytes);
    if (rc < 0) return stk_fail_in(rc, "%s: offset %" PRIu64 ": %s", r->path, at, field);
    if (stk_mul_overflow(n_row, row_bytes, &t->bytes)) return fail_at(r, STK_EFORMAT, at, field, "its size overflows");
    t->file = 0;
    return take(r, field, &t->offset, sizeof t->offset);
}

static int take_tensors(reader *r, uint64_t n) {
    stk_gguf *g = r->g;
    STK_TRY(check_count(r, "tensor count", n, MIN_TENSOR_BYTES));
    g->tensors = stk_gguf_alloc(g, n, sizeof *g->tensors);
    if (!g->tensors) return fail_memory(r, "tensors");
    for (uint64_t i = 0; i < n; i++) STK_TRY(take_tensor(r, &g->tensors[i]));
    g->n_tensor = n;
    return 0;
}

/* Makes the tensors' offsets absolute, and checks that each is aligned and inside the file. */
static int place_tensors(const reader *r) {
    stk_gguf *g = r->g;
    uint32_t alignment = STK_GGUF_DEFAULT_ALIGNMENT;
    const char *key = "general.alignment";
    STK_TRY(stk_gguf_u32(g, key, &alignment));
    if (alignment == 0) {
        uint64_t at = g->value_offsets[stk_gguf_find(g, key) - g->values];
        return fail_at(r, STK_EFORMAT, at, key, "is 0, expected 1 or more");
    }
    uint64_t data = stk_div_up(r->pos, alignment) * alignment; /* mostly a power of two, but nothing says so */
    for (uint64_t i = 0; i < g->n_tensor; i++) {
        stk_gguf_tensor *t = &g->tensors[i];
        uint64_t start, end;
        if (t->offset % alignment) {
            return fail_at(r, STK_EFORMAT, t->offset, t->name.text, "this offset is no multiple of the alignment, %" PRIu32,
                           alignment);
        }
        if (stk_add_overflow(data, t->offset, &start) || stk_add_overflow(start, t->bytes, &end) || end > r->file_bytes) {
            return fail_at(r, STK_EFORMAT, t->offset, t->name.text,
                           "%" PRIu64 " bytes there, behind the header's %" PRIu64 ", do not fit into the file's %" PRIu64
                           " (cut off?)",
                           t->bytes, data, r->file_bytes);
        }
        t->offset = start;
    }
    return 0;
}

static int parse(reader *r) {
    char magic[4];
    uint32_t version;
    uint64_t n_tensor, n_value;
    if (r->file_bytes == 0) return stk_fail(STK_EFORMAT, "%s: the file is empty", r->path);
    STK_TRY(take(r, "magic", magic, sizeof magic));
    if (memcmp(magic, "FUGG", 4) == 0)
        return fail_at(r, STK_EUNSUPPORTED, 0, "magic", "a big-endian GGUF file; only little-endian ones are read");
    if (memcmp(magic, "GGUF", 4) != 0) return fail_at(r, STK_EFORMAT, 0, "magic", "not a GGUF file");
    STK_TRY(take(r, "version", &version, sizeof version));
    if (version && !(version & 0xffff)) {
        return fail_at(r, STK_EUNSUPPORTED, 4, "version", "a big-endian GGUF file; only little-endian ones are read");
    }
    if (version != 2 && version != 3)
        return fail_at(r, STK_EUNSUPPORTED, 4, "version", "is %" PRIu32 "; 2 and 3 are supported", version);
    STK_TRY(take(r, "tensor count", &n_tensor, sizeof n_tensor));
    STK_TRY(take(r, "metadata count", &n_value, sizeof n_value));
    STK_TRY(take_values(r, n_value));
    STK_TRY(take_tensors(r, n_tensor));
    r->g->files[0].head_bytes = r->pos;
    return place_tensors(r);
}

/* O_NONBLOCK: opening a FIFO must not wait for a writer. */
static int open_regular(reader *r) {
    struct stat st;
    r->fd = open(r->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (r->fd < 0) return stk_fail_errno(errno, "%s: cannot open", r->path);
    if (fstat(r->fd, &st) < 0) return stk_fail_errno(errno, "%s: cannot look at it", r->path);
    if (!S_ISREG(st.st_mode)) {
        return stk_fail(STK_EFORMAT, "%s: %s, not a GGUF file", r->path,
                        S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
    }
    r->file_bytes = (uint64_t)st.st_size;
    (void)posix_fadvise(r->fd, 0, 0, POSIX_FADV_RANDOM); /* nobody reads on from the header through the page cache */
    return 0;
}

/* The header was read through the page cache; it leaves none of itself there. */
static void close_file(const reader *r) {
    if (r->fd < 0) return;
    uint64_t end = STK_MAX(r->pos, r->buffer_pos + r->buffer_bytes);
    (void)posix_fadvise(r->fd, 0, (off_t)((end / PAGE_BYTES + 1) * PAGE_BYTES), POSIX_FADV_DONTNEED);
    close(r->fd);
}

int stk_gguf_parse(stk_gguf *g, const char *path) {
    size_t path_bytes = strlen(path) + 1;
    char *own_path = stk_gguf_alloc(g, path_bytes, 1);
    g->files = stk_gguf_alloc(g, 1, sizeof *g->files);
    reader *r = malloc(sizeof *r);
    if (!own_path || !g->files || !r) {
        free(r);
        return stk_fail(STK_ENOMEM, "%s: the system refused memory", path);
    }
    memcpy(own_path, path, path_bytes);
    *r = (reader){.g = g, .path = own_path, .fd = -1};
    int rc;
    STK_TRYGOTO(open_regular(r), rc, out);
    g->files[0] = (stk_gguf_file){.path = own_path, .bytes = r->file_bytes};
    g->n_file = 1;
    rc = parse(r);
out:
    close_file(r);
    free(r);
    return rc;
}
