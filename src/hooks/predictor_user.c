/* predictor_user: hooks behind the table of a predictor. */
#include "predictor_user.h"

#include <stdlib.h>
#include <string.h>

#include "hook_event.h"

struct stk_predictor {
    stk_predictor_user *user;
    void *predictor; /* the user's instance */
    bool opened;
    uint32_t n_expert, layer; /* of a layer; the latest event's */
    uint32_t *keys;           /* [n_expert] of an event, as hooks name them */
    stk_prediction *list;     /* [n_expert] what a hook suggested */
    uint8_t *named;           /* [n_expert] scratch, all 0 between calls */
};

/* The first failure of an event counts; what follows is its consequence. */
static void fault(const stk_predictor *p, int code, const char *what) {
    stk_predictor_user *u = p->user;
    if (u->faulted) return;
    u->faulted = true;
    stk_log(STK_LOG_WARN, "predictor %s: %s; nothing is predicted for this event", u->ops.name, what);
    if (u->hooks.fault) u->hooks.fault(p->predictor, code, what);
}

static void user_close(stk_predictor *p) {
    if (!p) return;
    if (p->opened && p->user->hooks.close) p->user->hooks.close(p->predictor);
    free(p->keys);
    free(p->list);
    free(p->named);
    free(p);
}

static int open_hooks(stk_predictor *p, const stk_predictor_config *config) {
    const stk_predictor_user *u = p->user;
    p->predictor = u->hooks.user;
    if (!u->hooks.open) return STK_OK;
    const stk_predictor_shape shape = {.struct_bytes = sizeof shape,
                                       .n_layer = config->n_layer,
                                       .n_expert = config->n_expert,
                                       .k = config->k,
                                       .depth = u->depth,
                                       .n_max = STK_MIN(2 * config->k, config->n_expert),
                                       .seed = config->seed};
    int rc = u->hooks.open(u->hooks.user, &shape, &p->predictor);
    return rc < 0 ? stk_fail(rc, "predictor %s: its open hook failed (%s)", u->ops.name, stk_strerror(rc)) : STK_OK;
}

static int user_open(stk_predictor **out, const stk_predictor_config *config) {
    stk_predictor_user *u = config->user;
    stk_predictor *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "predictor %s: out of memory", u->ops.name);
    p->user = u;
    p->n_expert = config->n_expert;
    p->keys = calloc(p->n_expert, sizeof *p->keys);
    p->list = calloc(p->n_expert, sizeof *p->list);
    p->named = calloc(p->n_expert, 1);
    int rc =
        p->keys && p->list && p->named ? open_hooks(p, config) : stk_fail(STK_ENOMEM, "predictor %s: out of memory", u->ops.name);
    if (rc < 0) {
        user_close(p);
        return rc;
    }
    p->opened = true;
    u->faulted = false;
    u->n_observed = 0;
    *out = p;
    return STK_OK;
}

static int user_observe(stk_predictor *p, const stk_event *event, const stk_lookahead *ahead) {
    const stk_predictor_hooks *h = &p->user->hooks;
    p->layer = event->layer;
    p->user->faulted = false;
    p->user->n_observed++;
    if (!h->observe) return STK_OK;
    for (uint32_t i = 0; i < event->n_distinct; i++) p->keys[i] = event->layer * p->n_expert + event->distinct[i];
    const stk_policy_event e = stk_hook_event(event, p->keys, event->n_distinct);
    int rc = h->observe(p->predictor, &e, ahead->depth ? ahead->scores : NULL, ahead->depth);
    if (rc < 0) fault(p, rc, "its observe hook failed");
    return STK_OK;
}

/* What was computed in advance for the latest event; *list [returned]. */
static int64_t take_given(const stk_predictor *p, uint32_t depth, const stk_prediction **list) {
    const stk_predictor_user *u = p->user;
    const stk_predictor_hooks *h = &u->hooks;
    if (u->n_observed > h->n_event) return STK_EINVAL;
    uint64_t at = (u->n_observed - 1) * u->depth + depth - 1, from = h->first[at], to = h->first[at + 1];
    if (from > to || to > h->n_list) return STK_EINVAL;
    *list = h->list + from;
    return (int64_t)(to - from);
}

/* What is wrong with a list, or NULL: experts of the layer, each once, with probabilities. */
static const char *find_wrong(const stk_predictor *p, const stk_prediction *list, uint32_t n) {
    const char *wrong = NULL;
    uint32_t i = 0;
    for (; i < n && !wrong; i++) {
        if (list[i].expert >= p->n_expert)
            wrong = "it predicts an expert that there is not";
        else if (!(list[i].p >= 0 && list[i].p <= 1))
            wrong = "a probability is not within 0 and 1";
        else if (p->named[list[i].expert]++)
            wrong = "it predicts an expert twice";
    }
    while (i-- > 0)
        if (list[i].expert < p->n_expert) p->named[list[i].expert] = 0;
    return wrong;
}

/* Best first, ties to the lower id, at most cap. */
static uint32_t put_in_order(const stk_prediction *list, uint32_t n, stk_suggestion *out, uint32_t cap) {
    uint32_t n_out = 0;
    for (uint32_t i = 0; i < n; i++) {
        const stk_suggestion s = {(uint16_t)list[i].expert, list[i].p};
        uint32_t at = n_out;
        while (at > 0 && (out[at - 1].p < s.p || (out[at - 1].p == s.p && out[at - 1].expert > s.expert))) at--;
        if (at == cap) continue;
        n_out = STK_MIN(n_out + 1, cap);
        memmove(out + at + 1, out + at, (n_out - 1 - at) * sizeof *out);
        out[at] = s;
    }
    return n_out;
}

static int user_suggest(const stk_predictor *p, uint32_t depth, stk_suggestion *out, uint32_t cap) {
    stk_predictor_user *u = p->user;
    const stk_prediction *list = p->list;
    if (u->faulted) return 0;
    int64_t n = u->hooks.suggest ? u->hooks.suggest(p->predictor, p->layer + depth, depth, p->list, p->n_expert)
                                 : take_given(p, depth, &list);
    const char *wrong = u->hooks.suggest ? "its suggest hook failed" : "what was computed in advance does not fit the run";
    if (n > p->n_expert) {
        wrong = "it predicts more experts than a layer has";
        n = STK_EINVAL;
    }
    if (n > 0) {
        wrong = find_wrong(p, list, (uint32_t)n);
        if (wrong) n = STK_EINVAL;
    }
    if (n < 0) {
        fault(p, (int)n, wrong);
        return 0;
    }
    return (int)put_in_order(list, (uint32_t)n, out, cap);
}

static const stk_predictor_ops user_ops = {
    .open = user_open,
    .close = user_close,
    .observe = user_observe,
    .suggest = user_suggest,
};

int stk_predictor_user_init(stk_predictor_user *user, const stk_predictor_hooks *hooks, uint32_t depth) {
    memset(user, 0, sizeof *user);
    stk_predictor_hooks *h = &user->hooks;
    STK_TRY(stk_struct_take(h, sizeof *h, hooks, "predictor hooks"));
    if (!h->name) h->name = "user";
    if (!h->suggest == !h->first)
        return stk_fail(STK_EINVAL, "predictor %s: one of suggest and first is to be given, and one only", h->name);
    if (h->first && h->depth != depth)
        return stk_fail(STK_EINVAL, "predictor %s: computed in advance for %u layers ahead; %u are asked for", h->name, h->depth,
                        depth);
    user->depth = depth;
    user->ops = user_ops;
    user->ops.name = h->name;
    user->ops.wants_lookahead = h->wants_lookahead != 0;
    return STK_OK;
}
