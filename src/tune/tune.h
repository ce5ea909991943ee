/*
 * tune: the search for the best cache. What its parts share:
 *
 *   tune_traces.c  one look at the traces: sequences, how experts are used, how far apart their uses lie
 *   tune_jobs.c    replays side by side, and the file that keeps their results
 *   tune_search.c  which configurations are replayed: coarse to fine
 *   tune_params.c  which values of a policy's or predictor's parameters these have
 *   tune_choice.c  which of them is chosen
 *   tune.c         cross-validation; the profile
 *   report*.c      the same as a page
 *
 * Cross-validation: traces are cut into parts, by sequence, or where there are few of these into stretches of steps. A replay of
 * all traces gives the figures of every part. What is fitted to traces (slots of each layer) is fitted once without each part,
 * and that part's figures are taken from there. The margin that is reported for a part is that of the configuration which is best
 * on the other parts.
 *
 * The choice is the simplest configuration among those that are as good as the best: whose cost, part by part, is above that of
 * the best by no more than one standard error of these differences, or half a percent. What is within the noise of one set of
 * traces is no reason to leave the default.
 *
 * Who may call it: src/tune*.c, src/report*.c. Threads: stk_tune's caller, and for the replays threads that end before it
 * returns.
 */
#ifndef STK_TUNE_H
#define STK_TUNE_H

#include "profile_file.h"
#include "src/replay/replay.h"
#include "traces/source.h"

enum {
    STK_TUNE_PARTS = 8, /* at most */
    STK_TUNE_ALL = -1,  /* no part is left out */
    STK_TUNE_TEXT = 2 * STK_SPEC_BYTES + 128,
    STK_TUNE_TRIALS = 32, /* at a time */
};

/* What is summed up over steps. */
enum stk_tune_figure {
    STK_TUNE_TOKENS,
    STK_TUNE_LOOKUPS,
    STK_TUNE_HITS,
    STK_TUNE_BYTES,
    STK_TUNE_STEP_NS,
    STK_TUNE_DENSE_NS,
    STK_TUNE_EXPERT_NS,
    STK_TUNE_ARRIVE_NS,
    STK_TUNE_WAIT_NS,
    STK_TUNE_N_FIGURE
};
typedef struct stk_tune_sum {
    uint64_t v[STK_TUNE_N_FIGURE];
} stk_tune_sum;

/* ---- The traces --------------------------------------------------------------------------------------------------------- */

typedef struct stk_tune_traces {
    const char *const *paths; /* [n_path] borrowed */
    uint32_t n_path;
    stk_source_options source; /* how they are to be read */
    char model[STK_PROFILE_NAME_BYTES], io[256];
    uint32_t n_layer, n_expert, k, n_part;
    bool sized, one_size;    /* bytes of experts are known; all are the same */
    uint64_t *slot_bytes;    /* [n_layer] */
    uint64_t all_bytes;      /* of slots for every expert */
    uint64_t recorded_bytes; /* of the recorded run's slots, transit included; 0: none */
    uint64_t n_step, n_token, n_sequence;
    uint64_t n_decode; /* tokens of steps that decode */
    uint32_t n_ahead;  /* layers ahead that the trace has predictions of; 0: none */
    uint64_t hash;     /* of all routing */
    uint8_t *part;     /* [n_step] */
    uint64_t *uses;    /* [n_layer, n_expert] lookups */
    uint32_t *near;    /* [n_part, n_layer, n_expert] lookups whose expert was used d + 1 experts of its layer ago */
    uint64_t *far;     /* [n_layer * n_expert] the same over all layers: d + 1 experts ago */
    uint64_t n_lookup;
} stk_tune_traces;

/* `t` has paths, n_path and source set, the rest 0. Two passes. Errors: those of sources; STK_ECANCELED by progress. */
int stk_tune_traces_open(stk_tune_traces *t, stk_progress_fn progress, void *user) STK_CHECKED;
void stk_tune_traces_close(stk_tune_traces *t);

/*
 * Slots of each layer for `bytes`, by marginal gain: the next slots go where they save most misses a byte, by how far apart the
 * uses of experts lie in the parts other than `without`. n_transit of a layer hold nothing. STK_EBUDGET.
 */
int stk_tune_traces_fit(const stk_tune_traces *t, uint64_t bytes, uint32_t n_transit, int without, uint32_t *n_slot) STK_CHECKED;

/* ---- Replays ------------------------------------------------------------------------------------------------------------ */

typedef struct stk_tune_config {
    char policy[STK_SPEC_BYTES], predictor[STK_SPEC_BYTES]; /* of the latter "none"; "gate": what the trace recorded */
    uint32_t depth;
    uint32_t scope;
    bool fitted, timed;
    uint64_t ram_bytes;
} stk_tune_config;

typedef struct stk_tune_job {
    stk_tune_config config;
    int without; /* part that a fitted configuration was not fitted to, or STK_TUNE_ALL */
    bool done;
    stk_tune_sum sums[STK_TUNE_PARTS][2]; /* by part and phase */
} stk_tune_job;

typedef struct stk_tuning {
    stk_tune_options o;
    stk_trace_header shape; /* of o.model or o.model_shape; else all 0 */
    stk_tune_traces traces;
    uint64_t ram_bytes;
    enum stk_phase phase; /* that counts */
    bool timed;
    stk_tune_job *jobs; /* [n_job] all that were done or asked for */
    uint32_t n_job, job_room;
    stk_tune_job
        *kept; /* [n_kept] results of an earlier call, which become jobs when they are asked for: so jobs keep their order */
    uint32_t n_kept;
    uint32_t n_done, n_resumed;
    uint32_t n_expected; /* replays in all, for progress */
    uint64_t state_hash; /* of what results depend on */
} stk_tuning;

/* Asks for a replay, unless it is there already. Returns its number, or an error. */
int stk_tune_add(stk_tuning *t, const stk_tune_config *config, int without) STK_CHECKED;
/* Runs what was asked for and is not done. STK_ECANCELED by progress; then the state is saved. */
int stk_tune_run(stk_tuning *t) STK_CHECKED;
/* Takes the results of an earlier call over. A state of other traces or options is passed over, with a line that says so. */
int stk_tune_state_load(stk_tuning *t) STK_CHECKED;
int stk_tune_state_save(const stk_tuning *t) STK_CHECKED;
/* Text that names a job, for the state. */
void stk_tune_job_text(const stk_tune_job *job, char out[STK_TUNE_TEXT]);
/* Of a configuration's policy, whatever its parameters. */
const stk_policy_ops *stk_tune_policy(const stk_tune_config *config);
bool stk_tune_same(const stk_tune_config *a, const stk_tune_config *b);

/* ---- Parameters ---------------------------------------------------------------------------------------------------------- */

typedef struct stk_tune_trials {
    stk_tune_config items[STK_TUNE_TRIALS];
    uint32_t n;
} stk_tune_trials;

/* The text of a configuration's policy or predictor, by STK_METHOD_.... */
char *stk_tune_spec(stk_tune_config *config, uint32_t kind);
bool stk_tune_same_method(const stk_tune_config *a, const stk_tune_config *b, uint32_t kind);
/* Parameters that a spec sets. */
uint32_t stk_tune_n_set(const char *spec);
/* Each parameter of a configuration's policy or predictor across its range, the others as they are there. */
void stk_tune_coarse(const stk_tune_config *at, uint32_t kind, stk_tune_trials *out);
/* Each one halfway from the best to the nearest values on either side among those tried [n_tried]. */
void stk_tune_fine(const stk_tune_config *best, uint32_t kind, const stk_tune_config *tried, uint32_t n_tried,
                   stk_tune_trials *out);

/* ---- The search --------------------------------------------------------------------------------------------------------- */

/* All candidates of the choice, each with the figures of every part. */
typedef struct stk_tune_candidate {
    stk_tune_config config;
    stk_tune_sum parts[STK_TUNE_PARTS][2];
} stk_tune_candidate;

typedef struct stk_tune_list {
    stk_tune_candidate *items; /* [n] the default first */
    uint32_t n;
} stk_tune_list;

int stk_tune_search(stk_tuning *t, stk_tune_list *list) STK_CHECKED;
/* The candidate of the least cost over the parts of `mask`; what was found first among equals. */
uint32_t stk_tune_least(const stk_tuning *t, const stk_tune_list *list, uint32_t mask);
/* The simplest of those that are as good as that one; among equally simple ones the least cost. *n_tied: how many there are; or
 * NULL. */
uint32_t stk_tune_choose(const stk_tuning *t, const stk_tune_list *list, uint32_t mask, uint32_t *n_tied);
/* What is to be less: time of a token, or misses of a lookup, over the parts of `mask`. */
double stk_tune_cost(const stk_tuning *t, const stk_tune_sum parts[STK_TUNE_PARTS][2], uint32_t mask);
stk_tune_sum stk_tune_total(const stk_tuning *t, const stk_tune_sum parts[STK_TUNE_PARTS][2], uint32_t mask);
/* Hits without reading ahead that no cache exceeds, over all parts. */
int stk_tune_bound(stk_tuning *t, uint64_t ram_bytes, double *hit_rate) STK_CHECKED;
/* The same of a configuration's cache. */
int stk_tune_cache(stk_tuning *t, const stk_tune_config *config, double *hit_rate) STK_CHECKED;

/* Hit rates without reading ahead by budget, for the report. */
enum { STK_TUNE_BUDGETS = 8, STK_TUNE_CURVES = 8 };
typedef struct stk_tune_curves {
    double fractions[STK_TUNE_BUDGETS];
    uint32_t n_budget, n_curve;
    char names[STK_TUNE_CURVES][64];
    double rates[STK_TUNE_CURVES][STK_TUNE_BUDGETS]; /* negative: the budget is too small for it; the last curve is the bound */
} stk_tune_curves;
int stk_tune_curves_make(stk_tuning *t, const stk_tune_list *list, uint32_t best, stk_tune_curves *curves) STK_CHECKED;

/* ---- The report --------------------------------------------------------------------------------------------------------- */

typedef struct stk_tune_report {
    const stk_tuning *tune;
    const stk_tune_result *result;
    const stk_tune_list *list;
    const stk_tune_curves *curves;
    uint32_t best;
    double margins[STK_TUNE_PARTS];
    const uint32_t *layer_slots; /* [n_layer] of the best, or NULL */
} stk_tune_report;
int stk_tune_report_save(const char *path, const stk_tune_report *report) STK_CHECKED;

#endif
