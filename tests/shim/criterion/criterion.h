/*
 * criterion: the part of Criterion's interface that the unit tests use, for builds with the thread sanitizer: Criterion keeps its
 * workers' memory at addresses that this sanitizer reserves, and does not start under it.
 *
 * Each test runs in a child process, as in Criterion; a failed assertion or a report of the sanitizer ends the child with an
 * error.
 */
#ifndef STK_SHIM_CRITERION_H
#define STK_SHIM_CRITERION_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct shim_options {
    void (*init)(void), (*fini)(void);
    bool disabled;
    double timeout;
} shim_options;

typedef struct shim_test {
    const char *suite, *name; /* name NULL: the options of a suite */
    void (*body)(void);
    const shim_options *options;
    struct shim_test *next;
} shim_test;

static shim_test *shim_tests;

static inline void shim_register(shim_test *test) {
    test->next = shim_tests;
    shim_tests = test;
}

#define SHIM_ADD(id, suite_, name_, body_, ...)                                                                                  \
    static const shim_options shim_options_##id = {__VA_ARGS__};                                                                 \
    static shim_test shim_test_##id = {suite_, name_, body_, &shim_options_##id, NULL};                                          \
    __attribute__((constructor)) static void shim_add_##id(void) { shim_register(&shim_test_##id); }

#define Test(suite, name, ...)                                                                                                   \
    static void shim_body_##suite##_##name(void);                                                                                \
    SHIM_ADD(suite##_##name, #suite, #name, shim_body_##suite##_##name, .disabled = false, __VA_ARGS__)                          \
    static void shim_body_##suite##_##name(void)

#define TestSuite(suite, ...) SHIM_ADD(suite, #suite, NULL, NULL, .disabled = false, __VA_ARGS__)

enum { SHIM_SKIPPED = 77 };

/* Criterion shows these only when asked to; here they are compiled and dropped. */
#define cr_log_info(...) ((void)sizeof(printf(__VA_ARGS__)))

__attribute__((format(printf, 4, 5), noreturn)) static inline void shim_fail(const char *file, int line, const char *what,
                                                                             const char *fmt, ...) {
    fprintf(stderr, "%s:%d: assertion failed: %s ", file, line, what);
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    _exit(1);
}

#define SHIM_CHECK(ok, what, ...)           ((ok) ? (void)0 : shim_fail(__FILE__, __LINE__, what, " " __VA_ARGS__))
#define cr_assert(c, ...)                   SHIM_CHECK(c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...)               SHIM_CHECK(!(c), "not " #c, __VA_ARGS__)
#define cr_assert_eq(a, b, ...)             SHIM_CHECK((a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...)            SHIM_CHECK((a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...)             SHIM_CHECK((a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...)            SHIM_CHECK((a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...)             SHIM_CHECK((a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...)            SHIM_CHECK((a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_null(p, ...)              SHIM_CHECK((p) == NULL, #p " is NULL", __VA_ARGS__)
#define cr_assert_not_null(p, ...)          SHIM_CHECK((p) != NULL, #p " is not NULL", __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...)         SHIM_CHECK(strcmp(a, b) == 0, #a " equals " #b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...)        SHIM_CHECK(strcmp(a, b) != 0, #a " differs from " #b, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, bytes, ...)  SHIM_CHECK(memcmp(a, b, bytes) == 0, #a " equals " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, eps, ...)  SHIM_CHECK((a) - (b) <= (eps) && (b) - (a) <= (eps), #a " is near " #b, __VA_ARGS__)
#define cr_assert_float_neq(a, b, eps, ...) SHIM_CHECK((a) - (b) > (eps) || (b) - (a) > (eps), #a " is far from " #b, __VA_ARGS__)
#define cr_assert_arr_neq(a, b, bytes, ...) SHIM_CHECK(memcmp(a, b, bytes) != 0, #a " differs from " #b, __VA_ARGS__)
/* An expectation that fails ends the test here, where Criterion goes on to say more. */
#define cr_expect           cr_assert
#define cr_expect_eq        cr_assert_eq
#define cr_expect_gt        cr_assert_gt
#define cr_expect_str_eq    cr_assert_str_eq
#define cr_assert_fail(...) shim_fail(__FILE__, __LINE__, "", " " __VA_ARGS__)
#define cr_skip_test(...)   (fprintf(stderr, "skipped: " __VA_ARGS__), fputc('\n', stderr), _exit(SHIM_SKIPPED))

static void shim_run_body(const shim_test *test) {
    const shim_options *suite = NULL;
    for (const shim_test *s = shim_tests; s; s = s->next)
        if (!s->name && strcmp(s->suite, test->suite) == 0) suite = s->options;
    if (suite && suite->init) suite->init();
    if (test->options->init) test->options->init();
    test->body();
    if (test->options->fini) test->options->fini();
    if (suite && suite->fini) suite->fini();
    exit(0); /* with the sanitizer's last look */
}

int main(int argc, char **argv) {
    FILE *tap = NULL; /* --tap=FILE, as in Criterion */
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--tap=", 6) == 0) tap = fopen(argv[i] + 6, "we");
    unsigned n_run = 0, n_failed = 0, n_skipped = 0;
    for (const shim_test *test = shim_tests; test; test = test->next) {
        if (!test->name || test->options->disabled) continue;
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) shim_run_body(test);
        int status;
        if (child < 0 || waitpid(child, &status, 0) < 0) return 2;
        bool skipped = WIFEXITED(status) && WEXITSTATUS(status) == SHIM_SKIPPED,
             ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        n_run++;
        n_skipped += skipped;
        n_failed += !ok && !skipped;
        if (tap)
            fprintf(tap, "%s - %s::%s%s\n", ok || skipped ? "ok" : "not ok", test->suite, test->name,
                    skipped ? "  # SKIP said on stderr" : "");
        if (!ok) fprintf(stderr, "%s: %s::%s\n", skipped ? "skipped" : "failed", test->suite, test->name);
    }
    if (tap) fclose(tap);
    fprintf(stderr, "tested %u, failed %u, skipped %u\n", n_run, n_failed, n_skipped);
    return n_failed ? 1 : n_run == n_skipped ? SHIM_SKIPPED : 0;
}

#endif
