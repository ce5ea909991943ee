/* pack: a packed model has every weight of the plain one, in the layout of memory; whatever its tensors were like. What fails
 * leaves nothing. */
#include <dirent.h>

#include "pack_fixture.h"

static unsigned char *read_range(const char *path, uint64_t offset, uint64_t bytes) {
    FILE *f = fopen(path, "rb");
    unsigned char *data = malloc(bytes);
    cr_assert(f && fseek(f, (long)offset, SEEK_SET) == 0 && fread(data, 1, bytes, f) == bytes, "%s", path);
    fclose(f);
    return data;
}

/* The stripes of rows in a file. */
static unsigned char *stripes(const stk_model *m, uint32_t file, uint64_t offset, const stk_part_shape *s) {
    unsigned char *rows = read_range(stk_gguf_path(m->gguf, file), offset, s->file_bytes), *out = malloc(s->packed_bytes);
    unsigned char *scratch = malloc(stk_layout_scratch_bytes(s->type, s->n_in));
    stk_layout_pack(s->type, s->n_rows, s->n_in, rows, out, scratch);
    free(rows);
    free(scratch);
    return out;
}

static void compare_experts(const stk_model *plain, const stk_model *packed) {
    const stk_catalogue *a = plain->experts, *b = packed->experts;
    for (uint32_t l = 0; l < plain->hp.n_layer; l++) {
        const stk_class *cls = stk_catalogue_class(b, stk_catalogue_layer_class(b, l));
        for (uint32_t e = 0; e < plain->hp.n_expert; e++)
            for (int p = 0; p < STK_N_PART; p++) {
                const stk_part_shape *s = &cls->part[p];
                stk_extent from = stk_catalogue_extent(a, l, e, p), to = stk_catalogue_extent(b, l, e, p);
                unsigned char *want = stripes(plain, from.file, from.offset, s),
                              *got = read_range(stk_gguf_path(packed->gguf, 0), to.offset, s->packed_bytes);
                cr_assert_arr_eq(got, want, s->packed_bytes, "layer %u, expert %u, part %d", l, e, p);
                free(want);
                free(got);
            }
    }
}

typedef struct listed {
    const stk_weight *weights[64];
    uint32_t n, n_striped;
} listed;

static int list(void *user, const char *name, const stk_weight *w) {
    listed *l = user;
    cr_assert_lt(l->n, 64, "%s", name);
    l->n_striped += w->in_stripes;
    l->weights[l->n++] = w;
    return 0;
}

static void compare_dense(const stk_model *plain, const stk_model *packed) {
    listed a = {.n = 0}, b = {.n = 0};
    cr_assert_eq(stk_packed_each_dense(plain, list, &a), 0);
    cr_assert_eq(stk_packed_each_dense(packed, list, &b), 0);
    cr_assert(a.n == b.n && a.n_striped == 0 && b.n_striped >= 2 * 3, "%u and %u weights, %u in stripes", a.n, b.n, b.n_striped);
    for (uint32_t i = 0; i < a.n; i++) {
        const stk_weight *x = a.weights[i], *y = b.weights[i];
        cr_assert(x->type == y->type && x->n_rows == y->n_rows && x->n_in == y->n_in && x->bytes == y->bytes, "%s", x->name);
        const stk_part_shape s = {x->type, x->n_rows, x->n_in, x->bytes, x->bytes, 0, 0};
        unsigned char *want = y->in_stripes ? stripes(plain, x->file, x->offset, &s)
                                            : read_range(stk_gguf_path(plain->gguf, x->file), x->offset, x->bytes);
        unsigned char *got = read_range(stk_gguf_path(packed->gguf, 0), y->offset, y->bytes);
        cr_assert_arr_eq(got, want, x->bytes, "%s", x->name);
        free(want);
        free(got);
    }
}

static void compare_info(const stk_model *plain, const stk_model *packed) {
    stk_model_info a = {.struct_bytes = sizeof a}, b = {.struct_bytes = sizeof b};
    cr_assert(stk_model_get_info(plain, &a) == 0 && stk_model_get_info(packed, &b) == 0);
    cr_assert(a.packed == 0 && b.packed == STK_PACKED_FORMAT);
    cr_assert(a.n_param == b.n_param && a.expert_bytes == b.expert_bytes && a.token_bytes == b.token_bytes);
    cr_assert_eq(a.dense_bytes, b.dense_bytes);
    cr_assert_leq(b.ram_bytes_min, a.ram_bytes_min);
    cr_assert_str_eq(a.arch, b.arch);
    cr_assert_str_eq(a.name, b.name);
    cr_assert_eq(stk_model_n_expert_class(plain), stk_model_n_expert_class(packed));
    for (uint64_t i = 0; i < stk_model_n_expert_class(plain); i++) {
        stk_expert_class_info x = {.struct_bytes = sizeof x}, y = {.struct_bytes = sizeof y};
        cr_assert(stk_model_get_expert_class(plain, i, &x) == 0 && stk_model_get_expert_class(packed, i, &y) == 0);
        cr_assert_eq(memcmp(&x, &y, sizeof x), 0);
        cr_assert_eq(x.gate_bytes + x.up_bytes + x.down_bytes, x.bytes);
    }
}

static void compare(stk_model *plain, const char *path) {
    pack_ok(plain, path);
    stk_model *packed = open_ok(path);
    compare_info(plain, packed);
    compare_dense(plain, packed);
    compare_experts(plain, packed);
    cr_assert_eq(stk_pack_check(packed, NULL), 0, "%s", stk_error_detail());
    stk_model_close(&packed);
    stk_model_close(&plain);
}

Test(pack, every_form_of_model_becomes_the_same) {
    const tiny_model forms[] = {
        {.form = TINY_STACKED, .separate_output = true},
        {.form = TINY_FUSED, .fused_qkv = true, .bias = true},
        {.form = TINY_SINGLE, .arch = "llama"},
    };
    for (size_t i = 0; i < STK_ARRAY_LEN(forms); i++) compare(tiny_open(&forms[i], "m.gguf"), test_path("packed.gguf"));
}

Test(pack, a_split_model_becomes_one_file) {
    char stem[256], first[300];
    gguf_build *b = tiny_model_build(&(tiny_model){.separate_output = true});
    snprintf(stem, sizeof stem, "%s", test_path("split"));
    gguf_build_write_split(b, stem, 3);
    gguf_build_close(b);
    snprintf(first, sizeof first, "%s-00001-of-00003.gguf", stem);
    compare(open_ok(first), test_path("packed.gguf"));
}

/* More than a chunk of a dense matrix, parts of several types and a vocabulary. */
Test(pack, a_larger_model_becomes_the_same) {
    stk_synth_options o = {.struct_bytes = sizeof o};
    stk_synth_options_default(&o, sizeof o);
    o.shape = "tiny";
    o.type = "Q4_K_M";
    o.n_layer = 2;
    o.n_vocab = 40000;
    cr_assert_eq(stk_synth(test_path("s.gguf"), &o), 0, "%s", stk_error_detail());
    stk_model *m = open_ok(test_path("s.gguf"));
    cr_assert_gt(m->token_embd.bytes, 4 << 20);
    compare(m, test_path("packed.gguf"));
}

/* ---- What fails ---------------------------------------------------------------------------------------------------------- */

static void assert_fails(const stk_model *m, const char *path, const stk_pack_options *o, int code, const char *part) {
    int rc = stk_pack(m, path, o);
    cr_assert_eq(rc, code, "%d instead of \"%s\": %s", rc, part, stk_error_detail());
    cr_assert(strstr(stk_error_detail(), part), "no \"%s\" in: %s", part, stk_error_detail());
}

/* Files beside `path` whose names begin as its does. */
static uint32_t n_file(const char *path) {
    char dir_name[256];
    snprintf(dir_name, sizeof dir_name, "%s", path);
    char *name = strrchr(dir_name, '/');
    *name++ = 0;
    DIR *dir = opendir(dir_name);
    uint32_t n = 0;
    cr_assert_not_null(dir, "%s", dir_name);
    for (struct dirent *d; (d = readdir(dir));) n += strncmp(d->d_name, name, strlen(name)) == 0;
    closedir(dir);
    return n;
}

static int cancel(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what;
    cr_assert_leq(done, total);
    return ++*(int *)user == 3;
}

Test(pack, mistakes_and_failures_leave_nothing) {
    stk_model *m = tiny_open(&(tiny_model){.arch = NULL}, "m.gguf");
    stk_pack_options o = {.struct_bytes = sizeof o};
    int n_call = 0;
    stk_pack_options_default(&o, sizeof o);
    cr_assert_eq(stk_pack(NULL, test_path("out.gguf"), NULL), STK_EINVAL);
    cr_assert_eq(stk_pack(m, NULL, NULL), STK_EINVAL);
    assert_fails(m, test_path("m.gguf"), NULL, STK_EINVAL, "a file of the model");
    assert_fails(m, test_path("none/out.gguf"), NULL, STK_EIO, "none");
    o.struct_bytes = 4096;
    assert_fails(m, test_path("out.gguf"), &o, STK_EINVAL, "4096 bytes");
    o.struct_bytes = sizeof o;
    o.io = "emu:1G,1us,eio=7";
    assert_fails(m, test_path("out.gguf"), &o, STK_EIO, "m.gguf");
    o.io = "nothing";
    assert_fails(m, test_path("out.gguf"), &o, STK_EINVAL, "nothing");
    o.io = NULL;
    o.progress = cancel;
    o.progress_user = &n_call;
    assert_fails(m, test_path("out.gguf"), &o, STK_ECANCELED, "cancelled");
    cr_assert_eq(n_file(test_path("out.gguf")), 0);
    pack_ok(m, test_path("out.gguf"));
    stk_model *packed = open_ok(test_path("out.gguf"));
    assert_fails(packed, test_path("again.gguf"), NULL, STK_EINVAL, "packed already");
    cr_assert_eq(n_file(test_path("again.gguf")), 0);
    stk_model_close(&packed);
    stk_model_close(&m);
}
