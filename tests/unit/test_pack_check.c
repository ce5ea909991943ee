/* pack_check: a byte that has changed anywhere is found, and what it is part of is named. */
#include "pack_fixture.h"

static int check_damaged(unsigned char *data, size_t bytes, uint64_t at) {
    stk_model *m = NULL;
    data[at] ^= 0x10;
    test_write_file(test_path("damaged.gguf"), data, bytes);
    data[at] ^= 0x10;
    int rc = stk_model_open(&m, test_path("damaged.gguf"));
    if (rc == 0) rc = stk_pack_check(m, NULL);
    stk_model_close(&m);
    return rc;
}

static void assert_named(int rc, const char *name) {
    cr_assert_eq(rc, STK_EFORMAT, "%s: %d", name, rc);
    cr_assert(strstr(stk_error_detail(), name) && strstr(stk_error_detail(), "damaged"), "%s", stk_error_detail());
}

Test(pack_check, damage_is_found_and_named) {
    stk_model *m = tiny_open(&(tiny_model){.separate_output = true}, "m.gguf");
    size_t bytes;
    pack_ok(m, test_path("p.gguf"));
    stk_model_close(&m);
    m = open_ok(test_path("p.gguf"));
    unsigned char *data = contents(test_path("p.gguf"), &bytes);
    for (uint64_t i = 0; i < stk_gguf_n_tensor(m->gguf); i++) {
        const stk_gguf_tensor *t = stk_gguf_tensor_at(m->gguf, i);
        if (t->type == STK_PACKED_TYPE_I8) continue;
        assert_named(check_damaged(data, bytes, t->offset), t->name.text);
        assert_named(check_damaged(data, bytes, t->offset + t->bytes - 1), t->name.text);
    }
    for (uint32_t l = 0; l < m->hp.n_layer; l++)
        for (uint32_t e = 0; e < m->hp.n_expert; e++) {
            char name[64];
            snprintf(name, sizeof name, "expert %u of layer %u", e, l);
            assert_named(check_damaged(data, bytes, stk_catalogue_extent(m->experts, l, e, STK_UP).offset), name);
        }
    cr_assert_eq(check_damaged(data, bytes, bytes - 1), 0, "padding is nobody's");
    free(data);
    stk_model_close(&m);
}

static int cancel(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user;
    (void)what;
    return done == total;
}

Test(pack_check, mistakes) {
    stk_model *m = tiny_open(&(tiny_model){.arch = NULL}, "m.gguf");
    stk_pack_options o = {.struct_bytes = sizeof o};
    stk_pack_options_default(&o, sizeof o);
    cr_assert_eq(stk_pack_check(NULL, NULL), STK_EINVAL);
    cr_assert_eq(stk_pack_check(m, NULL), STK_EINVAL);
    cr_assert(strstr(stk_error_detail(), "not a packed model"), "%s", stk_error_detail());
    pack_ok(m, test_path("p.gguf"));
    stk_model_close(&m);
    m = open_ok(test_path("p.gguf"));
    o.progress = cancel;
    cr_assert_eq(stk_pack_check(m, &o), STK_ECANCELED);
    o.io = "emu:1G,1us,eio=2";
    cr_assert_eq(stk_pack_check(m, &o), STK_EIO);
    stk_model_close(&m);
}
