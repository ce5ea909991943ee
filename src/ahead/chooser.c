/* chooser: what is worth reading ahead. */
#include "chooser.h"

#include <stdlib.h>
#include <string.h>

#include "impact.h"

enum {
    BUCKETS = 16,    /* of probability */
    PRIOR = 8,       /* settled experts that the predictor's own word counts for */
    COUNT_MAX = 512, /* at this many counts are halved, so that they follow a change of text */
    N_KEEP = 256,    /* events of a layer after which a use is forgotten */
    NOT_ASKED = 255, /* no candidate */
};

/* Without times: the least probability at which an absent expert is read ahead. */
static const float least_p = 0.5f;
static const float use_keep = 0.95f; /* of how often an expert was used, an event of its layer later */
static const double absent_keep = 0.9;

typedef struct expected {
    uint32_t key;
    uint8_t depth, bucket;
} expected;

/* What the events of a layer are like. */
typedef struct layer {
    stk_gain_size size;
    uint32_t n_event;
    double absent;  /* share of its experts that were not there but for what was read ahead, lately */
    double n_ahead; /* chosen for its next event and expected to be used by it */
} layer;

/* How often an expert was used, as of an event of its layer. */
typedef struct use {
    float rate;
    uint32_t n_event;
} use;

/* How likely used an expert may be at most whose place is taken: in any case, and where its layer comes no later. */
struct limit {
    float any, soon;
    uint32_t layer; /* of the expert that would take it */
};

struct stk_chooser {
    stk_chooser_config c;
    uint32_t n_max;
    expected *expected; /* [n_max] absent experts whose layer has not come yet */
    uint32_t n_expected;
    uint64_t step; /* of the latest event, and its layer */
    uint32_t layer;
    uint32_t n[STK_PREDICT_DEPTH_MAX][BUCKETS], n_used[STK_PREDICT_DEPTH_MAX][BUCKETS];
    layer *layers;        /* [n_layer] */
    use *uses;            /* [n_layer * n_expert] */
    float keep[N_KEEP];   /* powers of use_keep */
    struct limit *limits; /* [cap] of the latest list */
    bool *candidates;     /* [cap] scratch */
};

int stk_chooser_open(stk_chooser **out, const stk_chooser_config *config) {
    *out = NULL;
    stk_chooser *c = calloc(1, sizeof *c);
    if (!c) return stk_fail(STK_ENOMEM, "out of memory for reading ahead");
    c->c = *config;
    c->c.sizes = NULL; /* the caller's */
    c->n_max = config->cap * STK_PREDICT_DEPTH_MAX;
    c->expected = calloc(c->n_max, sizeof *c->expected);
    c->layers = calloc(config->n_layer, sizeof *c->layers);
    c->uses = calloc((size_t)config->n_layer * config->n_expert, sizeof *c->uses);
    c->limits = calloc(config->cap, sizeof *c->limits);
    c->candidates = calloc(config->cap, sizeof *c->candidates);
    if (!c->expected || !c->layers || !c->uses || !c->limits || !c->candidates) {
        stk_chooser_close(&c);
        return stk_fail(STK_ENOMEM, "out of memory for reading ahead");
    }
    for (uint32_t l = 0; config->sizes && l < config->n_layer; l++) c->layers[l].size = config->sizes[l];
    c->keep[0] = 1;
    for (uint32_t i = 1; i < N_KEEP; i++) c->keep[i] = c->keep[i - 1] * use_keep;
    *out = c;
    return STK_OK;
}

void stk_chooser_close(stk_chooser **chooser) {
    stk_chooser *c = *chooser;
    if (!c) return;
    free(c->expected);
    free(c->layers);
    free(c->uses);
    free(c->limits);
    free(c->candidates);
    free(c);
    *chooser = NULL;
}

/* ---- What is learned ---------------------------------------------------------------------------------------------------- */

static bool event_has(const stk_event *event, uint32_t expert) {
    uint32_t low = 0, high = event->n_distinct;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (event->distinct[mid] < expert)
            low = mid + 1;
        else
            high = mid;
    }
    return low < event->n_distinct && event->distinct[low] == expert;
}

float stk_chooser_use(const stk_chooser *c, uint32_t key) {
    const use *u = &c->uses[key];
    uint32_t ago = c->layers[key / c->c.n_expert].n_event - u->n_event;
    return ago < N_KEEP ? u->rate * c->keep[ago] : 0;
}

static void count_uses(stk_chooser *c, const stk_event *event) {
    layer *l = &c->layers[event->layer];
    uint32_t first = event->layer * c->c.n_expert;
    l->n_event++;
    use *uses = c->uses + first;
    const float *keep = c->keep;
    for (uint32_t i = 0, n_event = l->n_event; i < event->n_distinct; i++) {
        use *u = &uses[event->distinct[i]];
        uint32_t ago = n_event - u->n_event;
        *u = (use){(ago < N_KEEP ? u->rate * keep[ago] : 0) + (1 - use_keep), n_event};
    }
}

void stk_chooser_settle(stk_chooser *c, const stk_event *event) {
    uint32_t kept = 0;
    if (event->step != c->step || event->layer <= c->layer) c->n_expected = 0;
    c->step = event->step;
    c->layer = event->layer;
    if (event->layer < c->c.n_layer) {
        count_uses(c, event);
        c->layers[event->layer].n_ahead = 0;
    }
    for (uint32_t i = 0; i < c->n_expected; i++) {
        expected e = c->expected[i];
        uint32_t at = e.key / c->c.n_expert;
        if (at > event->layer) c->expected[kept++] = e;
        if (at != event->layer) continue;
        uint32_t *n = &c->n[e.depth][e.bucket], *n_used = &c->n_used[e.depth][e.bucket];
        *n_used += event_has(event, e.key % c->c.n_expert);
        if (++*n < COUNT_MAX) continue;
        *n /= 2;
        *n_used /= 2;
    }
    c->n_expected = kept;
}

uint32_t stk_chooser_near(const stk_chooser *c, uint32_t at, uint32_t depth, const stk_ahead *list, uint32_t n, stk_ahead *out) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (list[i].key / c->c.n_expert - at <= depth) out[kept++] = list[i];
    return kept;
}

/* ---- What is worth it --------------------------------------------------------------------------------------------------- */

static uint32_t bucket_of(float p) { return STK_MIN((uint32_t)(p * BUCKETS), BUCKETS - 1u); }

/* That an absent expert is used, of which the predictor says p so many layers ahead. */
static float chance(const stk_chooser *c, uint32_t depth, float p) {
    uint32_t b = bucket_of(p);
    return ((float)c->n_used[depth][b] + PRIOR * p) / (float)(c->n[depth][b] + PRIOR);
}

static uint32_t depth_of(const stk_chooser *c, uint32_t at, uint32_t key) { return key / c->c.n_expert - at - 1; }

/* Marks the absent ones among the list as candidates, and expects them. */
static void find_candidates(stk_chooser *c, uint32_t at, stk_ahead *list, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t depth = depth_of(c, at, list[i].key);
        list[i].issue = false;
        c->limits[i] = (struct limit){0};
        c->candidates[i] = depth < STK_PREDICT_DEPTH_MAX && stk_cache_slot(c->c.cache, list[i].key) < 0;
        if (c->candidates[i] && c->n_expected < c->n_max)
            c->expected[c->n_expected++] = (expected){list[i].key, (uint8_t)depth, (uint8_t)bucket_of(list[i].p)};
    }
}

static void choose_likely(stk_chooser *c, uint32_t at, stk_ahead *list, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (!c->candidates[i]) continue;
        float p = chance(c, depth_of(c, at, list[i].key), list[i].p);
        list[i].issue = p >= least_p;
        c->limits[i] = (struct limit){p, p, list[i].key / c->c.n_expert};
    }
}

/* The layers ahead while a list is gone through. */
typedef struct outlook {
    stk_gain_times times;
    double begin_ns;  /* of the layer's event, from now */
    double demand_ns; /* the drive is taken by demand of the events before it */
    double n_absent;  /* of its experts, expected, that were neither there nor chosen yet */
    double n_ahead;   /* chosen or on their way, expected to be used */
} outlook;

static void look_out(const stk_chooser *c, uint32_t at, const stk_gain_now *now, outlook *ahead, uint32_t n) {
    double begin = now->cpu_ns, demand = 0;
    for (uint32_t d = 0; d < n; d++) {
        const layer *l = &c->layers[at + 1 + d];
        stk_gain_times_of(now->cost, &l->size, now->n_tok, &ahead[d].times);
        begin += ahead[d].times.dense_ns;
        ahead[d].begin_ns = begin;
        ahead[d].demand_ns = demand;
        ahead[d].n_absent = STK_MAX(l->absent * now->n_used - l->n_ahead, 0.0);
        ahead[d].n_ahead = l->n_ahead;
        begin += stk_gain_event_ns(&ahead[d].times, now->n_used, ahead[d].n_absent, ahead[d].n_ahead);
        demand += ahead[d].n_absent * ahead[d].times.read_ns;
    }
}

/*
 * Nearest layer first, the likeliest first. queue_ns: what the drive has to do before it would come to this one. An expert that
 * is used saves the share of its read that is over in time; the rest it reads on demand, as it would have.
 */
static double value_of(const outlook *ahead, uint32_t d, double p, double n_used, double queue_ns, struct limit *limit) {
    const outlook *o = &ahead[d];
    const stk_gain_times *t = &o->times;
    double besides = STK_MAX(o->n_absent - p, 0.0);
    double saved = stk_gain_saved_ns(t, n_used, besides, o->n_ahead);
    double in_time = (o->begin_ns - queue_ns - o->demand_ns) / t->read_ns;
    in_time = STK_MIN(STK_MAX(in_time, 0.0), 1.0);
    /* Demand that comes while it is being read, of events that do not want it. */
    double end_ns = queue_ns + t->read_ns, holds = 0;
    for (uint32_t before = 0; before < d; before++)
        if (end_ns > ahead[before].begin_ns) holds += STK_MIN(ahead[before].n_absent, 1.0) * t->held_ns;
    if (end_ns > o->begin_ns) holds += (1 - p) * STK_MIN(besides, 1.0) * t->held_ns;
    double value =
        in_time * (p * saved - (1 - p) * t->drag_ns) - holds; /* what is in vain is not read on once its layer has come */
    /* Who leaves would soon have left anyway, unless its own use comes first: then it is read again. */
    limit->any = (float)p;
    limit->soon = (float)(saved > 0 ? STK_MIN(p, value / saved) : 0);
    return value;
}

static void choose_value(stk_chooser *c, uint32_t at, stk_ahead *list, uint32_t n, const stk_gain_now *now) {
    outlook ahead[STK_PREDICT_DEPTH_MAX];
    double queue_ns = now->demand_ns + now->ahead_ns;
    look_out(c, at, now, ahead, STK_MIN(c->c.n_layer - 1 - at, (uint32_t)STK_PREDICT_DEPTH_MAX));
    for (uint32_t i = 0; i < n; i++) {
        if (!c->candidates[i]) continue;
        uint32_t d = depth_of(c, at, list[i].key);
        double p = (double)chance(c, d, list[i].p);
        list[i].issue = value_of(ahead, d, p, now->n_used, queue_ns, &c->limits[i]) > 0;
        c->limits[i].layer = at + 1 + d;
        if (!list[i].issue) continue;
        queue_ns += ahead[d].times.read_ns;
        ahead[d].n_absent = STK_MAX(ahead[d].n_absent - p, 0.0);
        ahead[d].n_ahead += p;
        c->layers[at + 1 + d].n_ahead += p;
    }
}

static void choose_impact(stk_chooser *c, uint32_t at, stk_ahead *list, uint32_t n, const stk_gain_now *now) {
    stk_impact s = {.now = now, .layer = at, .n_expert = c->c.n_expert};
    uint32_t n_of[STK_IMPACT_DEPTH] = {0};
    stk_gain_times_of(now->cost, &c->layers[at].size, now->n_tok, &s.times);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t d = depth_of(c, at, list[i].key);
        c->limits[i] = (struct limit){.any = 2, .soon = 2}; /* whoever the policy names may leave */
        if (d >= STK_PREDICT_DEPTH_MAX || n_of[d]++ >= now->n_used) c->candidates[i] = false;
        if (d < STK_PREDICT_DEPTH_MAX) s.depth = STK_MAX(s.depth, d + 1);
        if (c->candidates[i]) s.n_absent[d]++;
    }
    stk_impact_choose(&s, list, c->candidates, n);
}

void stk_chooser_choose(stk_chooser *c, uint32_t at, stk_ahead *list, uint32_t n, const stk_gain_now *now) {
    n = STK_MIN(n, c->c.cap);
    if (now && at < c->c.n_layer) {
        double *absent = &c->layers[at].absent, share = now->n_used ? (double)now->n_absent / now->n_used : 0;
        *absent += (1 - absent_keep) * (share - *absent);
    }
    find_candidates(c, at, list, n);
    if (!now || c->c.rule == STK_AHEAD_LIKELY)
        choose_likely(c, at, list, n);
    else if (c->c.rule == STK_AHEAD_IMPACT)
        choose_impact(c, at, list, n, now);
    else
        choose_value(c, at, list, n, now);
}

bool stk_chooser_may_evict(const stk_chooser *c, uint32_t i, uint32_t victim) {
    if (victim == STK_NO_KEY) return true;
    uint32_t of = victim / c->c.n_expert;
    bool soon = of > c->layer && of <= c->limits[i].layer;
    return stk_chooser_use(c, victim) < (soon ? c->limits[i].soon : c->limits[i].any);
}
