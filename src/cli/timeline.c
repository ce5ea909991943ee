/* timeline: intervals in lanes, as JSON; the picture is timeline_svg.c. */
#include "timeline_lanes.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORK_PER_TOKEN = 1 << 14, MOST_WORK = 1 << 20, MOST_TOKENS = 4096 };

/* "A-B" or "A". */
static int tokens_of(const char *text, uint64_t *first, uint64_t *last) {
    char *end;
    bool digit = *text >= '0' && *text <= '9';
    errno = 0;
    *first = *last = strtoull(text, &end, 10);
    if (digit && *end == '-' && end[1] >= '0' && end[1] <= '9') *last = strtoull(end + 1, &end, 10);
    if (digit && !*end && !errno && *last >= *first && *last - *first < MOST_TOKENS) return CLI_OK;
    return cli_fail(CLI_USAGE, "--timeline-tokens", "'%s' is no range of at most %d tokens, such as 1-4, or 0 for the prompt",
                    text, MOST_TOKENS);
}

static bool ends_in(const char *path, const char *end) {
    size_t n = strlen(path), m = strlen(end);
    return n > m && strcmp(path + n - m, end) == 0;
}

/* FILE.svg beside FILE or FILE.json. */
static char *svg_path(const char *path) {
    size_t n = strlen(path) - (ends_in(path, ".json") ? strlen(".json") : 0), bytes = n + sizeof ".svg";
    char *out = malloc(bytes);
    if (out) snprintf(out, bytes, "%.*s.svg", (int)n, path);
    return out;
}

/* Nothing that the run reads or writes may be written over. */
static int check_path(const cli_settings *s, const stk_model *model, const char *path) {
    const char *const others[] = {s->trace, s->warm, s->file, s->profile, s->cost, s->csv};
    bool taken = model && stk_model_owns_file(model, path);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) taken = taken || cli_same_file(path, others[i]);
    for (int i = 0; i < s->n_operand; i++) taken = taken || cli_same_file(path, s->operands[i]);
    return taken ? cli_fail(CLI_USAGE, "--timeline", "%s is another file of this run; name another", path) : CLI_OK;
}

int cli_timeline_open(cli_timeline *t, const cli_settings *s, const stk_model *model, uint64_t n_before, const char *unit) {
    uint64_t first, last;
    if (!s->timeline) return CLI_OK;
    *t = (cli_timeline){.path = s->timeline, .n_before = n_before, .unit = unit};
    int rc = tokens_of(s->timeline_tokens, &first, &last);
    if (rc != CLI_OK) return rc;
    t->svg_path = svg_path(t->path);
    if (!t->svg_path) return cli_fail(CLI_FAILED, "--timeline", "out of memory");
    if (ends_in(t->path, ".svg"))
        return cli_fail(CLI_USAGE, "--timeline", "%s is named like the picture; name the JSON file beside it", t->path);
    rc = check_path(s, model, t->path);
    if (rc == CLI_OK) rc = check_path(s, model, t->svg_path);
    if (rc != CLI_OK) return rc;
    uint64_t from = first ? n_before + first - 1 : 0, steps = n_before + last - from;
    uint64_t room = steps * WORK_PER_TOKEN;
    int opened = stk_timeline_open(&t->work, room < MOST_WORK ? room : MOST_WORK, from, steps);
    if (opened < 0) return cli_fail_stk(opened, "--timeline");
    return cli_try_file(t->path, "timeline");
}

void cli_timeline_close(cli_timeline *t) {
    stk_timeline_close(&t->work);
    free(t->svg_path);
    *t = (cli_timeline){0};
}

/* ---- Lanes -------------------------------------------------------------------------------------------------------------- */

static int by_begin(const void *a, const void *b) {
    const stk_work *x = *(const stk_work *const *)a, *y = *(const stk_work *const *)b;
    if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
    return x->end_ns < y->end_ns ? -1 : x->end_ns > y->end_ns;
}

static uint32_t queue_of(cli_lanes *l, const char *name) {
    for (uint32_t q = 0; q < l->n_queue; q++)
        if (strcmp(l->queues[q].name, name) == 0) return q;
    l->queues[l->n_queue] = (cli_queue){.name = name};
    return l->n_queue++;
}

/* The first lane that is free by then; reads beyond MOST_LANES at a time share the last. */
static uint32_t lane_of(cli_queue *q, uint64_t *end_ns, const stk_work *w) {
    uint32_t lane = 0;
    while (lane < q->n_lane && end_ns[lane] > w->begin_ns && lane + 1 < CLI_MOST_LANES) lane++;
    if (lane == q->n_lane) q->n_lane++;
    end_ns[lane] = w->end_ns > end_ns[lane] ? w->end_ns : end_ns[lane];
    return lane;
}

static int lanes_open(cli_lanes *l, const stk_timeline *timeline) {
    static uint64_t end_ns[STK_N_WORK][CLI_MOST_LANES];
    const stk_work *work;
    memset(end_ns, 0, sizeof end_ns);
    int64_t n = stk_timeline_get(timeline, &work, &l->n_lost);
    if (n < 0) return cli_fail_stk((int)n, "--timeline");
    l->n = (uint64_t)n;
    l->work = malloc((l->n + 1) * sizeof *l->work);
    l->lane = malloc((l->n + 1) * sizeof *l->lane);
    if (!l->work || !l->lane) return cli_fail(CLI_FAILED, "--timeline", "out of memory");
    for (uint64_t i = 0; i < l->n; i++) l->work[i] = &work[i];
    qsort(l->work, l->n, sizeof *l->work, by_begin);
    for (uint32_t k = 0; k < STK_N_WORK; k++) l->queue[k] = queue_of(l, stk_work_queue(k));
    for (uint64_t i = 0; i < l->n; i++) {
        uint32_t q = l->queue[l->work[i]->kind];
        l->lane[i] = (uint8_t)lane_of(&l->queues[q], end_ns[q], l->work[i]);
    }
    return CLI_OK;
}

/* ---- JSON --------------------------------------------------------------------------------------------------------------- */

static void add_lane_name(cJSON *events, uint32_t tid, const cli_queue *q, uint32_t lane) {
    char name[64];
    cJSON *e = cJSON_CreateObject();
    snprintf(name, sizeof name, q->n_lane > 1 ? "%s %u" : "%s", q->name, lane + 1);
    cJSON_AddStringToObject(e, "name", "thread_name");
    cJSON_AddStringToObject(e, "ph", "M");
    cJSON_AddNumberToObject(e, "pid", 1);
    cJSON_AddNumberToObject(e, "tid", tid);
    cJSON_AddStringToObject(cJSON_AddObjectToObject(e, "args"), "name", name);
    cJSON_AddItemToArray(events, e);
}

static void add_work(cJSON *events, uint32_t tid, const stk_work *w) {
    cJSON *e = cJSON_CreateObject(), *args;
    cJSON_AddStringToObject(e, "name", stk_work_name(w->kind));
    cJSON_AddStringToObject(e, "cat", stk_work_queue(w->kind));
    cJSON_AddStringToObject(e, "ph", "X");
    cJSON_AddNumberToObject(e, "ts", (double)w->begin_ns * 1e-3);
    cJSON_AddNumberToObject(e, "dur", (double)(w->end_ns - w->begin_ns) * 1e-3);
    cJSON_AddNumberToObject(e, "pid", 1);
    cJSON_AddNumberToObject(e, "tid", tid);
    args = cJSON_AddObjectToObject(e, "args");
    cJSON_AddNumberToObject(args, "step", (double)w->step);
    if (w->layer != STK_NO_LAYER) cJSON_AddNumberToObject(args, "layer", w->layer);
    if (w->expert != UINT32_MAX) cJSON_AddNumberToObject(args, "expert", w->expert);
    if (w->n_expert) cJSON_AddNumberToObject(args, "experts", w->n_expert);
    if (w->bytes) cJSON_AddNumberToObject(args, "bytes", (double)w->bytes);
    cJSON_AddItemToArray(events, e);
}

static uint32_t tid_of(uint32_t queue, uint32_t lane) { return (queue + 1) * CLI_MOST_LANES + lane; }

static int save_json(const cli_timeline *t, const cli_lanes *l, const char *what) {
    cJSON *json = cJSON_CreateObject(), *other, *events;
    cJSON_AddStringToObject(json, "displayTimeUnit", "ms");
    other = cJSON_AddObjectToObject(json, "otherData");
    cJSON_AddStringToObject(other, "version", stk_version());
    cJSON_AddStringToObject(other, "what", what);
    cJSON_AddNumberToObject(other, "steps_before_token_1", (double)t->n_before);
    cJSON_AddNumberToObject(other, "intervals_without_room", (double)l->n_lost);
    events = cJSON_AddArrayToObject(json, "traceEvents");
    for (uint32_t q = 0; q < l->n_queue; q++)
        for (uint32_t lane = 0; lane < l->queues[q].n_lane; lane++) add_lane_name(events, tid_of(q, lane), &l->queues[q], lane);
    for (uint64_t i = 0; i < l->n; i++) add_work(events, tid_of(l->queue[l->work[i]->kind], l->lane[i]), l->work[i]);
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    if (!text) return cli_fail(CLI_FAILED, "--timeline", "out of memory");
    int rc = cli_write_file(t->path, "timeline", text, strlen(text));
    cJSON_free(text);
    return rc;
}

int cli_timeline_save(const cli_timeline *t, const char *what) {
    cli_lanes l = {0};
    if (!t->work) return CLI_OK;
    int rc = lanes_open(&l, t->work);
    if (rc == CLI_OK) rc = save_json(t, &l, what);
    if (rc == CLI_OK) rc = cli_timeline_svg(t, &l, what);
    if (rc == CLI_OK && l.n == 0)
        cli_say("stoker: warning: --timeline: the run has none of the %ss of --timeline-tokens; the timeline is empty", t->unit);
    if (rc == CLI_OK && l.n_lost)
        cli_say("stoker: warning: --timeline: no room for the last %llu intervals; ask for fewer %ss",
                (unsigned long long)l.n_lost, t->unit);
    if (rc == CLI_OK && l.n) cli_note("timeline %s and %s", t->path, t->svg_path);
    free(l.work);
    free(l.lane);
    return rc;
}
