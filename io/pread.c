/*
 * pread: a pool of reader threads that take pieces from a queue; the reference for the other backends, and the fallback.
 *
 * `lock` guards both lists and `stop`. The owner sleeps in ppoll on an eventfd and not on a condition variable: a signal must
 * interrupt it. The readers block all signals, so that those come to the owner.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "io/backend.h"

enum { MAX_READERS = 8 };

typedef struct piece_list {
    stk_io_piece *head;
    stk_io_piece *tail;
} piece_list;

typedef struct pread_pool {
    pthread_mutex_t lock;
    pthread_cond_t work_there;
    piece_list work;
    piece_list done;
    bool stop;
    int done_fd; /* readable when `done` became non-empty */
    uint32_t depth;
    uint32_t n_thread;
    pthread_t threads[MAX_READERS];
} pread_pool;

static void list_push(piece_list *list, stk_io_piece *piece) {
    piece->next = NULL;
    if (list->head)
        list->tail->next = piece;
    else
        list->head = piece;
    list->tail = piece;
}

static stk_io_piece *list_pop(piece_list *list) {
    stk_io_piece *piece = list->head;
    if (piece) list->head = piece->next;
    return piece;
}

static bool list_remove(piece_list *list, const stk_io_piece *piece) {
    stk_io_piece *before = NULL;
    for (stk_io_piece *p = list->head; p; before = p, p = p->next) {
        if (p != piece) continue;
        if (before)
            before->next = p->next;
        else
            list->head = p->next;
        if (list->tail == p) list->tail = before;
        return true;
    }
    return false;
}

/* Under the lock. Wakes the owner when there was nothing for it before. */
static void hand_back(pread_pool *pool, stk_io_piece *piece) {
    bool was_empty = !pool->done.head;
    list_push(&pool->done, piece);
    if (was_empty) eventfd_write(pool->done_fd, 1);
}

static void *reader(void *user) {
    pread_pool *pool = user;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        stk_io_piece *piece = list_pop(&pool->work);
        if (!piece) {
            if (pool->stop) break;
            pthread_cond_wait(&pool->work_there, &pool->lock);
            continue;
        }
        pthread_mutex_unlock(&pool->lock);
        ssize_t n = pread(piece->fd, piece->dst, piece->bytes, (off_t)piece->offset);
        piece->res = n < 0 ? -errno : (int)n;
        piece->done_ns = stk_now_ns();
        pthread_mutex_lock(&pool->lock);
        hand_back(pool, piece);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void pool_close(void *state) {
    pread_pool *pool = state;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work_there);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_thread; i++) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->work_there);
    pthread_mutex_destroy(&pool->lock);
    close(pool->done_fd);
    free(pool);
}

static void pool_submit(void *state, stk_io_piece *const *pieces, uint32_t n) {
    pread_pool *pool = state;
    pthread_mutex_lock(&pool->lock);
    for (uint32_t i = 0; i < n; i++) {
        list_push(&pool->work, pieces[i]);
        pthread_cond_signal(&pool->work_there);
    }
    pthread_mutex_unlock(&pool->lock);
}

static int take_done(pread_pool *pool, stk_io_piece **done) {
    uint32_t n = 0;
    pthread_mutex_lock(&pool->lock);
    while (n < pool->depth && (done[n] = list_pop(&pool->done))) n++;
    pthread_mutex_unlock(&pool->lock);
    return (int)n;
}

int stk_io_pread_reap(void *state, stk_io_piece **done, uint64_t wait_ns) {
    pread_pool *pool = state;
    uint64_t now = stk_now_ns(), end = wait_ns < UINT64_MAX - now ? now + wait_ns : UINT64_MAX;
    for (;;) {
        int n = take_done(pool, done);
        now = stk_now_ns();
        if (n > 0 || now >= end) return n;
        struct timespec left = {(time_t)((end - now) / 1000000000u), (long)((end - now) % 1000000000u)};
        struct pollfd fd = {.fd = pool->done_fd, .events = POLLIN};
        int rc = ppoll(&fd, 1, end == UINT64_MAX ? NULL : &left, NULL);
        if (rc < 0 && errno == EINTR) return 0;
        if (rc < 0) return stk_fail_errno(errno, "io: waiting for the pread threads");
        eventfd_t count;
        if (rc > 0) eventfd_read(pool->done_fd, &count); /* may be of pieces taken before; the list decides */
    }
}

static int pool_reap(void *state, stk_io_piece **done, bool wait) {
    return stk_io_pread_reap(state, done, wait ? UINT64_MAX : 0);
}

static void pool_cancel(void *state, stk_io_piece *piece) {
    pread_pool *pool = state;
    pthread_mutex_lock(&pool->lock);
    if (list_remove(&pool->work, piece)) {
        piece->res = -ECANCELED;
        piece->done_ns = stk_now_ns();
        hand_back(pool, piece);
    }
    pthread_mutex_unlock(&pool->lock);
}

static const stk_io_ops pread_ops = {"pread", pool_close, pool_submit, pool_reap, pool_cancel, NULL};

/* Threads inherit the mask of their maker. */
static int start_readers(pread_pool *pool) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int errnum = 0;
    uint32_t n = STK_MIN(pool->depth, (uint32_t)MAX_READERS);
    for (uint32_t i = 0; i < n && errnum == 0; i++) {
        errnum = pthread_create(&pool->threads[i], NULL, reader, pool);
        if (errnum) break;
        char name[16];
        snprintf(name, sizeof name, "stk-read-%u", i);
        pthread_setname_np(pool->threads[i], name);
        pool->n_thread++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return errnum ? stk_fail(STK_ENOMEM, "io: cannot start %u reader threads: %s", n, strerror(errnum)) : 0;
}

int stk_io_pread_open(stk_io_backend *out, const stk_io_setup *setup) {
    pread_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return stk_fail(STK_ENOMEM, "io: no memory for the pread threads");
    pool->depth = setup->depth;
    pool->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (pool->done_fd < 0) {
        int rc = stk_fail_errno(errno, "io: eventfd");
        free(pool);
        return rc;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work_there, NULL);
    int rc = start_readers(pool);
    if (rc < 0) {
        pool_close(pool);
        return rc;
    }
    *out = (stk_io_backend){&pread_ops, pool};
    return 0;
}
