/*
 * mix: all ideas together, by logistic mixing with weights learned online. It begins with the weights of mix_prior.h.
 */
#include "predict/mix_prior.h"
#include "predict/panel.h"

static const stk_panel_seat seats[] = {{&stk_part_gate, NULL, 0.0f},       {&stk_part_path, NULL, 0.0f},
                                       {&stk_part_crosslayer, NULL, 0.0f}, {&stk_part_transition, NULL, 0.0f},
                                       {&stk_part_tokenid, NULL, 0.0f},    {&stk_part_previous, NULL, 0.0f},
                                       {&stk_part_history, "keep", 0.8f},  {&stk_part_history, "keep", 0.98f},
                                       {&stk_part_matrices, NULL, 0.0f},   {&stk_part_popularity, NULL, 0.0f}};

_Static_assert(STK_ARRAY_LEN(stk_mix_prior[0][0]) == STK_ARRAY_LEN(seats) + 1, "a weight a part and a constant");
const stk_panel_plan stk_mix_plan = {
    .name = "mix", .magic = 0x3158494d, .n_seat = STK_ARRAY_LEN(seats), .seats = seats, .prior = &stk_mix_prior[0][0][0]};

static int mix_open(stk_predictor **out, const stk_predictor_config *config) {
    return stk_panel_open(out, config, &stk_mix_plan);
}

static int mix_param(uint32_t i, stk_param_info *out) { return stk_panel_param(&stk_mix_plan, i, out); }

const stk_predictor_ops stk_predictor_mix = {.name = "mix",
                                             .idea = "all of these, weighed by what each turned out to be worth",
                                             .wants_lookahead = true,
                                             .param = mix_param,
                                             .open = mix_open,
                                             .close = stk_panel_close,
                                             .observe = stk_panel_observe,
                                             .suggest = stk_panel_suggest,
                                             .save = stk_panel_save,
                                             .load = stk_panel_load};
