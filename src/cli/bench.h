/*
 * bench: the tests that `stoker bench` runs, and their figures on the way to a table, CSV, JSON or a picture.
 */
#ifndef STK_CLI_BENCH_H
#define STK_CLI_BENCH_H

#include "session.h"

typedef struct bench_test {
    char name[48];
    uint32_t n_prompt, n_gen, n_depth; /* one of the first two is 0 */
    uint32_t n_sample;
    double *samples;                         /* [n_sample] tok/s, in the order of the runs */
    double tok_s, mean, stddev, least, most; /* of the samples; tok_s is the median */
    double median_ns;                        /* of a step's time a token */
    double seconds;                          /* of all samples */
    uint64_t n_token, n_step;
    stk_stats stats;
    uint64_t stage_ns[STK_N_STAGE], bytes, int8_ops, float_ops; /* sums, as of stk_profile */
} bench_test;

/* What the machine can do, measured now or by a calibration; figures that are not known are 0. */
typedef struct bench_limits {
    stk_limits machine;
    double layer_ns, router_ns;
    double drive_bytes_per_s, drive_after_bytes_per_s; /* before and after the tests */
} bench_limits;

typedef struct bench {
    const cli_settings *settings;
    cli_session session;
    bench_limits limits;
    bench_test *tests; /* [n_test] */
    uint32_t n_test;
    int32_t *tokens; /* [n_ctx] */
    double *step_ns; /* [n_step_max] a token, of the running test */
    size_t n_step, n_step_max;
    uint32_t n_ctx, n_batch;
    uint64_t random;
} bench;

/* Shares of the limits while a test runs, 0 where the limit is not known. */
double bench_read_share(const bench *b, const bench_test *t);
double bench_int8_share(const bench *b, const bench_test *t);

/* The results on stdout, by -o (bench_report.c). */
int bench_report(const bench *b);

/* One step as a picture (bench_svg.c); `what` goes into its title. Nothing of the file is left after a failure. */
int bench_svg(const char *path, const char *what, const stk_profile *step);

#endif
