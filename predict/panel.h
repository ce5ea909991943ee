/*
 * panel: a predictor made of parts. One part alone: its scores become probabilities by what scores like these turned out to be
 * worth (counts by bucket of the score, by depth). Several: the log-odds that these probabilities have are added up with weights
 * and the sum is the log-odds of the mix (logistic mixing; Mattern, "Mixing strategies in data compression", 2012). The weights
 * are learned online, by depth and layer, from a prior that ships; there are some for every combination of what is known (the
 * routers' scores, a token id that was seen before).
 *
 * Who may call it: predict/.
 */
#ifndef STK_PANEL_H
#define STK_PANEL_H

#include "predict/part.h"

enum { STK_PANEL_PARTS = 12, STK_PANEL_SETS = 4 };

/* A seat at the table: a part, and a parameter of it that is not for the user to set. */
typedef struct stk_panel_seat {
    const stk_part_ops *ops;
    const char *fixed; /* name; NULL: none */
    float value;
} stk_panel_seat;

typedef struct stk_panel_plan {
    const char *name;
    uint32_t magic; /* of saved states */
    uint32_t n_seat;
    const stk_panel_seat *seats;
    /* [SETS, STK_PREDICT_DEPTH_MAX, n_seat + 1] weights to begin with, the constant last; NULL for a single part. */
    const float *prior;
} stk_panel_plan;

/* The mix, for fitting its prior. */
extern const stk_panel_plan stk_mix_plan;

/* The operations of stk_predictor_ops. Parameters: depth (1 to STK_PREDICT_DEPTH_MAX, layers ahead that are looked at), and
 * those of the parts. */
int stk_panel_open(stk_predictor **out, const stk_predictor_config *config, const stk_panel_plan *plan) STK_CHECKED;
void stk_panel_close(stk_predictor *p);
int stk_panel_observe(stk_predictor *p, const stk_event *event, const stk_lookahead *ahead);
int stk_panel_suggest(const stk_predictor *p, uint32_t depth, stk_suggestion *out, uint32_t cap);
int64_t stk_panel_save(const stk_predictor *p, void *out, size_t cap);
int stk_panel_load(stk_predictor *p, const void *data, size_t bytes);

/* Parameter i of a plan: 1, or 0 beyond the last. */
int stk_panel_param(const stk_panel_plan *plan, uint32_t i, stk_param_info *out);

/* The mix's weights [SETS, depth, n_layer, n_seat + 1]; for fitting a prior. */
const float *stk_panel_weights(const stk_predictor *p, uint32_t *depth, uint32_t *n_weight);

/* Defines the operations of a predictor that is one part; ahead: whether it wants the routers' scores. */
#define STK_PANEL_SOLO(part, tag, ahead, what)                                                                                   \
    static const stk_panel_seat part##_seat = {&stk_part_##part, NULL, 0.0f};                                                    \
    static const stk_panel_plan part##_plan = {.name = #part, .magic = (tag), .n_seat = 1, .seats = &part##_seat};               \
    static int part##_open_solo(stk_predictor **out, const stk_predictor_config *config) {                                       \
        return stk_panel_open(out, config, &part##_plan);                                                                        \
    }                                                                                                                            \
    static int part##_param(uint32_t i, stk_param_info *out) { return stk_panel_param(&part##_plan, i, out); }                   \
    const stk_predictor_ops stk_predictor_##part = {.name = #part,                                                               \
                                                    .idea = (what),                                                              \
                                                    .wants_lookahead = (ahead),                                                  \
                                                    .param = part##_param,                                                       \
                                                    .open = part##_open_solo,                                                    \
                                                    .close = stk_panel_close,                                                    \
                                                    .observe = stk_panel_observe,                                                \
                                                    .suggest = stk_panel_suggest,                                                \
                                                    .save = stk_panel_save,                                                      \
                                                    .load = stk_panel_load}

#endif
