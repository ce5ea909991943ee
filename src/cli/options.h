/*
 * options: what a user may say on the command line, as one table. The parser, `--help`, the defaults and the test of the man page
 * all read it, so that they cannot disagree.
 *
 * A row belongs to one or more verbs; a name may have several rows for different verbs, where a default or a meaning differs. The
 * default of an option is text that goes through the same parser and the same range check as a user's value.
 */
#ifndef STK_CLI_OPTIONS_H
#define STK_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes; an interrupted run ends with 128 + the signal's number. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* Numbers such as token ids: "1,2,3", or "@FILE". */
typedef struct cli_list {
    int32_t *v; /* owned by the settings */
    size_t n;
} cli_list;

typedef struct cli_settings {
    const char *operand;   /* the first argument without a dash, NULL for none */
    char *const *operands; /* [n_operand] all of them */
    int n_operand;
    const char *model, *prompt, *file, *output;
    const char *io, *policy, *predictor, *cpu, *trace;
    const char *scope, *reset, *csv, *cost, *mode, *uses_from, *ahead;
    const char *kv_k, *kv_v; /* "f16" or "f32" */
    const char *svg, *route_from, *warm, *watch, *resize_at, *profile, *report, *state, *shape, *tier;
    const char *device, *vram, *vram_policy, *float_mode;
    cli_list tokens, chunk, n_prompt, n_gen, n_depth;
    int64_t n_predict, n_greedy, n_ahead, n_ctx, n_threads, n_batch, n_rep;
    int64_t n_gpu_layers, top_k, repeat_last_n, seed, n_slot, first_step, n_step, n_layer, n_vocab, n_stats, n_job;
    double temp, top_p, min_p, repeat_penalty, fraction;
    uint64_t ram_bytes, ram_free_bytes, vram_bytes, vram_cap_bytes, expert_bytes, pin_bytes, staging_bytes;
    bool device_fallback, mlock, ignore_eos, chat, json, stats, verify, list_tensors, limits, calibrate, check, verbose, quiet,
        help;
} cli_settings;

/* The number of an option whose value was left out, as text. */
#define CLI_NO_VALUE "32"

enum cli_kind {
    CLI_FLAG, /* bool */
    CLI_TEXT, /* const char * */
    CLI_INT,  /* int64_t in [min, max] */
    CLI_REAL, /* double in [min, max] */
    CLI_SIZE, /* uint64_t bytes, suffixes of powers of 1,024, at least min */
    CLI_LIST, /* cli_list of int32_t in [min, max] */
};

typedef struct cli_option {
    uint32_t verbs;    /* bits of enum cli_verb_bit */
    char letter;       /* "-m"; 0 for none */
    const char *name;  /* "model": --model */
    const char *alias; /* a further name, with one dash or two; NULL for none */
    const char *value; /* what help calls the value, "a|b" for a choice of texts, "[N]" for a number that may be left out and is
                          then CLI_NO_VALUE; NULL for a flag */
    enum cli_kind kind;
    double min, max;
    size_t offset;       /* in cli_settings */
    const char *initial; /* the default as text; NULL: zero */
    const char *help;
} cli_option;

enum cli_verb_bit {
    CLI_RUN = 1,
    CLI_INSPECT = 2,
    CLI_PERPLEXITY = 4,
    CLI_LOGITS = 8,
    CLI_REPLAY = 16,
    CLI_VERSION = 32,
    CLI_HELP = 64,
    CLI_TRACE = 128,
    CLI_BENCH = 256,
    CLI_DOCTOR = 512,
    CLI_SYNTH = 1024,
    CLI_TUNE = 2048,
    CLI_PLAN = 4096,
    CLI_PACK = 8192,
    CLI_ALL = 16383,
};

typedef struct cli_verb {
    enum cli_verb_bit bit;
    const char *name;
    const char *operand; /* what it is called in the help; "[X]" when it may be absent, "X Y" for two, "X..." for several of the
                            last; NULL: takes none */
    const char *summary;
    const char *text; /* further lines of its help */
    int (*run)(const cli_settings *settings);
} cli_verb;

/* The verbs, in the order of the help (main.c). */
extern const cli_verb cli_verbs[];
extern const size_t cli_n_verb;
const cli_verb *cli_verb_find(const char *name);

/* The rows of the option table (flags.c). */
extern const cli_option cli_options[];
extern const size_t cli_n_option;

/*
 * Parses what follows the verb into *settings, defaults first. argv[0] is the verb. Returns CLI_OK, or CLI_USAGE after one
 * message on stderr; CLI_FAILED when memory runs out. Free with cli_settings_fini in any case. Texts point into argv.
 */
int cli_settings_parse(cli_settings *settings, const cli_verb *verb, int argc, char **argv);
void cli_settings_fini(cli_settings *settings);

/* Of `n` names (NULLs are skipped) the nearest to `text` by edit distance, NULL when none is near. */
const char *cli_nearest(const char *text, const char *const *names, size_t n);

/* Parses a size, "8G", "1.5GiB", "4096"; false when it is none or does not fit. */
bool cli_size_parse(const char *text, uint64_t *bytes);

/* Writes the help of one verb. */
void cli_help_verb(FILE *out, const cli_verb *verb);

int cli_run(const cli_settings *settings);
int cli_inspect(const cli_settings *settings);
int cli_perplexity(const cli_settings *settings);
int cli_logits(const cli_settings *settings);
int cli_replay(const cli_settings *settings);
int cli_tune(const cli_settings *settings);
int cli_trace(const cli_settings *settings);
int cli_bench(const cli_settings *settings);
int cli_doctor(const cli_settings *settings);
int cli_plan(const cli_settings *settings);
int cli_synth(const cli_settings *settings);
int cli_pack(const cli_settings *settings);
int cli_version(const cli_settings *settings);
int cli_help(const cli_settings *settings);

#endif
