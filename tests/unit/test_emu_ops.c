/* device.cu over the emulation: what the table of operations says when things go wrong. */
#include <criterion/criterion.h>
#include <string.h>

#include "cuda/cuda.h"
#include "cuda/emu/emu.h"

static const stk_cuda_ops *start(uint64_t vram_bytes, uint32_t n_device) {
    stk_emu_config config = stk_emu_config_default();
    config.vram_bytes = vram_bytes;
    config.n_device = n_device;
    stk_emu_reset(&config);
    const stk_cuda_ops *ops = stk_cuda_ops_get("emu");
    cr_assert_not_null(ops);
    return ops;
}

Test(emu_ops, tables_have_names) {
    cr_assert_str_eq(stk_cuda_ops_get("emu")->name, "emu");
    cr_assert_null(stk_cuda_ops_get("opencl"));
    const stk_cuda_ops *cuda = stk_cuda_ops_get(NULL);
    if (cuda) cr_assert_str_eq(cuda->name, "cuda");
}

Test(emu_ops, no_device_is_no_error) {
    uint32_t n = 9;
    const stk_cuda_ops *ops = start(1 << 20, 0);
    cr_assert_eq(ops->count(&n), 0);
    cr_assert_eq(n, 0);
    cr_assert_eq(ops->bind(0), STK_EIO);
    cr_assert_eq(start(1 << 20, 1)->count(&n), 0);
    cr_assert_eq(n, 1);
}

/* A build with the device's kernels must come to the same result on a machine without a driver. */
Test(emu_ops, the_real_table_counts_devices_without_a_driver) {
    const stk_cuda_ops *ops = stk_cuda_ops_get("cuda");
    uint32_t n = 0;
    if (!ops) cr_skip_test("no nvcc in this build");
    cr_assert_eq(ops->count(&n), 0, "%s", stk_error_detail());
}

Test(emu_ops, out_of_memory_names_what_and_how_much) {
    const stk_cuda_ops *ops = start(1 << 20, 1);
    void *p = NULL;
    cr_assert_eq(ops->malloc(&p, 2 << 20, "expert slots"), STK_ENOMEM);
    cr_assert_null(p);
    cr_assert_str_eq(stk_error_detail(), "expert slots: the GPU's driver has no 2097152 bytes of device memory left");
    cr_assert_eq(ops->malloc(&p, 1 << 20, "expert slots"), 0);
    ops->free(p);
    ops->free(NULL);
    cr_assert_not(ops->lost());
}

Test(emu_ops, copies_events_and_host_calls) {
    const stk_cuda_ops *ops = start(1 << 20, 1);
    stk_cuda_stream *a = NULL, *b = NULL;
    stk_cuda_event *e = NULL;
    uint8_t *dev = NULL, *copy = NULL, host[100], back[100];
    stk_cuda_info info;
    for (uint32_t i = 0; i < sizeof host; i++) host[i] = (uint8_t)(i * 3);
    cr_assert_eq(ops->info(0, &info), 0);
    cr_assert_eq(info.total_bytes, 1 << 20);
    cr_assert_eq(ops->stream_open(&a, true) + ops->stream_open(&b, false) + ops->event_open(&e), 0);
    cr_assert_eq(ops->malloc((void **)&dev, sizeof host, "a") + ops->malloc((void **)&copy, sizeof host, "b"), 0);
    cr_assert_eq(ops->to_device(dev, host, sizeof host, a), 0);
    cr_assert_eq(ops->fill(dev, 7, 10, a), 0);
    cr_assert_eq(ops->event_record(e, a), 0);
    cr_assert_eq(ops->stream_wait(b, e), 0);
    cr_assert_eq(ops->on_device(copy, dev, sizeof host, b), 0);
    cr_assert_eq(ops->to_host(back, copy, sizeof back, b), 0);
    cr_assert_eq(ops->stream_sync(b), 0);
    memset(host, 7, 10);
    cr_assert_arr_eq(back, host, sizeof host);
    cr_assert_eq(ops->event_query(e), 1);
    cr_assert_eq(ops->event_sync(e), 0);
    cr_assert_eq(ops->stream_query(a), 1);
    ops->event_close(e);
    ops->stream_close(a);
    ops->stream_close(b);
    ops->free(dev);
    ops->free(copy);
    stk_emu_stats stats;
    stk_emu_stats_get(&stats);
    cr_assert(stats.n_alloc == 0 && stats.n_stream == 0 && stats.n_event == 0);
}

Test(emu_ops, a_failing_copy_leaves_a_device_that_works) {
    const stk_cuda_ops *ops = start(1 << 20, 1);
    stk_cuda_stream *s = NULL;
    void *dev = NULL;
    int x = 1;
    cr_assert_eq(ops->stream_open(&s, false) + ops->malloc(&dev, 4, "x"), 0);
    stk_emu_fail_next(STK_EMU_FAIL_COPY, 0, 1, STK_EMU_INVALID_VALUE);
    cr_assert_eq(ops->to_device(dev, &x, 4, s), STK_EIO);
    cr_assert_not_null(strstr(stk_error_detail(), "a copy to the device"));
    cr_assert_not(ops->lost());
    cr_assert_eq(ops->to_device(dev, &x, 4, s), 0);
    cr_assert_eq(ops->stream_sync(s), 0);
}

/* A kernel that runs into unwritten memory of the host's making: pairs that point nowhere would be one; here the device is lost.
 */
Test(emu_ops, a_lost_device_says_so) {
    const stk_cuda_ops *ops = start(1 << 20, 1);
    stk_cuda_stream *s = NULL;
    float *x = NULL;
    cr_assert_eq(ops->stream_open(&s, false) + ops->malloc((void **)&x, 128, "x"), 0);
    stk_emu_fail_next(STK_EMU_FAIL_LOST, 0, 1, STK_EMU_LAUNCH_FAILURE);
    stk_cuda_silu p = {x, x, {x, NULL, 32, 0}, 1, 32};
    cr_assert_eq(ops->silu_mul(&p, s), 0);
    cr_assert_eq(ops->stream_sync(s), STK_EIO);
    cr_assert_not_null(strstr(stk_error_detail(), "the device was lost"), "%s", stk_error_detail());
    cr_assert(ops->lost());
    cr_assert_eq(ops->silu_mul(&p, s), STK_EIO);
    ops->free(x); /* nothing to give back, and no crash */
}

Test(emu_ops, what_no_kernel_can_do_is_refused) {
    const stk_cuda_ops *ops = start(1 << 20, 1);
    stk_cuda_stream *s = NULL;
    cr_assert_eq(ops->stream_open(&s, false), 0);
    stk_cuda_product p = {.type = (enum stk_type)15, .n_tok = 1, .n_rows = 1};
    cr_assert_eq(ops->product(&p, s), STK_EUNSUPPORTED);
    stk_cuda_gate_up g = {.gate_type = STK_TYPE_Q4_K, .up_type = STK_TYPE_Q6_K, .group = {.n_expert = 1, .max_tok = 1}};
    cr_assert_eq(ops->gate_up(&g, s), STK_EUNSUPPORTED);
    stk_cuda_route r = {.n_expert = 4, .k = 2, .n_top = 5, .n_tok = 1};
    cr_assert_eq(ops->route(&r, s), STK_EUNSUPPORTED);
    stk_cuda_attend a = {.n_head = 3, .n_tok = 1, .kv = {.n_head_kv = 2, .head_dim = 64}};
    cr_assert_eq(ops->attend(&a, s), STK_EUNSUPPORTED);
}
