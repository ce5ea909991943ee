/*
 * fast_onednn: oneDNN as the unit of fast.h: its matmul, called by our threads, which do not let it start any of its own.
 *
 * The library is opened at run time, once, and never closed (its threads' memory hangs on the OpenMP runtime that comes with it).
 * Built for OpenMP it asks omp_get_max_threads() and computes in the calling thread where that says 1: so it is told 1 around
 * each call, and what the thread had before is put back, for the thread may be the user's. Built for TBB it cannot be told.
 */
#include "cpu/fast.h"

#ifndef STK_HAS_ONEDNN

const stk_fast_unit *stk_fast_onednn(void) {
    (void)stk_fail(STK_EUNSUPPORTED, "this build has no oneDNN (-DSTK_DNNL=on)");
    return NULL;
}
const char *stk_fast_onednn_name(void) { return NULL; }

#else

#include <dlfcn.h>
#include <dnnl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)
#define LIBRARY  "libdnnl.so." TEXT(DNNL_VERSION_MAJOR)

#if DNNL_VERSION_MAJOR >= 3
#define CALLS_OF_VERSION(X) X(dnnl_memory_desc_create_with_tag) X(dnnl_memory_desc_destroy) X(dnnl_matmul_primitive_desc_create)
#else
#define CALLS_OF_VERSION(X) X(dnnl_memory_desc_init_by_tag) X(dnnl_matmul_desc_init) X(dnnl_primitive_desc_create)
#endif
#define CALLS(X)                                                                                                                 \
    CALLS_OF_VERSION(X)                                                                                                          \
    X(dnnl_version)                                                                                                              \
    X(dnnl_engine_create)                                                                                                        \
    X(dnnl_stream_create)                                                                                                        \
    X(dnnl_stream_destroy)                                                                                                       \
    X(dnnl_primitive_attr_create)                                                                                                \
    X(dnnl_primitive_attr_set_scratchpad_mode)                                                                                   \
    X(dnnl_primitive_desc_query)                                                                                                 \
    X(dnnl_primitive_desc_query_md)                                                                                              \
    X(dnnl_primitive_desc_destroy)                                                                                               \
    X(dnnl_memory_desc_get_size)                                                                                                 \
    X(dnnl_memory_create)                                                                                                        \
    X(dnnl_memory_destroy)                                                                                                       \
    X(dnnl_memory_set_data_handle)                                                                                               \
    X(dnnl_primitive_create)                                                                                                     \
    X(dnnl_primitive_execute)                                                                                                    \
    X(dnnl_primitive_destroy)

#define FIELD(name)   __typeof__(&(name)) name; /* NOLINT(bugprone-macro-parentheses): declares */
static struct {
    CALLS(FIELD)
    void (*omp_set_num_threads)(int n); /* NULL where it is not built for OpenMP */
    int (*omp_get_max_threads)(void);
    dnnl_engine_t engine;
    dnnl_primitive_attr_t attr;
    bool ok;
    char name[256]; /* its version, or what is wrong with it */
} lib;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- The library --------------------------------------------------------------------------------------------------------- */

/* Sets a pointer to a function, which C keeps apart from pointers to data. */
static bool look_up(void *handle, const char *name, void *function) {
    void *at = dlsym(handle, name);
    memcpy(function, &at, sizeof at);
    return at != NULL;
}

/* NULL, or what is wrong. */
static const char *load(void) {
    bool all = true;
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return dlerror();
#define LOOK_UP(call) all = look_up(handle, #call, &lib.call) && all;
    CALLS(LOOK_UP)
    if (!all) return LIBRARY " lacks functions that were there at build";
    const dnnl_version_t *v = lib.dnnl_version();
    if (v->cpu_runtime == DNNL_RUNTIME_TBB) return LIBRARY " computes with threads of its own (TBB)";
    if (v->cpu_runtime == DNNL_RUNTIME_OMP && !(look_up(handle, "omp_set_num_threads", &lib.omp_set_num_threads) &&
                                                look_up(handle, "omp_get_max_threads", &lib.omp_get_max_threads)))
        return LIBRARY " comes without its OpenMP runtime";
    snprintf(lib.name, sizeof lib.name, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    if (lib.dnnl_engine_create(&lib.engine, dnnl_cpu, 0) != dnnl_success ||
        lib.dnnl_primitive_attr_create(&lib.attr) != dnnl_success ||
        lib.dnnl_primitive_attr_set_scratchpad_mode(lib.attr, dnnl_scratchpad_mode_user) != dnnl_success)
        return LIBRARY " does not start";
    return NULL;
}

static void load_once(void) {
    const char *why = load();
    lib.ok = !why;
    if (why) snprintf(lib.name, sizeof lib.name, "no oneDNN here: %s", why);
}

/* One thread for the calls between these, which return what was before and take it back. */
static int alone(void) {
    if (!lib.omp_set_num_threads) return 1;
    int before = lib.omp_get_max_threads();
    if (before != 1) lib.omp_set_num_threads(1);
    return before;
}
static void not_alone(int before) {
    if (before != 1) lib.omp_set_num_threads(before);
}

/* ---- Shapes -------------------------------------------------------------------------------------------------------------- */

enum { A, W, C, SCRATCHPAD, N_MEMORY };

typedef struct shape {
    dnnl_primitive_t primitive;
    uint64_t scratchpad_bytes;
    uint32_t n_worker;
    struct lane {
        dnnl_stream_t stream;
        dnnl_memory_t memory[N_MEMORY];
    } lanes[];
} shape;

#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t desc_ptr;
typedef dnnl_memory_desc_t desc;
static desc_ptr pointer_to(const desc *d) { return *d; }
static bool describe(desc *d, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag) {
    return lib.dnnl_memory_desc_create_with_tag(d, 2, dims, type, tag) == dnnl_success;
}
static void forget(desc *d) {
    if (*d) lib.dnnl_memory_desc_destroy(*d);
}
static bool describe_product(dnnl_primitive_desc_t *out, const desc *d) {
    return lib.dnnl_matmul_primitive_desc_create(out, lib.engine, d[A], d[W], NULL, d[C], lib.attr) == dnnl_success;
}
#else
typedef const dnnl_memory_desc_t *desc_ptr;
typedef dnnl_memory_desc_t desc;
static desc_ptr pointer_to(const desc *d) { return d; }
static bool describe(desc *d, const dnnl_dims_t dims, dnnl_data_type_t type, dnnl_format_tag_t tag) {
    return lib.dnnl_memory_desc_init_by_tag(d, 2, dims, type, tag) == dnnl_success;
}
static void forget(desc *d) { (void)d; }
static bool describe_product(dnnl_primitive_desc_t *out, const desc *d) {
    dnnl_matmul_desc_t op;
    return lib.dnnl_matmul_desc_init(&op, &d[A], &d[W], NULL, &d[C]) == dnnl_success &&
           lib.dnnl_primitive_desc_create(out, &op, lib.attr, lib.engine, NULL) == dnnl_success;
}
#endif

static void close_shape(void *p) {
    shape *s = p;
    if (!s) return;
    for (uint32_t i = 0; i < s->n_worker; i++) {
        for (uint32_t k = 0; k < N_MEMORY; k++)
            if (s->lanes[i].memory[k]) lib.dnnl_memory_destroy(s->lanes[i].memory[k]);
        if (s->lanes[i].stream) lib.dnnl_stream_destroy(s->lanes[i].stream);
    }
    if (s->primitive) lib.dnnl_primitive_destroy(s->primitive);
    free(s);
}

static bool open_lane(struct lane *lane, const desc *d, desc_ptr scratchpad) {
    for (uint32_t k = A; k <= C; k++)
        if (lib.dnnl_memory_create(&lane->memory[k], pointer_to(&d[k]), lib.engine, DNNL_MEMORY_NONE) != dnnl_success)
            return false;
    return lib.dnnl_memory_create(&lane->memory[SCRATCHPAD], scratchpad, lib.engine, DNNL_MEMORY_ALLOCATE) == dnnl_success &&
           lib.dnnl_stream_create(&lane->stream, lib.engine, dnnl_stream_default_flags) == dnnl_success;
}

/* The implementation must be one of tiles ("brg..."): the others are for shapes or CPUs that have none, and slower than ours. */
static bool has_tiles(dnnl_primitive_desc_t pd) {
    const char *name = "";
    return lib.dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) == dnnl_success && strstr(name, "brg");
}

static int open_described(shape *s, const desc *d) {
    dnnl_primitive_desc_t pd = NULL;
    if (!describe_product(&pd, d)) return stk_fail(STK_EUNSUPPORTED, "%s has no BF16 products for this CPU", lib.name);
    bool fits = has_tiles(pd), made = fits && lib.dnnl_primitive_create(&s->primitive, pd) == dnnl_success;
    desc_ptr scratchpad = lib.dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    s->scratchpad_bytes = lib.dnnl_memory_desc_get_size(scratchpad);
    for (uint32_t i = 0; i < s->n_worker; i++) made = made && open_lane(&s->lanes[i], d, scratchpad);
    lib.dnnl_primitive_desc_destroy(pd);
    if (!fits) return stk_fail(STK_EUNSUPPORTED, "%s has no BF16 tiles for this CPU", lib.name);
    return made ? STK_OK : stk_fail(STK_ENOMEM, "out of memory for the kernels of %s", lib.name);
}

static int open_shape(void **out, uint32_t n_tok, uint32_t n_rows, uint32_t n_in, uint32_t n_worker) {
    const dnnl_dims_t a = {n_tok, n_in}, w = {n_in, n_rows}, c = {n_tok, n_rows};
    desc d[3] = {0};
    shape *s = calloc(1, sizeof *s + n_worker * sizeof *s->lanes);
    if (!s) return stk_fail(STK_ENOMEM, "out of memory");
    s->n_worker = n_worker;
    int before = alone();
    int rc = describe(&d[A], a, dnnl_bf16, dnnl_ab) && describe(&d[W], w, dnnl_bf16, dnnl_BA16a16b2a) &&
                     describe(&d[C], c, dnnl_f32, dnnl_ab)
                 ? open_described(s, d)
                 : stk_fail(STK_EUNSUPPORTED, "%s does not know our layout", lib.name);
    not_alone(before);
    for (uint32_t k = A; k <= C; k++) forget(&d[k]);
    if (rc < 0) {
        close_shape(s);
        s = NULL;
    }
    *out = s;
    return rc;
}

static uint64_t shape_bytes(const void *p) {
    const shape *s = p;
    return sizeof *s + s->n_worker * (sizeof *s->lanes + s->scratchpad_bytes);
}

static bool run(void *p, uint32_t worker, const uint16_t *a, const void *w, float *c) {
    shape *s = p;
    struct lane *lane = &s->lanes[worker];
    /* oneDNN takes what it reads and what it writes through the same type. */
    const void *from[2] = {a, w};
    void *to[2];
    memcpy(to, from, sizeof to);
    int before = alone();
    bool ok = lib.dnnl_memory_set_data_handle(lane->memory[A], to[0]) == dnnl_success &&
              lib.dnnl_memory_set_data_handle(lane->memory[W], to[1]) == dnnl_success &&
              lib.dnnl_memory_set_data_handle(lane->memory[C], c) == dnnl_success;
    const dnnl_exec_arg_t args[N_MEMORY] = {{DNNL_ARG_SRC, lane->memory[A]},
                                            {DNNL_ARG_WEIGHTS, lane->memory[W]},
                                            {DNNL_ARG_DST, lane->memory[C]},
                                            {DNNL_ARG_SCRATCHPAD, lane->memory[SCRATCHPAD]}};
    ok = ok && lib.dnnl_primitive_execute(s->primitive, lane->stream, N_MEMORY, args) == dnnl_success;
    not_alone(before);
    return ok;
}

const char *stk_fast_onednn_name(void) {
    pthread_once(&once, load_once);
    return lib.name;
}

const stk_fast_unit *stk_fast_onednn(void) {
    static stk_fast_unit unit = {.name = lib.name, .open = open_shape, .close = close_shape, .bytes = shape_bytes, .run = run};
    pthread_once(&once, load_once);
    if (lib.ok) return &unit;
    (void)stk_fail(STK_EUNSUPPORTED, "%s", lib.name);
    return NULL;
}

#endif
