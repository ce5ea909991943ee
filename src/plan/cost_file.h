/*
 * cost_file: what `stoker doctor --calibrate` measured on a machine, as a JSON file, and the cost table that follows for a model.
 * Files of a few known machines are part of the library and are opened by name (src/machine/known, each figure with its source).
 *
 *     {
 *       "stoker_cost": 1,                      the version of this form
 *       "machine": "...", "cpu": "avx512",     name of the CPU, kernels
 *       "threads": 2,
 *       "limits": {"read_bytes_per_s", "int8_ops_per_s", "float_ops_per_s", "run_ns", "phase_ns",       as in stk_limits
 *                  "wake_ns"},                                                                          as in cost.h
 *       "drive": {"io": "uring",
 *                 "bytes_per_s": x,            reading experts as the engine does, nothing else going on
 *                 "bytes_per_s_computing": x,  the same while all threads compute experts,
 *                 "compute_slowdown": x,       and how many times longer those then take
 *                 "latency_ns": x},            of one small read
 *       "formats": {"Q4_K": {"expert_ns_per_byte": [10 numbers], "arrive_ns_per_byte": x}, ... all with a kernel},
 *       "gpu": {                               optional
 *         "name": "...", "vram_bytes": n,
 *         "launch_ns", "return_ns", "link_bytes_per_s", "link_bytes_per_s_computing", "link_latency_ns", "cpu_slowdown",    as in
 *                                              stk_cost_gpu
 *         "dense_layer_ns": x,                 the dense part of a layer there, whatever its size, and
 *         "dense_ns_per_byte": [10 numbers],   what its weights take
 *         "formats": {"Q4_K": {"expert_ns_per_byte": [10 numbers]}, ...}},
 *       "model": {                             optional: measured with this model, and used for it
 *         "name": "...", "file_bytes": n,
 *         "expert_ns_per_byte": [10], "arrive_ns_per_byte": x, "dense_layer_ns": [10], "dense_step_ns": [10],
 *         "event_ns", "lookahead_ns", "read_ns_per_byte"}                                                 as in cost.h
 *     }
 *
 * Lists are by token count, 1, 2, 4, ... 512 (cost.h). All numbers are positive; what stands as in cost.h may be missing. Keys
 * that are not known are passed over.
 *
 * Who may call it: src/. Threads: pure but for the file. The file appears whole or not at all.
 */
#ifndef STK_COST_FILE_H
#define STK_COST_FILE_H

#include "cost.h"
#include "src/model/model.h"

enum { STK_COST_N_FORMAT = 8, STK_COST_NAME_BYTES = 128 };
/* Formats with a kernel, in the order of the tables below. */
extern const enum stk_type stk_cost_formats[STK_COST_N_FORMAT];

typedef struct stk_cost_format {
    double expert_ns_per_byte[STK_COST_POINTS];
    double arrive_ns_per_byte;
} stk_cost_format;

typedef struct stk_cost_file_gpu {
    char name[STK_COST_NAME_BYTES]; /* "": no GPU */
    double vram_bytes, launch_ns, return_ns, link_bytes_per_s, link_bytes_per_s_computing, link_latency_ns, cpu_slowdown;
    double dense_layer_ns, dense_ns_per_byte[STK_COST_POINTS];
    double expert_ns_per_byte[STK_COST_N_FORMAT][STK_COST_POINTS];
} stk_cost_file_gpu;

typedef struct stk_cost_file {
    char machine[STK_COST_NAME_BYTES], cpu[16];
    uint32_t n_threads;
    double read_bytes_per_s, int8_ops_per_s, float_ops_per_s, run_ns, phase_ns, wake_ns; /* wake_ns 0: not known */
    char io[16];
    double drive_bytes_per_s, drive_bytes_per_s_computing, compute_slowdown, drive_latency_ns;
    stk_cost_format formats[STK_COST_N_FORMAT];
    stk_cost_file_gpu gpu;
    bool has_model;
    char model[STK_COST_NAME_BYTES];
    uint64_t model_bytes; /* of its files */
    stk_cost_format experts;
    double dense_layer_ns[STK_COST_POINTS], dense_step_ns[STK_COST_POINTS];
    double event_ns, lookahead_ns, read_ns_per_byte; /* 0: not known */
} stk_cost_file;

/* Whether the file is one of these by its content, whole or not: an object of JSON. Errors: STK_EIO (missing, unreadable). */
int stk_cost_file_probe(const char *path, bool *is_one) STK_CHECKED;
/* A path, or the name of a known machine (stk_cost_machine) where there is no such file. Errors: STK_EIO (missing, unreadable),
 * STK_EFORMAT (names the file and the field), STK_ENOMEM. */
int stk_cost_file_load(const char *path, stk_cost_file *out) STK_CHECKED;
/* Errors: STK_EINVAL (something that is no regular file stands there), STK_EIO, STK_ENOSPC, STK_ENOMEM; the file that stood there
 * stays then. */
int stk_cost_file_save(const char *path, const stk_cost_file *file) STK_CHECKED;

/*
 * The table to start from. A model that was calibrated with, or NULL where there is one in the file, has its own figures; another
 * has those of its experts' formats by their bytes, and its dense part from the bytes of its matrices and the limits of the
 * machine. NULL without a model in the file: experts of Q4_K, a dense part of a plain desktop.
 */
void stk_cost_file_table(const stk_cost_file *file, const stk_model *model, stk_cost *out);
/* The same with the GPU, which has the dense part; NULL without a model: that of Qwen3-30B-A3B. STK_EINVAL: the file has none. */
int stk_cost_file_table_gpu(const stk_cost_file *file, const stk_model *model, stk_cost *out) STK_CHECKED;

/* The text of a known machine's file, NULL when there is none of that name. */
const char *stk_machine_text(const char *name, size_t *bytes);

#endif
