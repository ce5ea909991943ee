/*
 * pinned: chosen experts stay once they are in; the others share what is left as lru. The pinned are a list of their own (1), in
 * which nobody is looked for while anybody else may leave: so the cache works whatever was pinned.
 *
 * keys=LAYER:EXPERT+LAYER:FIRST-LAST+..., dense layer numbers; white space separates as "+" does, so that the text may be that of
 * a file with one entry a line.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cache/recency.h"

enum { STATE_MAGIC = 0x314e4950, OTHERS = 0, PINNED = 1 }; /* "PIN1" */

struct stk_policy {
    stk_recency recency;
    uint8_t *list; /* [n_key] the list that it belongs to */
};

/* ---- The list ----------------------------------------------------------------------------------------------------------- */

static bool read_number(const char **at, uint32_t *x) {
    if (!isdigit((unsigned char)**at)) return false;
    for (*x = 0; isdigit((unsigned char)**at); ++*at) {
        if (*x >= STK_NO_EXPERT) return false; /* more than any layer or expert is numbered */
        *x = *x * 10 + (uint32_t)(**at - '0');
    }
    return true;
}

/* Layer, first and last expert of the entry at *text; moves behind it. */
static int read_entry(const char **text, uint32_t *layer, uint32_t *first, uint32_t *last) {
    const char *at = *text, *begin = *text;
    bool good = read_number(&at, layer) && *at++ == ':' && read_number(&at, first);
    *last = *first;
    if (good && *at == '-') at++, good = read_number(&at, last) && *last >= *first;
    if (!good || (*at && *at != '+' && !isspace((unsigned char)*at)))
        return stk_fail(STK_EINVAL, "policy pinned: \"%.20s\" is not LAYER:EXPERT or LAYER:FIRST-LAST", begin);
    *text = at;
    return 0;
}

/* Entries of layers that are not this instance's are for another one. */
static int pin(stk_policy *p, const stk_policy_config *config, uint32_t layer, uint32_t first, uint32_t last) {
    if (last >= config->n_expert)
        return stk_fail(STK_EINVAL, "policy pinned: expert %u of layer %u; a layer has %u", last, layer, config->n_expert);
    for (uint32_t i = 0; i < config->n_key / config->n_expert; i++)
        if ((config->layers ? config->layers[i] : i) == layer)
            memset(p->list + (size_t)i * config->n_expert + first, PINNED, last - first + 1);
    return 0;
}

static int read_list(stk_policy *p, const stk_policy_config *config) {
    static const char name[] = "keys=";
    const char *text = config->params;
    if (!text || !*text) return 0;
    if (strncmp(text, name, strlen(name)) != 0)
        return stk_fail(STK_EINVAL, "policy pinned has no parameter \"%.80s\"; there are: keys", text);
    for (text += strlen(name); *text;) {
        uint32_t layer = 0, first = 0, last = 0;
        if (*text == '+' || isspace((unsigned char)*text)) {
            text++;
            continue;
        }
        STK_TRY(read_entry(&text, &layer, &first, &last));
        STK_TRY(pin(p, config, layer, first, last));
    }
    return 0;
}

/* ---- The policy --------------------------------------------------------------------------------------------------------- */

static void pinned_close(stk_policy *p) {
    if (!p) return;
    stk_recency_close(&p->recency);
    free(p->list);
    free(p);
}

static int pinned_open(stk_policy **out, const stk_policy_config *config) {
    stk_policy *p = calloc(1, sizeof *p);
    if (!p) return stk_fail(STK_ENOMEM, "policy pinned: out of memory");
    int rc = stk_recency_open(&p->recency, &stk_policy_pinned, STATE_MAGIC, config);
    p->list = calloc(config->n_key, sizeof *p->list);
    if (rc == 0 && !p->list) rc = stk_fail(STK_ENOMEM, "policy pinned: out of memory");
    if (rc == 0) rc = read_list(p, config);
    if (rc < 0)
        pinned_close(p);
    else
        *out = p;
    return rc;
}

static int pinned_touch(stk_policy *p, const stk_event *event, const uint32_t *keys, uint32_t n) {
    stk_recency *r = &p->recency;
    uint32_t n_used = stk_recency_event(r, event, keys, n);
    for (uint32_t i = 0; i < n_used; i++) stk_recency_move(r, r->used[i], r->list_of[r->used[i]]);
    return 0;
}

static int pinned_inserted(stk_policy *p, uint32_t key, enum stk_why why) {
    return stk_recency_insert(&p->recency, key, key < p->recency.n_key ? p->list[key] : OTHERS, why);
}

static int pinned_victim(stk_policy *p, const uint64_t *busy, uint32_t *key) {
    return stk_recency_oldest(&p->recency, OTHERS, busy, key) || stk_recency_oldest(&p->recency, PINNED, busy, key);
}

static int64_t pinned_save(const stk_policy *p, void *out, size_t cap) { return stk_recency_save(&p->recency, out, cap, 0); }

/* The state may have been saved with other pins: those of this instance hold. */
static int pinned_load(stk_policy *p, const void *data, size_t bytes) {
    stk_recency *r = &p->recency;
    stk_policy_state got;
    STK_TRY(stk_recency_check(r, data, bytes, 0, &got));
    stk_recency_fill(r, data, &got);
    for (uint32_t i = 0; i < got.n_resident; i++) {
        uint32_t key = stk_policy_state_key(data, i);
        stk_recency_move(r, key, p->list[key]);
    }
    return 0;
}

const stk_policy_ops stk_policy_pinned = {
    .name = "pinned",
    .idea = "chosen experts stay, lru for the others; keys=LAYER:EXPERT+LAYER:FIRST-LAST+...",
    .open = pinned_open,
    .close = pinned_close,
    .touch = pinned_touch,
    .inserted = pinned_inserted,
    .evicted = stk_recency_evicted,
    .resized = stk_recency_resized,
    .victim = pinned_victim,
    .save = pinned_save,
    .load = pinned_load,
};
