/* placement: experts marked while their class has slots. */
#include "placement.h"

#include <stdlib.h>
#include <string.h>

typedef struct marking {
    const stk_placement_config *c;
    uint32_t *left; /* [n_class] slots */
    uint8_t *here;
} marking;

static void mark(const marking *m, uint32_t key) {
    uint32_t *left = &m->left[m->c->layer_class[key / m->c->n_expert]];
    if (*left == 0) return;
    --*left;
    m->here[key] = 1;
}

/* From the last layer down, whole layers. */
static void mark_layers(const marking *m) {
    for (uint32_t l = m->c->n_layer; l-- > 0;) {
        if (m->left[m->c->layer_class[l]] < m->c->n_expert) continue;
        for (uint32_t e = 0; e < m->c->n_expert; e++) mark(m, l * m->c->n_expert + e);
    }
}

/* An expert of every layer in turn. */
static void mark_evenly(const marking *m) {
    for (uint32_t e = 0; e < m->c->n_expert; e++)
        for (uint32_t l = 0; l < m->c->n_layer; l++) mark(m, l * m->c->n_expert + e);
}

typedef struct used {
    uint64_t uses;
    uint32_t key;
} used;

static int by_uses(const void *a, const void *b) {
    const used *x = a, *y = b;
    if (x->uses != y->uses) return x->uses > y->uses ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

static int mark_used(const marking *m) {
    uint32_t n_key = m->c->n_layer * m->c->n_expert;
    used *order = calloc(n_key, sizeof *order);
    if (!order) return stk_fail(STK_ENOMEM, "out of memory for placing %u experts", n_key);
    for (uint32_t key = 0; key < n_key; key++) order[key] = (used){m->c->uses[key], key};
    qsort(order, n_key, sizeof *order, by_uses);
    for (uint32_t i = 0; i < n_key; i++) mark(m, order[i].key);
    free(order);
    return STK_OK;
}

int stk_placement_make(enum stk_placement how, const stk_placement_config *config, uint8_t *here) {
    marking m = {config, calloc(config->n_class + 1, sizeof *m.left), here};
    int rc = STK_OK;
    if (!m.left) return stk_fail(STK_ENOMEM, "out of memory for placing experts");
    memcpy(m.left, config->n_slot, config->n_class * sizeof *m.left);
    if (how == STK_PLACE_LAYERS)
        mark_layers(&m);
    else if (how == STK_PLACE_UNIFORM)
        mark_evenly(&m);
    else if (how == STK_PLACE_PROFILE)
        rc = mark_used(&m);
    free(m.left);
    return rc;
}
