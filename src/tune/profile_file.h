/*
 * profile_file: what `stoker tune` found for a model and a budget, as a JSON file that a run or a replay takes.
 *
 *     {
 *       "stoker_profile": 1,                     the version of this form
 *       "model": {"name": "...",                 general.name of the GGUF file; "": any model of this shape
 *                 "layers": 48, "experts": 128, "experts_used": 8},
 *       "budget": {"ram_bytes": n,               of expert slots; 0: not known, the fraction holds
 *                  "fraction": 0.25},            of the bytes of all expert slots
 *       "policy": "lrfu:decay=0.9",              as --policy takes it
 *       "scope": "global",                       or "layer"
 *       "layer_slots": [n, ...],                 optional, with scope "layer": slots of each layer with experts, with those set
 *                                                aside for refused experts
 *       "predictor": "mix:keep=0.9",             as --predictor takes it; "none": nothing is read ahead
 *       "lookahead": 2,                          layers; 0 with "none"
 *       "expected": {"tok_s": x, "hit_rate": x, "default_tok_s": x, "default_hit_rate": x, "margin": x, "margin_low": x,
 *                    "margin_high": x, "bound_hit_rate": x},         tok_s 0: times were not predicted
 *       "from": {"traces": ["..."], "sequences": n, "tokens": n, "io": "...", "cost": "...", "stoker": "0.1.0"}
 *     }
 *
 * Keys that are not known are passed over, `expected` and `from` are for the reader alone.
 *
 * Who may call it: src/. Threads: pure but for the file, which appears whole or not at all.
 */
#ifndef STK_PROFILE_FILE_H
#define STK_PROFILE_FILE_H

#include "src/spec.h"
#include "src/text_file.h"

enum { STK_PROFILE_NAME_BYTES = 128 };

typedef struct stk_profile_file {
    char model[STK_PROFILE_NAME_BYTES];
    uint32_t n_layer, n_expert, k; /* layers with experts */
    uint64_t ram_bytes;
    double fraction;
    char policy[STK_SPEC_BYTES];
    uint32_t scope;        /* STK_SCOPE_GLOBAL or STK_SCOPE_LAYER */
    uint32_t *layer_slots; /* [n_layer] owned, or NULL: equal shares */
    char predictor[STK_SPEC_BYTES];
    uint32_t depth;
    double tok_s, hit_rate, default_tok_s, default_hit_rate, margin, margin_low, margin_high, bound_hit_rate;
} stk_profile_file;

/* Where a profile comes from; borrowed. */
typedef struct stk_profile_from {
    const char *const *traces; /* [n_trace] */
    uint32_t n_trace;
    uint64_t n_sequence, n_token;
    const char *io, *cost; /* "" for none */
} stk_profile_from;

/* Errors: STK_EIO (missing, unreadable), STK_EFORMAT (names the file and the field), STK_EUNSUPPORTED (another version),
 * STK_ENOMEM. *out is to be finished in any case. */
int stk_profile_file_load(const char *path, stk_profile_file *out) STK_CHECKED;
void stk_profile_file_fini(stk_profile_file *profile);
/* Errors: STK_EIO, STK_ENOSPC, STK_ENOMEM; the file that stood there stays then. */
int stk_profile_file_save(const char *path, const stk_profile_file *profile, const stk_profile_from *from) STK_CHECKED;

/* STK_EINVAL: the profile in `path` is of another model than this; names what differs. `name` "": not known. */
int stk_profile_file_check(const stk_profile_file *profile, const char *path, const char *name, uint32_t n_layer,
                           uint32_t n_expert, uint32_t k) STK_CHECKED;

/*
 * The profile's layer_slots for a budget of `bytes`: as they are where that is the profile's own, else in proportion. Every layer
 * gets at least `least` and at most n_expert. slot_bytes [n_layer]; writes n_slot [n_layer]. STK_EBUDGET: bytes are below the
 * least.
 */
int stk_profile_file_layers(const stk_profile_file *profile, const uint64_t *slot_bytes, uint64_t bytes, uint32_t least,
                            uint32_t *n_slot) STK_CHECKED;

#endif
