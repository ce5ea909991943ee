/* gguf_parse: files that are cut off, damaged or hostile. Every one must give a clear error or a valid parse (and nothing to the
 * sanitizers). */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf_build.h"

/* A small file that has everything the parser knows. */
static gguf_build *small(void) {
    gguf_build *b = gguf_build_open();
    const char *words[] = {"x", "yz"};
    const uint16_t counts[] = {1, 2};
    gguf_build_alignment(b, 8);
    gguf_build_str(b, "general.name", "n");
    gguf_build_bool(b, "b", true);
    gguf_build_array(b, "w", STK_GGUF_STRING, 2, words);
    gguf_build_array(b, "c", STK_GGUF_U16, 2, counts);
    gguf_build_tensor(b, "t", 0, (uint64_t[4]){3, 2}, NULL);
    gguf_build_tensor(b, "u", 8, (uint64_t[4]){32, 1, 2}, NULL);
    return b;
}

/* An anonymous file, with a path to open it by. */
typedef struct scratch {
    int fd;
    char path[32];
} scratch;

static scratch scratch_open(const void *bytes, uint64_t n) {
    scratch s = {.fd = memfd_create("gguf", 0)};
    cr_assert_geq(s.fd, 0);
    cr_assert_eq(write(s.fd, bytes, n), (ssize_t)n);
    snprintf(s.path, sizeof s.path, "/proc/self/fd/%d", s.fd);
    return s;
}

/* Looks at everything that a valid parse promises. */
static void walk(const stk_gguf *g) {
    char text[64];
    for (uint64_t i = 0; i < stk_gguf_n_value(g); i++) {
        const stk_gguf_value *v = stk_gguf_value_at(g, i);
        stk_gguf_format(v, text, sizeof text);
        cr_assert_eq(stk_gguf_find(g, v->key.text), v);
    }
    for (uint64_t i = 0; i < stk_gguf_n_tensor(g); i++) {
        const stk_gguf_tensor *t = stk_gguf_tensor_at(g, i);
        cr_assert_leq(t->offset + t->bytes, stk_gguf_file_bytes(g, t->file));
        cr_assert_eq(stk_gguf_find_tensor(g, t->name.text), t);
    }
}

/* Opens a file that may be damaged; the error has a detail text. Returns what stk_gguf_open did. */
static int try_open(const char *path) {
    stk_gguf *g = NULL;
    int rc = stk_gguf_open(&g, path);
    if (rc == 0)
        walk(g);
    else
        cr_assert(rc < 0 && g == NULL && strstr(stk_error_detail(), path), "%d: %s", rc, stk_error_detail());
    stk_gguf_close(&g);
    return rc;
}

static void assert_fails(const char *path, int code, const char *part) {
    stk_gguf *g = NULL;
    int rc = stk_gguf_open(&g, path);
    cr_assert_eq(rc, code, "%d instead of \"%s\": %s", rc, part, stk_error_detail());
    cr_assert_null(g);
    cr_assert(strstr(stk_error_detail(), part), "no \"%s\" in: %s", part, stk_error_detail());
}

Test(gguf_parse, every_cut) {
    gguf_build *b = small();
    uint64_t n, header;
    unsigned char *image = gguf_build_image(b, &n, &header);
    scratch s = scratch_open(image, n);
    cr_assert_eq(try_open(s.path), 0);
    for (uint64_t cut = n; cut-- > 0;) {
        cr_assert_eq(ftruncate(s.fd, (off_t)cut), 0);
        cr_assert_eq(try_open(s.path), STK_EFORMAT, "at %" PRIu64, cut);
    }
    cr_assert(strstr(stk_error_detail(), "the file is empty"));
    close(s.fd);
    free(image);
    gguf_build_close(b);
}

Test(gguf_parse, every_flipped_bit) {
    gguf_build *b = small();
    uint64_t n, header, refused = 0;
    unsigned char *image = gguf_build_image(b, &n, &header);
    scratch s = scratch_open(image, n);
    for (uint64_t bit = 0; bit < 8 * header; bit++) {
        unsigned char byte = image[bit / 8] ^ (unsigned char)(1u << bit % 8);
        cr_assert_eq(pwrite(s.fd, &byte, 1, (off_t)(bit / 8)), 1);
        int rc = try_open(s.path);
        cr_assert(rc == 0 || rc == STK_EFORMAT || rc == STK_EUNSUPPORTED, "bit %" PRIu64 ": %d", bit, rc);
        refused += rc < 0;
        cr_assert_eq(pwrite(s.fd, &image[bit / 8], 1, (off_t)(bit / 8)), 1);
    }
    cr_assert_gt(refused, 2 * header); /* names and values may be anything, the rest is refused */
    cr_assert_eq(try_open(s.path), 0);
    close(s.fd);
    free(image);
    gguf_build_close(b);
}

/* The bytes of `image` right behind the first place where `what` stands. */
static uint64_t behind(const unsigned char *image, uint64_t n, const void *what, size_t what_bytes) {
    const unsigned char *at = memmem(image, n, what, what_bytes);
    cr_assert_not_null(at);
    return (uint64_t)(at - image) + what_bytes;
}

typedef struct patch {
    const char *after; /* a key or name; NULL: from the start of the file */
    uint64_t skip, bytes, value;
    int code;
    const char *detail;
} patch;

/* Puts a hostile number into a small file, and looks for the error's code, offset and field. Long because of its table. */
Test(gguf_parse, hostile_numbers) {
    const uint64_t big = 1ull << 63, most = UINT64_MAX;
    const patch patches[] = {
        {NULL, 0, 4, 0x46544747, STK_EFORMAT, "offset 0: magic: not a GGUF file"},
        {NULL, 0, 4, 0x47475546, STK_EUNSUPPORTED, "offset 0: magic: a big-endian"},
        {NULL, 4, 4, 3u << 24, STK_EUNSUPPORTED, "offset 4: version: a big-endian"},
        {NULL, 4, 4, 1, STK_EUNSUPPORTED, "offset 4: version: is 1; 2 and 3 are supported"},
        {NULL, 4, 4, 4, STK_EUNSUPPORTED, "offset 4: version: is 4"},
        {NULL, 4, 4, 0, STK_EUNSUPPORTED, "offset 4: version: is 0"},
        {NULL, 8, 8, big, STK_EFORMAT, "tensor count: 9223372036854775808 items cannot be"},
        {NULL, 8, 8, most, STK_EFORMAT, "tensor count"},
        {NULL, 8, 8, 3, STK_EFORMAT, "offset "},
        {NULL, 16, 8, big, STK_EFORMAT, "offset 24: metadata count: 9223372036854775808 items cannot be"},
        {NULL, 16, 8, most, STK_EFORMAT, "metadata count"},
        {NULL, 24, 8, big, STK_EFORMAT, "offset 32: metadata key: 9223372036854775808 items"},
        {NULL, 24, 8, most, STK_EFORMAT, "metadata key"},
        {NULL, 24, 8, 0, STK_EFORMAT, "offset 24: metadata key: 0 bytes long"},
        {NULL, 32, 1, 7, STK_EFORMAT, "offset 24: metadata key: byte 0 is control character 0x07"},
        {"general.alignment", 4, 4, 0, STK_EFORMAT, "offset 24: general.alignment: is 0, expected 1 or more"},
        {"general.alignment", 4, 4, 5, STK_EFORMAT, "offset 24: u: this offset is no multiple of the alignment, 5"},
        {"general.alignment", 4, 4, 1u << 31, STK_EFORMAT, "behind the header's 2147483648"},
        {"general.alignment", 4, 4, 0xffffffff, STK_EFORMAT, "behind the header's 4294967295"},
        {"general.alignment", 0, 4, STK_GGUF_F32, STK_EFORMAT, "general.alignment: is a f32"},
        {"general.alignment", 0, 4, 13, STK_EFORMAT, "general.alignment: unknown value type 13"},
        {"general.name", 4, 8, big, STK_EFORMAT, "general.name: 9223372036854775808 items"},
        {"general.name", 4, 8, most, STK_EFORMAT, "general.name"},
        {"\1\0\0\0\0\0\0\0b", 4, 1, 2, STK_EFORMAT, ": b: a bool is 2"},
        {"\1\0\0\0\0\0\0\0w", 4, 4, STK_GGUF_ARRAY, STK_EUNSUPPORTED, ": w: arrays of arrays are not supported"},
        {"\1\0\0\0\0\0\0\0w", 4, 4, 99, STK_EFORMAT, ": w: unknown value type 99"},
        {"\1\0\0\0\0\0\0\0w", 8, 8, big, STK_EFORMAT, ": w: 9223372036854775808 items"},
        {"\1\0\0\0\0\0\0\0w", 8, 8, 1ull << 61, STK_EFORMAT, ": w: 2305843009213693952 items"},
        {"\1\0\0\0\0\0\0\0w", 16, 8, most - 7, STK_EFORMAT, ": w: "},
        {"\1\0\0\0\0\0\0\0c", 8, 8, big + 1, STK_EFORMAT, ": c: 9223372036854775809 items"},
        {"\1\0\0\0\0\0\0\0t", 0, 4, 0, STK_EFORMAT, ": t: 0 dimensions"},
        {"\1\0\0\0\0\0\0\0t", 0, 4, 5, STK_EFORMAT, ": t: 5 dimensions"},
        {"\1\0\0\0\0\0\0\0t", 0, 4, most, STK_EFORMAT, ": t: 4294967295 dimensions"},
        {"\1\0\0\0\0\0\0\0t", 4, 8, 0, STK_EFORMAT, ": t: dimension 0 is 0"},
        {"\1\0\0\0\0\0\0\0t", 12, 8, 0, STK_EFORMAT, ": t: dimension 1 is 0"},
        {"\1\0\0\0\0\0\0\0t", 4, 8, big, STK_EFORMAT, ": t"},
        {"\1\0\0\0\0\0\0\0t", 12, 8, big, STK_EFORMAT, ": t: its size overflows"},
        {"\1\0\0\0\0\0\0\0t", 20, 4, 9999, STK_EUNSUPPORTED, ": t: unknown tensor type 9999"},
        {"\1\0\0\0\0\0\0\0t", 20, 4, 4, STK_EUNSUPPORTED, ": t: unknown tensor type 4"},
        {"\1\0\0\0\0\0\0\0t", 20, 4, 8, STK_EFORMAT, ": t"},
        {"\1\0\0\0\0\0\0\0t", 24, 8, 4, STK_EFORMAT, "offset 4: t: this offset is no multiple of the alignment, 8"},
        {"\1\0\0\0\0\0\0\0t", 24, 8, most - 7, STK_EFORMAT, ": t: 24 bytes there"},
        {"\1\0\0\0\0\0\0\0t", 24, 8, big, STK_EFORMAT, ": t: 24 bytes there"},
        {"\1\0\0\0\0\0\0\0t", 24, 8, 24, STK_EFORMAT, "overlaps with"},
        {"\1\0\0\0\0\0\0\0u", 12, 8, big, STK_EFORMAT, ": u: its size overflows"},
        {"\1\0\0\0\0\0\0\0u", 20, 8, big + big / 2, STK_EFORMAT, ": u: its size overflows"},
    };
    gguf_build *b = small();
    uint64_t n, header;
    unsigned char *image = gguf_build_image(b, &n, &header);
    for (size_t i = 0; i < STK_ARRAY_LEN(patches); i++) {
        const patch *p = &patches[i];
        uint64_t at = p->skip;
        if (p->after) at += behind(image, header, p->after, p->after[0] == 1 ? 9 : strlen(p->after));
        scratch s = scratch_open(image, n);
        cr_assert_eq(pwrite(s.fd, &p->value, p->bytes, (off_t)at), (ssize_t)p->bytes);
        assert_fails(s.path, p->code, p->detail);
        close(s.fd);
    }
    free(image);
    gguf_build_close(b);
}

Test(gguf_parse, alignment_that_32_bits_do_not_hold) {
    gguf_build *b = gguf_build_open();
    uint64_t alignment = 1ull << 40;
    gguf_build_raw(b, "general.alignment", STK_GGUF_U64, &alignment, sizeof alignment);
    gguf_build_write(b, test_path("a.gguf"));
    gguf_build_close(b);
    assert_fails(test_path("a.gguf"), STK_EFORMAT, "general.alignment: is 1099511627776");
}

Test(gguf_parse, long_names) {
    char name[80];
    memset(name, 'n', sizeof name);
    name[65] = 0;
    gguf_build *b = gguf_build_open();
    gguf_build_tensor(b, name, 0, (uint64_t[4]){1}, NULL);
    gguf_build_write(b, test_path("a.gguf"));
    assert_fails(test_path("a.gguf"), STK_EFORMAT, "tensor name: 65 bytes long, expected 1 to 64");
    gguf_build_close(b);
    name[64] = 0;
    b = gguf_build_open();
    gguf_build_tensor(b, name, 0, (uint64_t[4]){1}, NULL);
    gguf_build_write(b, test_path("a.gguf"));
    cr_assert_eq(try_open(test_path("a.gguf")), 0);
    gguf_build_close(b);
    char *key = calloc(1, 65537);
    memset(key, 'k', 65536);
    b = gguf_build_open();
    gguf_build_u32(b, key, 1);
    gguf_build_write(b, test_path("a.gguf"));
    assert_fails(test_path("a.gguf"), STK_EFORMAT, "metadata key: 65536 bytes long");
    gguf_build_close(b);
    free(key);
}

/* Larger than the reader's buffer, as many pieces and as one. */
Test(gguf_parse, large_metadata) {
    enum { N = 30000 };
    uint32_t *numbers = malloc(N * sizeof *numbers);
    const char **words = malloc(N * sizeof *words);
    char *text = calloc(1, 300001);
    memset(text, 't', 300000);
    for (uint32_t i = 0; i < N; i++) {
        numbers[i] = i * 7;
        words[i] = text + 300000 - i % 50;
    }
    gguf_build *b = gguf_build_open();
    gguf_build_array(b, "words", STK_GGUF_STRING, N, words);
    gguf_build_array(b, "numbers", STK_GGUF_U32, N, numbers);
    gguf_build_str(b, "text", text);
    gguf_build_tensor(b, "t", 0, (uint64_t[4]){4}, NULL);
    gguf_build_write(b, test_path("a.gguf"));
    gguf_build_close(b);
    stk_gguf *g = NULL;
    cr_assert_eq(stk_gguf_open(&g, test_path("a.gguf")), 0, "%s", stk_error_detail());
    walk(g);
    uint32_t last;
    cr_assert_eq(stk_gguf_u32_at(g, "numbers", N - 1, &last), 1);
    cr_assert_eq(last, (N - 1) * 7);
    stk_gguf_string whole;
    cr_assert_eq(stk_gguf_str(g, "text", &whole), 1);
    cr_assert_str_eq(whole.text, text);
    const stk_gguf_string *read = stk_gguf_find(g, "words")->data;
    for (uint32_t i = 0; i < N; i++) cr_assert_str_eq(read[i].text, words[i]);
    stk_gguf_close(&g);
    free(numbers);
    free(words);
    free(text);
}

Test(gguf_parse, not_a_file_to_read) {
    assert_fails("/", STK_EFORMAT, "/: a directory, not a GGUF file");
    assert_fails("/nowhere/x.gguf", STK_EIO, "/nowhere/x.gguf: cannot open: No such file");
    const char *fifo = test_path("fifo");
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    assert_fails(fifo, STK_EFORMAT, "fifo: not a regular file"); /* and does not wait for a writer */
    assert_fails("/dev/null", STK_EFORMAT, "not a regular file");
    test_write_file(test_path("text"), "hello, this is a text", 21);
    assert_fails(test_path("text"), STK_EFORMAT, "magic: not a GGUF file");
    test_write_file(test_path("short"), "GG", 2);
    assert_fails(test_path("short"), STK_EFORMAT, "offset 0: magic: needs 4 bytes, but the file ends after 2");
}
