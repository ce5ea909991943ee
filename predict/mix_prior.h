/*
 * mix_prior: weights that the mix begins with: by what is known (1: the routers' scores, 2: the token id, added), by depth;
 * of the parts in the order of mix.c, then the constant. Fitted by tests/tools/fit_mix.c on traces of the bundled model, of
 * Qwen3-30B-A3B, gemma-4-26B-A4B, gpt-oss-120b and switch-base-8; the sets with routers' scores are set, not fitted.
 */
#ifndef STK_MIX_PRIOR_H
#define STK_MIX_PRIOR_H

#include "predict/panel.h"

static const float stk_mix_prior[STK_PANEL_SETS][STK_PREDICT_DEPTH_MAX][11] = {
    {{0.000f, 0.709f, 0.702f, -0.035f, 0.000f, 0.025f, 0.275f, 0.112f, -0.122f, -0.427f, 0.372f},
     {0.000f, 0.507f, 0.738f, 0.104f, 0.000f, 0.006f, 0.315f, 0.175f, -0.119f, -0.493f, 0.392f},
     {0.000f, 0.524f, 0.692f, 0.147f, 0.000f, 0.005f, 0.312f, 0.181f, -0.108f, -0.504f, 0.423f}},
    {{0.850f, 0.213f, 0.210f, -0.010f, 0.000f, 0.007f, 0.082f, 0.034f, -0.037f, -0.128f, 0.112f},
     {0.850f, 0.152f, 0.221f, 0.031f, 0.000f, 0.002f, 0.095f, 0.052f, -0.036f, -0.148f, 0.118f},
     {0.850f, 0.157f, 0.208f, 0.044f, 0.000f, 0.001f, 0.093f, 0.054f, -0.032f, -0.151f, 0.127f}},
    {{0.000f, 0.944f, 0.140f, 0.170f, 0.606f, 0.091f, 0.394f, -0.079f, -0.070f, -0.734f, 0.710f},
     {0.000f, 0.926f, 0.108f, 0.266f, 0.642f, 0.036f, 0.449f, -0.036f, -0.042f, -0.815f, 0.820f},
     {0.000f, 0.921f, 0.023f, 0.247f, 0.629f, -0.013f, 0.436f, -0.027f, -0.005f, -0.707f, 0.770f}},
    {{0.850f, 0.283f, 0.042f, 0.051f, 0.182f, 0.027f, 0.118f, -0.024f, -0.021f, -0.220f, 0.213f},
     {0.850f, 0.278f, 0.032f, 0.080f, 0.193f, 0.011f, 0.135f, -0.011f, -0.013f, -0.244f, 0.246f},
     {0.850f, 0.276f, 0.007f, 0.074f, 0.189f, -0.004f, 0.131f, -0.008f, -0.002f, -0.212f, 0.231f}},
};

#endif
