/* common: messages, stdout, signals, progress, files. */
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- Messages ------------------------------------------------------------------------------------------------------------ */

int cli_fail(int exit_code, const char *what, const char *fmt, ...) {
    va_list ap;
    cli_progress_clear();
    fprintf(stderr, "stoker: %s: ", what);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return exit_code;
}

int cli_fail_stk(int stk_code, const char *what) {
    if (stk_code == STK_ECANCELED && cli_signal()) return cli_signal_exit();
    const char *detail = stk_error_detail();
    return cli_fail(CLI_FAILED, what, "%s", *detail ? detail : stk_strerror(stk_code));
}

static void say(const char *fmt, va_list ap) CLI_PRINTF(1, 0);
static void say(const char *fmt, va_list ap) {
    cli_progress_clear();
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
}

void cli_say(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

static bool log_quiet;
static int log_most = STK_LOG_INFO;

void cli_note(const char *fmt, ...) {
    va_list ap;
    if (log_quiet) return;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

static void log_line(void *user, int level, const char *line) {
    (void)user;
    if (level > log_most) return;
    cli_say("stoker: %s%s", level == STK_LOG_ERROR ? "error: " : level == STK_LOG_WARN ? "warning: " : "", line);
}

void cli_log_open(bool verbose, bool quiet) {
    log_quiet = quiet;
    log_most = verbose ? STK_LOG_DEBUG : quiet ? STK_LOG_WARN : STK_LOG_INFO;
    stk_log_set(log_line, NULL);
}

/* ---- stdout -------------------------------------------------------------------------------------------------------------- */

static bool stdout_failed;

static int stdout_fail(void) {
    stdout_failed = true;
    if (errno == EINTR && cli_signal()) return cli_signal_exit();
    return cli_fail(CLI_FAILED, "writing to stdout", "%s", strerror(errno));
}

int cli_write(const void *data, size_t bytes) {
    if (stdout_failed) return CLI_FAILED;
    return fwrite(data, 1, bytes, stdout) == bytes && fflush(stdout) == 0 ? CLI_OK : stdout_fail();
}

int cli_print(const char *fmt, ...) {
    va_list ap;
    if (stdout_failed) return CLI_FAILED;
    va_start(ap, fmt);
    int n = vfprintf(stdout, fmt, ap);
    va_end(ap);
    return n < 0 ? stdout_fail() : CLI_OK;
}

/* ---- Signals ------------------------------------------------------------------------------------------------------------- */

/* Written by the handler, read by the one thread that it interrupts or that the step's workers serve. */
static volatile sig_atomic_t signal_seen;
static stk_engine *volatile signal_engine;

static void on_signal(int sig) {
    signal_seen = sig;
    stk_engine *engine = signal_engine;
    if (engine) stk_cancel(engine);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}

void cli_signals_open(void) {
    struct sigaction action = {.sa_handler = on_signal}; /* no SA_RESTART: reading a prompt from stdin ends as well */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* so is one beyond RLIMIT_FSIZE */
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a failed write, which is reported */
}

void cli_signals_watch(stk_engine *engine) { signal_engine = engine; }

int cli_signal(void) { return signal_seen; }

int cli_signal_exit(void) { return signal_seen ? 128 + signal_seen : CLI_OK; }

/* ---- Progress ------------------------------------------------------------------------------------------------------------ */

static bool bar_shown;
static double bar_drawn_at = -1e9;

double cli_now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void cli_progress_clear(void) {
    if (!bar_shown) return;
    fputs("\r\033[K", stderr);
    bar_shown = false;
}

int cli_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    enum { WIDTH = 32 };
    static const char full[] = "================================";
    char a[32], b[32];
    (void)user;
    if (cli_signal()) return 1;
    if (log_quiet || !isatty(STDERR_FILENO)) return 0;
    double now = cli_now();
    if (done < total && now - bar_drawn_at < 0.1) return 0;
    bar_drawn_at = now;
    bar_shown = done < total;
    double part = total ? (double)done / (double)total : 1;
    int n = (int)(part * WIDTH);
    if (n > WIDTH) n = WIDTH;
    if (bar_shown)
        fprintf(stderr, "\r\033[K%s [%-*.*s] %s of %s", what, WIDTH, n, full, cli_bytes_text(done, a), cli_bytes_text(total, b));
    else
        fputs("\r\033[K", stderr);
    return 0;
}

void cli_progress_text(const char *fmt, ...) {
    bool terminal = isatty(STDERR_FILENO);
    double now = cli_now();
    va_list ap;
    if (log_quiet || now - bar_drawn_at < (terminal ? 0.1 : 10)) return;
    bar_drawn_at = now;
    if (terminal) fputs("\r\033[K", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    if (!terminal) fputc('\n', stderr);
    bar_shown = terminal;
}

/* ---- Texts and files ----------------------------------------------------------------------------------------------------- */

int cli_buffer_add(cli_buffer *buffer, const void *data, size_t bytes) {
    if (bytes > buffer->cap - buffer->bytes) {
        size_t cap = buffer->cap ? buffer->cap : 4096;
        while (cap - buffer->bytes < bytes && cap <= SIZE_MAX / 2) cap *= 2;
        char *grown = cap - buffer->bytes >= bytes ? realloc(buffer->data, cap) : NULL;
        if (!grown) return cli_fail(CLI_FAILED, "out of memory", "a text of %zu bytes", buffer->bytes);
        buffer->data = grown;
        buffer->cap = cap;
    }
    if (bytes) memcpy(buffer->data + buffer->bytes, data, bytes);
    buffer->bytes += bytes;
    return CLI_OK;
}

int cli_read_file(cli_buffer *buffer, const char *path) {
    char block[65536];
    if (path && !strcmp(path, "-")) path = NULL;
    const char *name = path ? path : "stdin";
    int rc = CLI_OK, fd = path ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
    if (fd < 0 && cli_signal()) return cli_signal_exit(); /* it waited for somebody to write into a pipe */
    if (fd < 0) return cli_fail(CLI_FAILED, "reading the text", "%s: %s", name, strerror(errno));
    while (rc == CLI_OK) {
        ssize_t n = cli_signal() ? 0 : read(fd, block, sizeof block);
        if (cli_signal())
            rc = cli_signal_exit();
        else if (n == 0)
            break;
        else if (n > 0)
            rc = cli_buffer_add(buffer, block, (size_t)n);
        else if (errno != EINTR)
            rc = cli_fail(CLI_FAILED, "reading the text", "%s: %s", name, strerror(errno));
    }
    if (path) close(fd);
    return rc;
}

static bool write_all(int fd, const char *data, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* A file that is being written: beside its name, or a device, directly. */
typedef struct writing {
    char *real, *name; /* what `path` names, where it is a link; the file beside it, NULL for a device */
    const char *at;
    int fd; /* -1: errno says why */
} writing;

static void begin_writing(writing *w, const char *path) {
    struct stat st;
    *w = (writing){.real = realpath(path, NULL)};
    w->at = w->real ? w->real : path;
    bool direct = stat(w->at, &st) == 0 && !S_ISREG(st.st_mode);
    if (!direct && asprintf(&w->name, "%s.XXXXXX", w->at) < 0) w->name = NULL;
    w->fd = direct ? open(w->at, O_WRONLY | O_CLOEXEC) : w->name ? mkstemp(w->name) : -1;
}

static void end_writing(writing *w) {
    free(w->name);
    free(w->real);
}

int cli_try_file(const char *path, const char *what) {
    writing w;
    begin_writing(&w, path);
    int error = errno;
    if (w.fd >= 0) close(w.fd);
    if (w.fd >= 0 && w.name) unlink(w.name);
    end_writing(&w);
    return w.fd >= 0 ? CLI_OK : cli_fail(CLI_FAILED, what, "%s: %s", path, strerror(error));
}

int cli_write_file(const char *path, const char *what, const void *data, size_t bytes) {
    writing w;
    bool ok = false;
    mode_t mask = umask(0);
    umask(mask);
    begin_writing(&w, path);
    if (w.fd >= 0) {
        ok = write_all(w.fd, data, bytes) && (!w.name || fchmod(w.fd, 0666 & ~mask) == 0);
        ok = close(w.fd) == 0 && ok;
        if (ok && w.name) ok = rename(w.name, w.at) == 0;
    }
    int error = errno;
    if (w.fd >= 0 && w.name && !ok) unlink(w.name);
    end_writing(&w);
    return ok ? CLI_OK : cli_fail(CLI_FAILED, what, "%s: %s", path, strerror(error));
}

char *cli_bytes_text(uint64_t bytes, char *out) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)bytes;
    int i = -1;
    while (v >= 1023.95 && i < 5) {
        v /= 1024;
        i++;
    }
    if (i < 0)
        snprintf(out, 32, "%d B", (int)bytes);
    else
        snprintf(out, 32, "%.1f %s", v, units[i]);
    return out;
}

bool cli_same_file(const char *a, const char *b) {
    struct stat sa, sb;
    if (!a || !b) return false;
    if (!strcmp(a, b)) return true;
    return stat(a, &sa) == 0 && stat(b, &sb) == 0 && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

int cli_make_directories(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int rc = mkdir(path, 0777);
        int error = errno;
        *slash = '/';
        if (rc != 0 && error != EEXIST) return cli_fail(CLI_FAILED, "making a directory", "%s: %s", path, strerror(error));
    }
    return CLI_OK;
}
