/* tune_jobs: replays side by side, and the file that keeps their results. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tune.h"

enum { STATE_VERSION = 1, STATE_MAX_BYTES = 256 << 20, WAIT_NS = 100000000, ERROR_BYTES = 512, MOST_THREADS = 256 };
static const uint64_t save_every_ns = 10000000000u;

/* ---- One replay ---------------------------------------------------------------------------------------------------------- */

typedef struct crew {
    stk_tuning *tune;
    const uint32_t *todo; /* [n] numbers of jobs */
    uint32_t n;
    atomic_uint next;   /* relaxed: each number is taken once, and what it stands for was there before the threads */
    atomic_bool cancel; /* relaxed: it carries no data */
    pthread_mutex_t lock;
    pthread_cond_t done; /* a job has ended, or failed */
    /* Under the lock: */
    uint32_t n_ended, n_running;
    int rc; /* the first failure */
    char why[ERROR_BYTES];
} crew;

typedef struct sums {
    stk_tune_job *job;
    const stk_tune_traces *traces;
    stk_stats before;
} sums;

static void stepped(void *user, uint64_t i, enum stk_phase phase, const stk_stats *now) {
    sums *s = user;
    if (i >= s->traces->n_step) return;
    stk_tune_sum *to = &s->job->sums[s->traces->part[i]][phase];
    const stk_stats *was = &s->before;
    to->v[STK_TUNE_TOKENS] += now->n_token - was->n_token;
    to->v[STK_TUNE_LOOKUPS] += now->n_lookup - was->n_lookup;
    to->v[STK_TUNE_HITS] += now->n_hit - was->n_hit;
    to->v[STK_TUNE_BYTES] += now->bytes - was->bytes;
    to->v[STK_TUNE_STEP_NS] += now->step_ns - was->step_ns;
    to->v[STK_TUNE_DENSE_NS] += now->dense_ns - was->dense_ns;
    to->v[STK_TUNE_EXPERT_NS] += now->expert_ns - was->expert_ns;
    to->v[STK_TUNE_ARRIVE_NS] += now->arrive_ns - was->arrive_ns;
    to->v[STK_TUNE_WAIT_NS] += now->wait_ns - was->wait_ns;
    s->before = *now;
}

static int is_cancelled(void *user, const char *what, uint64_t done, uint64_t total) {
    crew *c = user;
    (void)what;
    (void)done;
    (void)total;
    return atomic_load_explicit(&c->cancel, memory_order_relaxed);
}

static int replay(crew *c, stk_tune_job *job) {
    const stk_tuning *t = c->tune;
    const stk_tune_config *config = &job->config;
    const stk_policy_ops *ops = stk_tune_policy(config);
    stk_replay_options o;
    stk_replay_result result = {.struct_bytes = sizeof result};
    sums s = {.job = job, .traces = &t->traces};
    stk_replay_inside inside = {.stepped = stepped, .user = &s};
    uint32_t *n_slot = NULL;
    int rc = STK_OK;
    if (config->fitted) {
        n_slot = calloc(t->traces.n_layer, sizeof *n_slot);
        if (!n_slot) return stk_fail(STK_ENOMEM, "out of memory for tuning");
        inside.layer_slots = n_slot;
        STK_TRYGOTO(stk_tune_traces_fit(&t->traces, config->ram_bytes, ops && ops->admit ? t->traces.k : 0, job->without, n_slot),
                    rc, out);
    }
    stk_replay_options_default(&o, sizeof o);
    if (ops && ops->needs_future) /* a bound: what it refuses takes no bytes */
        o.fraction = (double)config->ram_bytes / (double)t->traces.all_bytes;
    else
        o.ram_bytes = config->ram_bytes;
    o.policy = config->policy;
    o.scope = config->scope;
    o.predictor = config->predictor;
    o.predict_depth = config->depth;
    o.io = config->timed ? t->o.io : NULL;
    o.cost = config->timed ? t->o.cost : NULL;
    o.expert_bytes = t->o.expert_bytes;
    o.model = t->o.model;
    o.model_shape = t->o.model_shape;
    o.seed = t->o.seed;
    o.progress = is_cancelled;
    o.progress_user = c;
    memset(job->sums, 0, sizeof job->sums);
    rc = stk_replay_run(t->traces.paths, t->traces.n_path, &o, &inside, &result);
out:
    free(n_slot);
    return rc;
}

/* ---- The crew ------------------------------------------------------------------------------------------------------------ */

static void *work(void *user) {
    crew *c = user;
    stk_log_hush(true); /* what a replay warns of was said at the beginning, or is of configurations that nobody asked for */
    for (uint32_t i; (i = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed)) < c->n;) {
        stk_tune_job *job = &c->tune->jobs[c->todo[i]];
        int rc = atomic_load_explicit(&c->cancel, memory_order_relaxed) ? STK_ECANCELED : replay(c, job);
        pthread_mutex_lock(&c->lock);
        /* Too small a budget for this one is an answer, too: it is no candidate. */
        job->done = rc >= 0 || rc == STK_EBUDGET;
        if (rc == STK_EBUDGET) memset(job->sums, 0, sizeof job->sums);
        c->n_ended += job->done;
        if (!job->done && c->rc == STK_OK) {
            c->rc = rc;
            char config[STK_TUNE_TEXT];
            stk_tune_job_text(job, config);
            snprintf(c->why, sizeof c->why, "%s (replaying %.200s)", stk_error_detail(), config);
            atomic_store_explicit(&c->cancel, true, memory_order_relaxed);
        }
        pthread_cond_signal(&c->done);
        pthread_mutex_unlock(&c->lock);
    }
    pthread_mutex_lock(&c->lock);
    c->n_running--;
    pthread_cond_signal(&c->done);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Shows progress until all threads have ended, and saves the state now and then. The lock is held but while it waits. */
static int watch(crew *c) {
    stk_tuning *t = c->tune;
    uint64_t saved_at = stk_now_ns();
    bool cancelled = false;
    while (c->n_running) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WAIT_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&c->done, &c->lock, &until);
        uint32_t n_done = t->n_done + c->n_ended;
        bool save = t->o.state && stk_now_ns() - saved_at > save_every_ns;
        if (save && stk_tune_state_save(t) >= 0) saved_at = stk_now_ns();
        pthread_mutex_unlock(&c->lock);
        if (t->o.progress && !cancelled &&
            t->o.progress(t->o.progress_user, "tune", n_done, STK_MAX(t->n_expected, n_done + 1))) {
            cancelled = true;
            atomic_store_explicit(&c->cancel, true, memory_order_relaxed);
        }
        pthread_mutex_lock(&c->lock);
    }
    return cancelled ? stk_fail(STK_ECANCELED, "tuning was cancelled") : STK_OK;
}

static uint32_t n_threads(const stk_tuning *t, uint32_t n_todo) {
    stk_machine_info m = {.struct_bytes = sizeof m};
    uint32_t n = t->o.n_threads ? t->o.n_threads : stk_get_machine(&m) >= 0 ? m.n_threads : 1;
    return STK_MAX(STK_MIN(STK_MIN(n, n_todo), (uint32_t)MOST_THREADS), 1u);
}

static int run_crew(crew *c) {
    uint32_t n = n_threads(c->tune, c->n), started = 0;
    pthread_t threads[MOST_THREADS];
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->done, NULL);
    pthread_mutex_lock(&c->lock);
    int error = 0;
    while (started < n && !(error = pthread_create(&threads[started], NULL, work, c))) {
        started++;
        c->n_running++;
    }
    int rc = started ? watch(c) : stk_fail_errno(error, "no thread for the replays");
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    pthread_cond_destroy(&c->done);
    pthread_mutex_destroy(&c->lock);
    c->tune->n_done += c->n_ended;
    return rc < 0 ? rc : c->rc < 0 ? stk_fail(c->rc, "%s", c->why) : STK_OK;
}

int stk_tune_run(stk_tuning *t) {
    uint32_t *todo = calloc(t->n_job + 1, sizeof *todo);
    if (!todo) return stk_fail(STK_ENOMEM, "out of memory for tuning");
    crew c = {.tune = t, .todo = todo};
    for (uint32_t i = 0; i < t->n_job; i++)
        if (!t->jobs[i].done) todo[c.n++] = i;
    int rc = c.n ? run_crew(&c) : STK_OK;
    free(todo);
    if (rc >= 0 || !t->o.state) return rc;
    char why[ERROR_BYTES];
    snprintf(why, sizeof why, "%s", stk_error_detail());
    STK_TRY(stk_tune_state_save(t));
    return stk_fail(rc, "%s", why);
}

const stk_policy_ops *stk_tune_policy(const stk_tune_config *config) {
    return stk_policy_find(stk_spec_parse(config->policy).name);
}

bool stk_tune_same(const stk_tune_config *a, const stk_tune_config *b) {
    return strcmp(a->policy, b->policy) == 0 && strcmp(a->predictor, b->predictor) == 0 && a->depth == b->depth &&
           a->scope == b->scope && a->fitted == b->fitted && a->timed == b->timed && a->ram_bytes == b->ram_bytes;
}

int stk_tune_add(stk_tuning *t, const stk_tune_config *config, int without) {
    for (uint32_t i = 0; i < t->n_job; i++)
        if (stk_tune_same(&t->jobs[i].config, config) && t->jobs[i].without == without) return (int)i;
    if (t->n_job == t->job_room) {
        uint32_t room = STK_MAX(2 * t->job_room, 64u);
        stk_tune_job *more = realloc(t->jobs, room * sizeof *more);
        if (!more) return stk_fail(STK_ENOMEM, "out of memory for tuning");
        t->jobs = more;
        t->job_room = room;
    }
    stk_tune_job *job = &t->jobs[t->n_job];
    *job = (stk_tune_job){.config = *config, .without = without};
    for (uint32_t i = 0; i < t->n_kept; i++) {
        if (!t->kept[i].done || t->kept[i].without != without || !stk_tune_same(&t->kept[i].config, config)) continue;
        *job = t->kept[i];
        t->kept[i].done = false; /* it is a job now */
        t->n_resumed++;
        t->n_done++;
    }
    return (int)t->n_job++;
}

/* ---- The state ----------------------------------------------------------------------------------------------------------- */

void stk_tune_job_text(const stk_tune_job *job, char out[STK_TUNE_TEXT]) {
    const stk_tune_config *c = &job->config;
    char without[16] = "";
    if (job->without != STK_TUNE_ALL) snprintf(without, sizeof without, " -%d", job->without);
    snprintf(out, STK_TUNE_TEXT, "%s %s%s%s %s@%u%s %" PRIu64, c->policy, c->scope == STK_SCOPE_LAYER ? "layer" : "global",
             c->fitted ? " fitted" : "", without, c->predictor, c->depth, c->timed ? " timed" : "", c->ram_bytes);
}

static cJSON *job_json(const stk_tune_job *job, uint32_t n_part) {
    char text[STK_TUNE_TEXT];
    cJSON *o = cJSON_CreateObject(), *list;
    const stk_tune_config *c = &job->config;
    stk_tune_job_text(job, text);
    cJSON_AddStringToObject(o, "what", text);
    cJSON_AddStringToObject(o, "policy", c->policy);
    cJSON_AddStringToObject(o, "predictor", c->predictor);
    const double numbers[] = {c->depth, c->scope, c->fitted, c->timed, (double)c->ram_bytes, job->without};
    cJSON_AddItemToObject(o, "numbers", cJSON_CreateDoubleArray(numbers, STK_ARRAY_LEN(numbers)));
    list = cJSON_AddArrayToObject(o, "figures");
    for (uint32_t p = 0; p < n_part; p++)
        for (int phase = 0; phase < 2; phase++)
            for (int f = 0; f < STK_TUNE_N_FIGURE; f++)
                cJSON_AddItemToArray(list, cJSON_CreateNumber((double)job->sums[p][phase].v[f]));
    return o;
}

int stk_tune_state_save(const stk_tuning *t) {
    cJSON *root = cJSON_CreateObject();
    char hash[24];
    if (!t->o.state) {
        cJSON_Delete(root);
        return STK_OK;
    }
    snprintf(hash, sizeof hash, "%016" PRIx64, t->state_hash);
    cJSON_AddNumberToObject(root, "stoker_tune", STATE_VERSION);
    cJSON_AddStringToObject(root, "of", hash);
    cJSON *list = cJSON_AddArrayToObject(root, "replays");
    for (uint32_t i = 0; i < t->n_job; i++)
        if (t->jobs[i].done) cJSON_AddItemToArray(list, job_json(&t->jobs[i], t->traces.n_part));
    for (uint32_t i = 0; i < t->n_kept; i++)
        if (t->kept[i].done) cJSON_AddItemToArray(list, job_json(&t->kept[i], t->traces.n_part));
    char *text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    if (!text) return stk_fail(STK_ENOMEM, "%s: out of memory", t->o.state);
    int rc = stk_text_file_save(t->o.state, "state of tuning", text, strlen(text));
    cJSON_free(text);
    return rc;
}

static bool take_text(const cJSON *from, const char *key, char *out, size_t bytes) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
    if (!cJSON_IsString(item) || strlen(item->valuestring) >= bytes) return false;
    memcpy(out, item->valuestring, strlen(item->valuestring) + 1);
    return true;
}

/* A list of exactly n whole numbers that a double holds. */
static bool take_numbers(const cJSON *from, const char *key, double least, double *out, int n) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(from, key), *item;
    int i = 0;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != n) return false;
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= least && item->valuedouble < 0x1p63)) return false;
        out[i++] = item->valuedouble;
    }
    return true;
}

static bool take_job(stk_tuning *t, const cJSON *from) {
    stk_tune_config c = {0};
    double n[6], figures[STK_TUNE_PARTS * 2 * STK_TUNE_N_FIGURE];
    if (!take_text(from, "policy", c.policy, sizeof c.policy) || !take_text(from, "predictor", c.predictor, sizeof c.predictor) ||
        !take_numbers(from, "numbers", STK_TUNE_ALL, n, 6) ||
        !take_numbers(from, "figures", 0, figures, (int)(t->traces.n_part * 2 * STK_TUNE_N_FIGURE)))
        return false;
    for (int k = 0; k < 5; k++)
        if (n[k] < 0) return false;
    c.depth = (uint32_t)n[0];
    c.scope = (uint32_t)n[1];
    c.fitted = n[2] != 0;
    c.timed = n[3] != 0;
    c.ram_bytes = (uint64_t)n[4];
    stk_tune_job *job = &t->kept[t->n_kept];
    *job = (stk_tune_job){.config = c, .without = (int)n[5], .done = true};
    const double *from_figure = figures;
    for (uint32_t p = 0; p < t->traces.n_part; p++)
        for (int phase = 0; phase < 2; phase++)
            for (int f = 0; f < STK_TUNE_N_FIGURE; f++) job->sums[p][phase].v[f] = (uint64_t)*from_figure++;
    t->n_kept++;
    return true;
}

int stk_tune_state_load(stk_tuning *t) {
    char *text, of[24] = "", hash[24];
    size_t bytes;
    if (!t->o.state || access(t->o.state, F_OK) != 0) return STK_OK;
    STK_TRY(stk_text_file_load(t->o.state, "state of tuning", STATE_MAX_BYTES, &text, &bytes));
    cJSON *root = cJSON_ParseWithLength(text, bytes);
    free(text);
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(root, "stoker_tune"), *item;
    snprintf(hash, sizeof hash, "%016" PRIx64, t->state_hash);
    if (!cJSON_IsNumber(version)) {
        cJSON_Delete(root);
        return stk_fail(STK_EINVAL, "%s is no state of tuning: name another file for it", t->o.state);
    }
    if (version->valuedouble != STATE_VERSION || !take_text(root, "of", of, sizeof of) || strcmp(of, hash) != 0) {
        stk_log(STK_LOG_WARN, "%s is of other traces, another budget or another version: the search begins anew", t->o.state);
        cJSON_Delete(root);
        return STK_OK;
    }
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "replays");
    t->kept = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *t->kept);
    if (t->kept) {
        cJSON_ArrayForEach(item, list)(void) take_job(t, item);
    }
    cJSON_Delete(root);
    return t->kept ? STK_OK : stk_fail(STK_ENOMEM, "%s: out of memory", t->o.state);
}
