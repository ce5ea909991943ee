/* self_test: each broken kernel goes through its check in a child process, which must end with a mismatch or a fault. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broken.h"

static bool run_check(const char *op, const stk_cpu_ops *ops) {
    if (strcmp(op, "table") == 0) return check_table(ops);
    for (uint32_t i = 0; i < check_n_op; i++)
        if (strcmp(op, check_ops[i].name) == 0) return check_ops[i].check(ops);
    _exit(2);
}

/* The child's first line of failure goes to `text`; returns its exit status, -1 if it did not end by itself. */
static int run_broken(const broken *b, char *text, size_t bytes) {
    int fd[2], status;
    if (pipe(fd)) return -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(fd[1], STDERR_FILENO);
        stk_cpu_ops ops = stk_cpu_ops_ref;
        ops.name = "broken";
        b->install(&ops);
        _exit(run_check(b->op, &ops) ? 0 : CHECK_MISMATCH);
    }
    close(fd[1]);
    size_t n = 0;
    for (ssize_t got; n + 1 < bytes && (got = read(fd[0], text + n, bytes - 1 - n)) > 0;) n += (size_t)got;
    text[n] = 0;
    text[strcspn(text, "\n")] = 0;
    close(fd[0]);
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static uint32_t run_group(const broken *group, uint32_t n) {
    uint32_t n_missed = 0;
    for (uint32_t i = 0; i < n; i++) {
        char text[1024];
        int status = run_broken(&group[i], text, sizeof text);
        bool caught = status == CHECK_MISMATCH || status == CHECK_FAULT;
        n_missed += !caught;
        printf("%s %s: %s\n    %s\n", caught ? "caught" : "MISSED", group[i].op, group[i].bug, text);
    }
    return n_missed;
}

int check_self_test(void) {
    printf("seed %llu\n", (unsigned long long)check_seed_get());
    uint32_t n_missed = run_group(broken_products, n_broken_products) + run_group(broken_vectors, n_broken_vectors);
    printf("%u broken kernels, %u missed\n", n_broken_products + n_broken_vectors, n_missed);
    return n_missed ? 1 : 0;
}
