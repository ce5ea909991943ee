/*
 * session: a model and an engine for one verb, and what is said of them: the lines at the start, the table at the end, the same
 * figures as JSON.
 *
 * Functions that can fail return an exit code after one message.
 */
#ifndef STK_CLI_SESSION_H
#define STK_CLI_SESSION_H

#include <cjson/cJSON.h>

#include "common.h"

typedef struct cli_session {
    stk_model *model;
    stk_engine *engine;
    stk_model_info info;
    stk_memory_info memory;
    double open_seconds;          /* of opening the engine */
    const cli_settings *settings; /* of the engine */
    uint64_t n_token;             /* of all steps */
    stk_stats told;               /* when --stats last printed a line */
    const char *resize_at;        /* what is left of --resize-at */
} cli_session;

int cli_session_open_model(cli_session *session, const char *path);
/* Opens the engine for n_ctx positions and steps of at most n_batch tokens, n_logits of them with logits, and prints what was
 * reserved. */
int cli_session_open_engine(cli_session *session, const cli_settings *settings, uint32_t n_ctx, uint32_t n_batch,
                            uint32_t n_logits);
/* Whether --resize-at is a list; CLI_USAGE after a message. */
int cli_session_check_resize(const cli_settings *settings);
/* stk_step; then the line of --stats and the change of --resize-at that are due. Returns a code of the library. */
int cli_session_step(cli_session *session, const stk_batch *batch);

/* Closes both. Returns the verb's exit code `rc`; where that is CLI_OK but the trace could not be ended, CLI_FAILED after a
 * message. */
int cli_session_close(cli_session *session, int rc);

/*
 * The file that `stoker doctor --calibrate` writes by default for this machine, kernels and number of threads:
 * $XDG_CACHE_HOME/stoker/cost-CPU-KERNELS-THREADSt.json (or below $HOME/.cache). Returns `out`, which has `bytes`; NULL when
 * there is no such directory.
 */
const char *cli_cost_path(const cli_settings *settings, char *out, size_t bytes);

/* The cost file to start from: the user's, else that one if it is there and in order, else NULL. */
const char *cli_cost_choose(const cli_settings *settings, char *out, size_t bytes);

/* Positions for `settings`: -c, or the lesser of the model's context and `most`. */
uint32_t cli_session_context(const cli_session *session, const cli_settings *settings, uint32_t most);

/* Tokenizes; *ids is the caller's to free. flags: STK_TOKENIZE_... */
int cli_session_tokenize(const cli_session *session, const char *text, size_t bytes, uint32_t flags, int32_t **ids, size_t *n);

/* CLI_USAGE, after a message, when an id is beyond the vocabulary. */
int cli_session_check_tokens(const cli_session *session, const cli_list *tokens);

/* Counters since open. */
stk_stats cli_session_stats(const cli_session *session);
/* `after` less `before`. */
stk_stats cli_stats_minus(const stk_stats *after, const stk_stats *before);
double cli_hit_rate(const stk_stats *stats);
/* Of the experts that were read ahead, those that were used; of all experts that were read, those that nobody used. */
double cli_prefetch_precision(const stk_stats *stats);
double cli_prefetch_waste(const stk_stats *stats);
double cli_tokens_per_second(const stk_stats *stats);

/* A line about the steps of a span, the last of which was token n_token. */
void cli_print_stats(const stk_stats *stats, uint64_t n_token);

/* The table at the end, on stderr; `prefill` may be NULL where a verb knows one phase alone. */
void cli_print_table(const stk_stats *prefill, const stk_stats *decode, bool every_counter);

/* Every counter as object `name`; sizes as object "memory". */
void cli_json_stats(cJSON *json, const char *name, const stk_stats *stats);
/* How predictions of each depth did that there were: recall among as many as were used, and among twice as many. */
void cli_print_predicted(const stk_engine *engine);
void cli_json_predicted(cJSON *json, const stk_engine *engine);
/* The same of a replay's, on stdout and as JSON. */
enum { CLI_N_DEPTH = 3 };
int cli_report_predicted(const stk_predict_count counts[CLI_N_DEPTH]);
void cli_json_predicted_counts(cJSON *json, const stk_predict_count counts[CLI_N_DEPTH]);
void cli_json_memory(cJSON *json, const stk_memory_info *memory);
/* What a replay with VRAM found: a phase as object `name`; all of it as text. */
void cli_json_tiers(cJSON *json, const char *name, const stk_replay_tiers *tiers);
int cli_report_tiers(const stk_replay_result *result, const stk_replay_detail *detail);
/* Adds a text of any bytes (a 0 byte included). */
void cli_json_text(cJSON *json, const char *name, const char *text, size_t bytes);
/* Prints and frees `json`. */
int cli_json_print(cJSON *json);

#endif
