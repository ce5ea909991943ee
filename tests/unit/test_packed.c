/* packed: every lie that a packed file can tell is refused and named. */
#include "pack_fixture.h"

/* Where what follows the text lies in the file. */
static size_t behind(const unsigned char *data, size_t bytes, const char *text) {
    const unsigned char *at = memmem(data, bytes, text, strlen(text));
    cr_assert_not_null(at, "%s", text);
    return (size_t)(at - data) + strlen(text);
}

static void assert_refused(const unsigned char *data, size_t bytes, int code, const char *part) {
    stk_model *m = NULL;
    test_write_file(test_path("bad.gguf"), data, bytes);
    int rc = stk_model_open(&m, test_path("bad.gguf"));
    cr_assert_eq(rc, code, "%d instead of \"%s\": %s", rc, part, rc < 0 ? stk_error_detail() : "");
    cr_assert(strstr(stk_error_detail(), part), "no \"%s\" in: %s", part, stk_error_detail());
    cr_assert_null(m);
}

/* n bytes `skip` behind a text are replaced. */
typedef struct lie {
    const char *text;
    int skip;
    uint32_t n;
    uint64_t value;
    int code;
    const char *part;
} lie;

Test(packed, lies_are_refused) {
    static const lie lies[] = {
        {"stoker.packed.version", 4, 4, 2, STK_EUNSUPPORTED, "packed in form 2"},
        {"stoker.packed.version", 4, 4, 0, STK_EFORMAT, "without stoker.packed.version"},
        {"stoker.packed.version", -1, 1, 'N', STK_EFORMAT, "without stoker.packed.version"},
        {"stoker.packed.architecture", -1, 1, 'E', STK_EFORMAT, "stoker.packed.architecture is missing"},
        {"stoker.packed.architecture", 12, 1, 'Q', STK_EUNSUPPORTED, "architecture \"Qwen3moe\" is not supported"},
        {"stoker.packed.types", -1, 1, 'S', STK_EFORMAT, "stoker.packed.types"},
        {"stoker.packed.types", 16, 4, 99, STK_EFORMAT, "stoker.packed.types"},
        {"stoker.packed.types", 16, 4, STK_PACKED_TYPE_I8, STK_EFORMAT, "stoker.packed.types"},
        {"stoker.packed.types", 16, 4, STK_TYPE_F32, STK_EFORMAT, "expected I8 ["},
        {"stoker.packed.types", 16, 4, STK_TYPE_Q4_K, STK_EFORMAT, "blk.0.ffn_exps.packed"},
        {"general.alignment", 4, 4, 32, STK_EFORMAT, "multiple of 4,096"},
        {"blk.0.ffn_exps.packed", 4, 8, 4096, STK_EFORMAT, "expected I8 ["},
        {"blk.0.ffn_exps.packed", 4, 8, 4097, STK_EFORMAT, "expected I8 ["},
        {"blk.0.ffn_exps.packed", 12, 8, 2, STK_EFORMAT, "expected I8 ["},
        {"blk.0.ffn_exps.packed", 20, 4, 26, STK_EFORMAT, ""}, /* I32: beyond the file, or of another type */
        {"blk.0.ffn_exps.packed", 24, 8, 4096 + 32, STK_EFORMAT, "multiple of the alignment"},
        {"blk.0.ffn_exps.packed", 24, 8, UINT64_C(1) << 62, STK_EFORMAT, "blk.0.ffn_exps.packed"},
        {"blk.1.ffn_exps.packed", -1, 1, 'D', STK_EFORMAT, "blk.1.ffn_exps.packed is missing"},
        {"stoker.packed.seal", -1, 1, 'L', STK_EFORMAT, "stoker.packed.seal is missing"},
        {"stoker.packed.seal", 4, 8, 48, STK_EFORMAT, "stoker.packed.seal is missing or not I8"},
        {"STKSEAL", 0, 1, '2', STK_EFORMAT, "no seal of this model"},
        {"STKSEAL1", 0, 8, 1, STK_EFORMAT, "metadata or directory are damaged"},
        {"STKSEAL1", 8, 8, 1, STK_EFORMAT, "no seal of this model"},
        {"layer_norm_rms_epsilon", 5, 1, 0x12, STK_EFORMAT, "metadata or directory are damaged"},
        {"blk.0.attn_q.weight", -1, 1, 'T', STK_EFORMAT, "blk.0.attn_q.weight is missing"},
        {"blk.0.attn_q.weight", 24, 4, STK_TYPE_Q4_0, STK_EFORMAT, ""},
    };
    stk_model *m = tiny_open(&(tiny_model){.separate_output = true}, "m.gguf");
    size_t bytes;
    pack_ok(m, test_path("p.gguf"));
    stk_model_close(&m);
    unsigned char *data = contents(test_path("p.gguf"), &bytes), *copy = malloc(bytes);
    for (size_t i = 0; i < STK_ARRAY_LEN(lies); i++) {
        const lie *l = &lies[i];
        memcpy(copy, data, bytes);
        size_t at = behind(copy, bytes, l->text);
        memcpy(copy + at + l->skip, &l->value, l->n);
        assert_refused(copy, bytes, l->code, l->part);
    }
    for (size_t cut = STK_PACKED_ALIGN; cut < bytes; cut = cut * 2 + 77)
        assert_refused(data, bytes - cut, STK_EFORMAT, "bad.gguf");
    free(data);
    free(copy);
}

/* No byte of the head may change unseen. */
Test(packed, any_change_of_the_head_is_refused) {
    stk_model *m = tiny_open(&(tiny_model){.arch = NULL}, "m.gguf");
    size_t bytes;
    pack_ok(m, test_path("p.gguf"));
    stk_model_close(&m);
    m = open_ok(test_path("p.gguf"));
    uint64_t head = stk_gguf_head_bytes(m->gguf, 0);
    stk_model_close(&m);
    unsigned char *data = contents(test_path("p.gguf"), &bytes);
    for (uint64_t at = 0; at < head; at++) {
        stk_model *bad = NULL;
        data[at] ^= 1;
        test_write_file(test_path("bad.gguf"), data, bytes);
        data[at] ^= 1;
        cr_assert_lt(stk_model_open(&bad, test_path("bad.gguf")), 0, "byte %d of %d", (int)at, (int)head);
        cr_assert_null(bad);
    }
    free(data);
}

Test(packed, parts_are_refused) {
    char stem[256], first[300];
    stk_model *m = NULL;
    gguf_build *b = tiny_model_build(&(tiny_model){.omit = "general.architecture"});
    gguf_build_str(b, "general.architecture", STK_PACKED_ARCH);
    gguf_build_str(b, STK_PACKED_ARCH_KEY, "qwen3moe");
    gguf_build_u32(b, STK_PACKED_VERSION, STK_PACKED_FORMAT);
    snprintf(stem, sizeof stem, "%s", test_path("split"));
    gguf_build_write_split(b, stem, 2);
    gguf_build_close(b);
    snprintf(first, sizeof first, "%s-00001-of-00002.gguf", stem);
    cr_assert_eq(stk_model_open(&m, first), STK_EFORMAT);
    cr_assert(strstr(stk_error_detail(), "in 2 parts"), "%s", stk_error_detail());
}
