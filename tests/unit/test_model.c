/* model: what stoker.h says of a model, with and without a tokenizer. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/model/model.h"
#include "tiny_model.h"

/* Files that the `gguf` Python package wrote. */
#define CORPUS STK_TEST_DATA "/../fuzz/corpus_gguf/"

static stk_model *open_ok(const char *path) {
    stk_model *m = NULL;
    cr_assert_eq(stk_model_open(&m, path), 0, "%s", stk_error_detail());
    return m;
}

static stk_model *open_tiny(void) {
    gguf_build *b = tiny_model_build(&(tiny_model){.separate_output = true});
    gguf_build_write(b, test_path("m.gguf"));
    gguf_build_close(b);
    return open_ok(test_path("m.gguf"));
}

Test(model, info) {
    stk_model *m = open_tiny();
    stk_model_info info = {.struct_bytes = sizeof info};
    cr_assert_eq(stk_model_get_info(m, &info), 0);
    cr_assert_eq(info.struct_bytes, sizeof info);
    cr_assert_eq(info.n_layer, 2);
    cr_assert_eq(info.n_moe_layer, 2);
    cr_assert_eq(info.n_vocab, 40);
    cr_assert_eq(info.n_expert, 3);
    cr_assert_eq(info.n_expert_used, 2);
    cr_assert_eq(info.n_file, 1);
    cr_assert_eq(info.expert_bytes_min, 2 * 32 * 36 + 64 * 34);
    cr_assert_eq(info.expert_bytes_max, info.expert_bytes_min);
    cr_assert_eq(info.expert_bytes, 6 * info.expert_bytes_min);
    /* Embedding and output, norms, attention, router, experts. */
    cr_assert_eq(info.n_param,
                 2 * 40 * 64 + 64 + 2 * (64 + 64 * 64 + 32 * 64 + 16 * 64 + 32 * 64 + 32 + 64 + 3 * 64 + 3 * 3 * 32 * 64));
    cr_assert_str_eq(info.arch, "qwen3moe");
    cr_assert_str_eq(info.name, "tiny");
    cr_assert_geq(info.file_bytes, info.expert_bytes + info.dense_bytes);
    /* A token reads its row of the embedding, and not the rest. */
    cr_assert_eq(info.token_bytes, info.dense_bytes - 39 * 68 + 4 * info.expert_bytes_min);
    stk_model_close(&m);
    cr_assert_null(m);
    stk_model_close(&m);
    stk_model_close(NULL);
}

Test(model, odd_names_are_shown_as_well_as_can_be) {
    char text[5001];
    memset(text, 'x', sizeof text - 1);
    text[0] = 27;
    text[sizeof text - 1] = 0;
    for (int i = 0; i < 2; i++) {
        gguf_build *b = tiny_model_build(&(tiny_model){.omit = "general.name"});
        if (i) gguf_build_str(b, "general.name", text);
        if (!i) gguf_build_u32(b, "general.name", 7);
        gguf_build_write(b, test_path("m.gguf"));
        gguf_build_close(b);
        stk_model *m = open_ok(test_path("m.gguf"));
        stk_model_info info = {.struct_bytes = sizeof info};
        cr_assert_eq(stk_model_get_info(m, &info), 0);
        cr_assert_eq(strncmp(info.name, i ? "\\x1bxxx" : "", 7), 0, "%s", info.name);
        cr_assert_lt(strlen(info.name), 256);
        stk_model_close(&m);
    }
}

Test(model, older_callers_have_shorter_structs) {
    stk_model *m = open_tiny();
    stk_model_info info;
    memset(&info, 0x55, sizeof info);
    info.struct_bytes = 12; /* up to n_embd */
    cr_assert_eq(stk_model_get_info(m, &info), 0);
    cr_assert_eq(info.struct_bytes, 12);
    cr_assert_eq(info.n_embd, 64);
    cr_assert_eq(info.n_vocab, 0x55555555);
    info.struct_bytes = 0;
    cr_assert_eq(stk_model_get_info(m, &info), STK_EINVAL);
    stk_model_close(&m);
}

Test(model, metadata_and_tensors) {
    stk_model *m = open_tiny();
    const char *key, *type, *text;
    cr_assert_eq(stk_model_get_meta(m, 0, &key, &type, &text), 0);
    cr_assert_str_eq(key, "general.architecture");
    cr_assert_str_eq(type, "string");
    cr_assert_str_eq(text, "qwen3moe");
    cr_assert_eq(stk_model_get_meta(m, stk_model_n_meta(m), &key, &type, &text), STK_EINVAL);
    stk_tensor_info t = {.struct_bytes = sizeof t};
    cr_assert_eq(stk_model_get_tensor(m, 0, &t), 0);
    cr_assert_str_eq(t.name, "token_embd.weight");
    cr_assert_str_eq(t.type_name, "Q8_0");
    cr_assert_eq(t.dim[1], 40);
    cr_assert_eq(t.bytes, 40 * 68);
    cr_assert_eq(stk_model_get_tensor(m, stk_model_n_tensor(m), &t), STK_EINVAL);
    stk_model_close(&m);
}

Test(model, without_a_tokenizer_it_opens_and_says_so_when_asked) {
    stk_model *m = open_tiny();
    int32_t ids[4];
    const char *bytes;
    cr_assert_eq(stk_tokenize(m, "a", 1, 0, ids, 4), STK_EUNSUPPORTED);
    cr_assert(strstr(stk_error_detail(), "m.gguf: the file has no tokenizer"), "%s", stk_error_detail());
    cr_assert_eq(stk_token_bytes(m, 0, 0, &bytes), STK_EUNSUPPORTED);
    cr_assert_eq(stk_token_is_end(m, 0), 0);
    stk_model_close(&m);
    gguf_build *b = tiny_model_build(&(tiny_model){0});
    gguf_build_str(b, "tokenizer.ggml.model", "rwkv");
    gguf_build_write(b, test_path("m.gguf"));
    gguf_build_close(b);
    m = open_ok(test_path("m.gguf"));
    cr_assert_eq(stk_tokenize(m, "a", 1, 0, ids, 4), STK_EUNSUPPORTED);
    cr_assert(strstr(stk_error_detail(), "m.gguf: ") && strstr(stk_error_detail(), "rwkv"), "%s", stk_error_detail());
    stk_model_close(&m);
    b = tiny_model_build(&(tiny_model){0});
    gguf_build_u32(b, "tokenizer.ggml.model", 1);
    gguf_build_write(b, test_path("m.gguf"));
    gguf_build_close(b);
    m = open_ok(test_path("m.gguf"));
    cr_assert_eq(stk_tokenize(m, "a", 1, 0, ids, 4), STK_EFORMAT);
    const char *named = strstr(stk_error_detail(), "m.gguf: ");
    cr_assert(named && !strstr(named + 1, "m.gguf: "), "%s", stk_error_detail());
    stk_model_close(&m);
}

Test(model, opens_what_the_reference_writer_wrote) {
    const char *names[] = {"model_qwen3moe_q4_0_tokenizer", "model_qwen3moe_q8_0_fused", "model_llama_q4_0_single",
                           "model_llama_bf16"};
    for (size_t i = 0; i < STK_ARRAY_LEN(names); i++) {
        char path[512];
        snprintf(path, sizeof path, CORPUS "%s.gguf", names[i]);
        stk_model *m = open_ok(path);
        cr_assert_eq(m->hp.n_expert, 3);
        stk_model_close(&m);
    }
    stk_model *m = open_ok(CORPUS "model_qwen3moe_q4_0_tokenizer.gguf");
    int32_t ids[8];
    const char *bytes;
    cr_assert_eq(stk_tokenize(m, "abcd a", 6, 0, ids, 8), 2, "%s", stk_error_detail());
    cr_assert_eq(ids[0], 258);
    cr_assert_eq(ids[1], 260);
    cr_assert_eq(stk_token_bytes(m, 260, 0, &bytes), 2);
    cr_assert_arr_eq(bytes, " a", 2);
    cr_assert_eq(stk_token_is_end(m, 261), 1);
    cr_assert_eq(stk_token_is_end(m, 260), 0);
    stk_model_close(&m);
}

Test(model, wrong_files) {
    stk_model *m = NULL;
    cr_assert_eq(stk_model_open(&m, CORPUS "values.gguf"), STK_EUNSUPPORTED);
    cr_assert(strstr(stk_error_detail(), "architecture \"none\""), "%s", stk_error_detail());
    cr_assert_eq(stk_model_open(&m, "/nowhere"), STK_EIO);
    cr_assert_eq(stk_model_open(&m, NULL), STK_EINVAL);
    cr_assert_eq(stk_model_open(NULL, "/nowhere"), STK_EINVAL);
    cr_assert_null(m);
}

Test(model, trained_models) {
    const char *names[] = {"ember-q4_k_m", "ember-q8_0", "ember-bf16"};
    const uint32_t n_class[] = {2, 1, 1};
    for (size_t i = 0; i < STK_ARRAY_LEN(names); i++) {
        char path[512];
        snprintf(path, sizeof path, STK_SHARED "/model/%s.gguf", names[i]);
        if (access(path, R_OK) != 0) cr_skip_test("no %s", path);
        stk_model *m = open_ok(path);
        cr_assert_eq(m->hp.n_vocab, 4096);
        cr_assert_eq(stk_catalogue_n_class(m->experts), n_class[i]);
        cr_assert_not(m->tied);
        stk_model_close(&m);
    }
}
