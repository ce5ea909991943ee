/*
 * stoker: runs Mixture-of-Experts language models that are larger than memory. The public C API.
 *
 * A model is opened from GGUF files and is read-only. An engine runs one model under fixed memory budgets: it holds the dense
 * weights, a cache of experts and the KV pages of its sequences. stk_step is the one primitive that computes: everything else
 * (generation, perplexity, serving) is a loop around it. The output never depends on what was cached.
 *
 * Calls return 0 or a count on success and a negative STK_E... on failure; stk_error_detail() then says what, where and what to
 * do, for the calling thread. Option and info structs begin with `struct_bytes`, set by the caller or by stk_..._default() to
 * the size that the caller was compiled with, so that old callers keep working: nothing behind that is read or written. Options
 * that are larger than this library knows are refused with STK_EINVAL. No inline functions, no varargs, no structs by value.
 *
 * Threads: a model may be shared between threads. An engine, sampler or decoder belongs to one thread at a time, except for
 * stk_cancel, which any thread or signal handler may call. Ownership: who opens closes; stk_..._close(&p) accepts NULL and clears
 * the pointer. Strings and arrays that are returned belong to the object and live until it is closed or the next call on it.
 *
 * Long because one header is all of the public API.
 */
#ifndef STOKER_H
#define STOKER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef STK_API
#define STK_API __attribute__((visibility("default")))
#endif

/* Raised whenever an existing declaration changes its meaning; additions at the end of a struct do not raise it. */
#define STK_ABI_VERSION 2
STK_API uint32_t stk_abi_version(void);
/* "major.minor.patch". */
STK_API const char *stk_version(void);
/* What STK_FLOAT_FAST computes with, "oneDNN 2.6.3", or why that cannot be loaded; NULL: this build does without. */
STK_API const char *stk_float_fast_name(void);

/* ---- Errors, log, progress ---------------------------------------------------------------------------------------------- */

enum {
    STK_OK = 0,
    STK_EINVAL = -1,       /* an argument or option has no meaning here */
    STK_ENOMEM = -2,       /* the system refused memory */
    STK_EIO = -3,          /* reading or writing failed */
    STK_EFORMAT = -4,      /* a file is malformed or cut off */
    STK_EUNSUPPORTED = -5, /* a valid file or request that this build cannot serve */
    STK_EBUDGET = -6,      /* a memory budget is too small; the detail names the least */
    STK_EFULL = -7,        /* no room for more positions */
    STK_ECANCELED = -8,    /* stk_cancel was called, or a progress callback asked for it */
    STK_ENOSPC = -9,       /* a disk is full */
    STK_ESTATE = -10,      /* the object is not in a state that allows the call */
    STK_ELOST = -11,       /* the device is lost; only another engine, without it, can go on */
};

/* A short name of an error code. Never NULL. */
STK_API const char *stk_strerror(int code);
/* What the calling thread's last failed call had to say; "" before the first failure. */
STK_API const char *stk_error_detail(void);

enum { STK_LOG_ERROR, STK_LOG_WARN, STK_LOG_INFO, STK_LOG_DEBUG };
/* Receives one line without a newline. May be called from the thread that runs an API call. */
typedef void (*stk_log_fn)(void *user, int level, const char *line);
/* Sets the process-wide sink; NULL (the initial state) drops all lines. Call before other threads use the library. */
STK_API void stk_log_set(stk_log_fn fn, void *user);

/* Receives progress in bytes of the work called `what`; a non-zero return cancels it with STK_ECANCELED. */
typedef int (*stk_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total);

/* ---- Model -------------------------------------------------------------------------------------------------------------- */

typedef struct stk_model stk_model;

/*
 * Opens a GGUF model (version 2 or 3). For a split model `path` names any of its parts. Reads the metadata alone; weights are
 * read by stk_engine_open. Errors: STK_EIO, STK_EFORMAT (names file, offset, field), STK_EUNSUPPORTED (architecture, type),
 * STK_ENOMEM.
 */
STK_API int stk_model_open(stk_model **out, const char *path);
STK_API void stk_model_close(stk_model **model);

typedef struct stk_model_info {
    uint32_t struct_bytes;
    uint32_t n_layer;
    uint32_t n_embd;
    uint32_t n_vocab;
    uint32_t n_ctx_train;
    uint32_t n_head;
    uint32_t n_head_kv;
    uint32_t head_dim;
    uint32_t n_expert;      /* 0 when the model is dense */
    uint32_t n_expert_used; /* k */
    uint32_t n_moe_layer;
    uint32_t n_file;
    uint64_t file_bytes;
    uint64_t n_param;
    uint64_t expert_bytes;     /* of all experts, as stored */
    uint64_t dense_bytes;      /* of everything else, as stored */
    uint64_t expert_bytes_min; /* of the smallest single expert */
    uint64_t expert_bytes_max; /* of the largest single expert */
    uint64_t token_bytes;      /* weight bytes read for one decoded token */
    const char *arch;
    const char *name;       /* "" when the file has none */
    uint64_t ram_bytes_min; /* the least budget of expert slots that it runs with */
    uint64_t ram_bytes_all; /* the budget that holds every expert */
    uint32_t packed;        /* version of the form that stk_pack wrote it in; 0: a plain model */
    uint32_t reserved;
} stk_model_info;
/* Fills at most info->struct_bytes bytes. Errors: STK_EINVAL. */
STK_API int stk_model_get_info(const stk_model *model, stk_model_info *info);

/* Number of metadata keys, and key i with its type name and its value as text (arrays are cut after a few elements). */
STK_API uint64_t stk_model_n_meta(const stk_model *model);
STK_API int stk_model_get_meta(const stk_model *model, uint64_t i, const char **key, const char **type, const char **text);

typedef struct stk_tensor_info {
    uint32_t struct_bytes;
    uint32_t n_dim;
    uint64_t dim[4]; /* dim[0] is contiguous; unused ones are 1 */
    uint64_t offset; /* from the start of its file */
    uint64_t bytes;
    uint32_t file; /* which part of a split model */
    uint32_t type; /* ggml type number */
    const char *name;
    const char *type_name;
} stk_tensor_info;
STK_API uint64_t stk_model_n_tensor(const stk_model *model);
STK_API int stk_model_get_tensor(const stk_model *model, uint64_t i, stk_tensor_info *info);

/* Layers whose experts have the same types and shapes. */
typedef struct stk_expert_class_info {
    uint32_t struct_bytes;
    uint32_t n_layer;
    uint64_t bytes; /* of one expert, as in a plain model; of its matrices: */
    uint64_t gate_bytes;
    uint64_t up_bytes;
    uint64_t down_bytes;
    const char *gate_type;
    const char *up_type;
    const char *down_type;
} stk_expert_class_info;
STK_API uint64_t stk_model_n_expert_class(const stk_model *model);
/* Fills at most info->struct_bytes bytes. Errors: STK_EINVAL. */
STK_API int stk_model_get_expert_class(const stk_model *model, uint64_t i, stk_expert_class_info *info);

/* Whether `path` names one of the model's own files, by whatever name: 1 or 0. Ask before writing to it. */
STK_API int stk_model_owns_file(const stk_model *model, const char *path);

/* ---- Text --------------------------------------------------------------------------------------------------------------- */

enum {
    STK_TOKENIZE_BOS = 1,     /* add what the model wants in front (nothing, if it wants nothing or it is there already) */
    STK_TOKENIZE_SPECIAL = 2, /* recognise the text of control tokens */
};
/*
 * Tokenizes `bytes` bytes of UTF-8 (invalid bytes are kept as bytes). Writes at most `cap` ids to `ids` and returns the number
 * that the text needs, which may be more than `cap`; `ids` may be NULL when cap is 0. Errors: STK_ENOMEM,
 * STK_EUNSUPPORTED (no tokenizer for the model, or no token for a byte), STK_EINVAL.
 */
STK_API int64_t stk_tokenize(const stk_model *model, const char *text, size_t bytes, uint32_t flags, int32_t *ids, size_t cap);

/* The bytes that token `id` prints (not 0-terminated, may be part of a character). Control tokens print nothing unless
 * `special`. Returns the number of bytes and sets *bytes, which lives as long as the model. Errors: STK_EINVAL (no such id). */
STK_API int64_t stk_token_bytes(const stk_model *model, int32_t id, int special, const char **bytes);

/* Whether `id` ends generation. */
STK_API int stk_token_is_end(const stk_model *model, int32_t id);

/* Turns a stream of tokens into text without ever cutting a UTF-8 character. */
typedef struct stk_decoder stk_decoder;
STK_API int stk_decoder_open(stk_decoder **out, const stk_model *model, int special);
STK_API void stk_decoder_close(stk_decoder **decoder);
/* Adds a token; returns the number of bytes now printable and sets *text to them (valid until the next call). */
STK_API int64_t stk_decoder_put(stk_decoder *decoder, int32_t id, const char **text);
/* Returns what is left (an incomplete character becomes U+FFFD) and resets the decoder. */
STK_API int64_t stk_decoder_flush(stk_decoder *decoder, const char **text);

typedef struct stk_chat_message {
    const char *role; /* "system", "user", "assistant" */
    const char *text;
} stk_chat_message;
/* Formats messages as ChatML and opens the assistant's turn. Writes at most `cap` bytes (0-terminated where it fits) and returns
 * the number of bytes needed without the terminator. Errors: STK_EINVAL, STK_EUNSUPPORTED (the model has no ChatML tokens). */
STK_API int64_t stk_chat_format(const stk_model *model, const stk_chat_message *messages, size_t n, char *out, size_t cap);

/* ---- Policies and predictors --------------------------------------------------------------------------------------------- */

enum {
    STK_METHOD_POLICY,    /* which expert leaves the cache */
    STK_METHOD_PREDICTOR, /* what is read ahead of its use */
};

/* A policy or predictor that is built in. It is named NAME or NAME:PARAMETER=VALUE,... wherever one is asked for. */
typedef struct stk_method_info {
    uint32_t struct_bytes;
    uint32_t n_param;
    const char *name;
    const char *idea;     /* one line */
    uint32_t replay_only; /* non-zero: it knows the future, and is for replays */
    uint32_t reserved;
} stk_method_info;
/* Fills at most info->struct_bytes bytes. kind: STK_METHOD_...; i counts from 0. 1: there is one; 0: beyond the last. Errors:
 * STK_EINVAL. */
STK_API int stk_get_method(uint32_t kind, uint32_t i, stk_method_info *info);

/* A number that one takes, from `least` to `most`. */
typedef struct stk_param_info {
    uint32_t struct_bytes;
    uint32_t reserved;
    const char *name;
    const char *what; /* it says, in a few words */
    double least, most, initial;
} stk_param_info;
/* The same for parameter `param` of method i. */
STK_API int stk_get_method_param(uint32_t kind, uint32_t i, uint32_t param, stk_param_info *info);

/* ---- Policies of your own ------------------------------------------------------------------------------------------------ */

/* Why an expert came in: an event asked for it, a prediction did, or it was there when the engine opened. */
enum stk_why { STK_WHY_DEMAND, STK_WHY_PREFETCH, STK_WHY_WARM };

/* An event, one layer of one step, as a policy hears of it. The key of an expert is layer * n_expert + its number. Everything is
 * valid until the hook returns. */
typedef struct stk_policy_event {
    uint32_t struct_bytes;
    uint32_t layer; /* among the layers with experts, from 0 */
    uint64_t step;  /* from 0 */
    uint32_t n_tok;
    uint32_t k;              /* experts of a token */
    uint32_t n_top;          /* scored experts of a token, 0 for none */
    uint32_t n;              /* distinct experts */
    const uint32_t *keys;    /* [n] ascending, resident or not */
    const uint32_t *counts;  /* [n] tokens of each */
    const int32_t *seq;      /* [n_tok] */
    const int32_t *pos;      /* [n_tok] */
    const int32_t *token;    /* [n_tok] */
    const uint16_t *ids;     /* [n_tok, k] in rank order; 65535 for none */
    const float *weights;    /* [n_tok, k], or NULL */
    const uint16_t *top_ids; /* [n_tok, n_top] best first */
    const float *top_scores; /* [n_tok, n_top] router probabilities */
} stk_policy_event;

/* What an instance decides for: the experts of one size, in slots of their own. */
typedef struct stk_policy_shape {
    uint32_t struct_bytes;
    uint32_t instance; /* number of the size class, from 0 */
    uint32_t n_key;    /* keys of all instances are below this */
    uint32_t n_expert; /* of a layer */
    uint32_t n_slot;   /* most residents */
    uint32_t reserved;
    uint64_t seed;
} stk_policy_shape;

/*
 * The hooks of a policy. They are called by the thread that runs stk_engine_open, stk_step, stk_replay and stk_engine_close, and
 * must not call the same engine. A hook returns 0 or a result, or a negative number for a failure; then, and where a victim is
 * busy or not resident or a score is no number, LRU decides for the rest of that event, `fault` is told, one line is logged, and
 * the run goes on. `inserted` and `evicted` are told in any case, so that the policy's own books stay right.
 *
 * Who leaves is said by one of three: `victim`; `score`; or `scores`, which is what `score` would say for the whole run, computed
 * in advance (for replays). With scores, the resident of the least score leaves; among equals the least recently used one. An
 * expert keeps its score until its next event; one that was predicted counts as the worst until then, as with LRU, and one that
 * was there when the engine opened as the best so far.
 */
typedef struct stk_policy_hooks {
    uint32_t struct_bytes;
    uint32_t reserved;
    const char *name; /* in messages and traces; NULL: "user" */
    void *user;
    /* Begins an instance; *policy is handed to the other hooks. NULL: it is `user`. Fails: so does what opens the cache. */
    int (*open)(void *user, const stk_policy_shape *shape, void **policy);
    void (*close)(void *policy);
    /* An event, before its experts are looked up. */
    int (*touch)(void *policy, const stk_policy_event *event);
    /* 1: take a missed expert in; 0: use it once and forget it. NULL: always 1. With it, k slots of each size are set aside. */
    int (*admit)(void *policy, uint32_t key);
    int (*inserted)(void *policy, uint32_t key, int why); /* enum stk_why */
    int (*evicted)(void *policy, uint32_t key);
    int (*resized)(void *policy, uint32_t n_slot);
    /* Sets *key to a resident whose bit in busy [n_key bits] is clear and returns 1; 0 when all are busy. */
    int (*victim)(void *policy, const uint64_t *busy, uint32_t *key);
    /* Called in place of `touch` where there is one: writes the scores [event->n] of the event's experts. */
    int (*score)(void *policy, const stk_policy_event *event, double *scores);
    const double *scores; /* [n_scores] of every expert of every event, in the run's order, keys ascending within an event */
    uint64_t n_scores;
    void (*fault)(void *policy, int code, const char *detail);
} stk_policy_hooks;

/* ---- Predictors of your own ---------------------------------------------------------------------------------------------- */

/* An expert that a layer ahead may want. */
typedef struct stk_prediction {
    uint32_t expert; /* of its layer */
    float p;         /* that at least one token of the layer's next event uses it, 0 to 1 */
} stk_prediction;

/* How predictions did against what was then used: recall is n_found / n_lookup. */
typedef struct stk_predict_count {
    uint64_t n_event;     /* that something was predicted for */
    uint64_t n_lookup;    /* distinct experts of these */
    uint64_t n_found;     /* of an event's n, those among the first n predictions; */
    uint64_t n_found2;    /* among the first 2n */
    uint64_t n_predicted; /* experts; of these, used: */
    uint64_t n_used;
} stk_predict_count;

/* What a predictor predicts for. */
typedef struct stk_predictor_shape {
    uint32_t struct_bytes;
    uint32_t n_layer;  /* with experts */
    uint32_t n_expert; /* of a layer */
    uint32_t k;        /* of a token */
    uint32_t depth;    /* layers ahead that it will be asked for, 1 to 3 */
    uint32_t n_max;    /* predictions of a layer that are used: the best 2k */
    uint64_t seed;
} stk_predictor_shape;

/*
 * The hooks of a predictor, called as those of a policy are. At each event `observe` hears of it, then `suggest` is asked for
 * each of the next layers of the same step. Where a hook returns a negative number, or predicts what cannot be, nothing is
 * predicted for the rest of that event, `fault` is told, one line is logged, and the run goes on. What is read ahead of what was
 * predicted is the library's choice (likely enough, and not resident), and on record in a trace. Nothing is asked where every
 * expert has a slot.
 *
 * What will be predicted is said by one of two: `suggest`; or `first` and `list`, what it would say for the whole run, computed
 * in advance (for replays).
 */
typedef struct stk_predictor_hooks {
    uint32_t struct_bytes;
    uint32_t wants_lookahead; /* non-zero: live, `observe` is given what the routers of the layers ahead say */
    const char *name;         /* in messages; NULL: "user" */
    void *user;
    /* Begins the predictor; *predictor is handed to the other hooks. NULL: it is `user`. Fails: so does what opens it. */
    int (*open)(void *user, const stk_predictor_shape *shape, void **predictor);
    void (*close)(void *predictor);
    /* An event, the layers of a step ascending. ahead [n_ahead, event->n_tok, n_expert]: probabilities of the routers of the next
     * layers run on today's hidden state; n_ahead is 0 in replays, in steps of more than 8 tokens, and where not asked for. */
    int (*observe)(void *predictor, const stk_policy_event *event, const float *ahead, uint32_t n_ahead);
    /* Writes predictions for `layer`, `depth` layers ahead of the latest event, in any order, each expert once; at most cap, the
     * experts of a layer. Returns how many. */
    int (*suggest)(void *predictor, uint32_t layer, uint32_t depth, stk_prediction *out, uint32_t cap);
    const stk_prediction *list; /* [n_list] */
    const uint64_t *first;      /* [n_event * depth + 1]: of event i, d layers ahead, list[first[j]] to list[first[j + 1]] with
                                   j = i * depth + d - 1 */
    uint64_t n_list, n_event;
    uint32_t depth; /* of `first`: that of the run */
    uint32_t reserved;
    void (*fault)(void *predictor, int code, const char *detail);
} stk_predictor_hooks;

/* ---- Engine ------------------------------------------------------------------------------------------------------------- */

typedef struct stk_engine stk_engine;

enum { STK_KV_F16, STK_KV_F32 };

/*
 * How products of weights of F32, F16 and BF16 are computed. EXACT: the same bits on every machine, for any number of threads and
 * of tokens in a step. FAST: in the CPU's BF16 units by oneDNN, from six tokens that go through the same weights on; activations,
 * and weights of F32 and F16, are rounded to BF16. Then bits may differ between machines, numbers of threads and numbers of
 * tokens in a step; they still do not depend on what is cached. Routers, and experts beside a GPU, stay exact. A permission:
 * where this build or CPU cannot, products stay exact and one log line says why.
 */
enum { STK_FLOAT_EXACT, STK_FLOAT_FAST };

typedef struct stk_engine_options {
    uint32_t struct_bytes;
    uint32_t n_ctx;     /* positions of all sequences together; 0: the lesser of the model's context and 4,096 */
    uint32_t n_batch;   /* most tokens of one step; 0: 512 */
    uint32_t n_seq_max; /* sequences, numbered from 0; 0: 1 */
    uint32_t n_logits;  /* most entries of one step that ask for logits; 0: n_seq_max */
    uint32_t n_threads; /* 0: the physical cores that this process may use */
    uint32_t kv_k_type; /* STK_KV_..., F16 by default */
    uint32_t kv_v_type;
    uint32_t mlock;      /* non-zero: lock weights and slots in memory */
    uint32_t float_mode; /* STK_FLOAT_... */
    uint64_t ram_bytes;  /* bytes of expert slots in RAM; 0: what the cgroup and free memory allow, less a margin */
    uint64_t seed;       /* of everything pseudo-random (modelled drives, random policies) */
    const char *io;      /* NULL or "auto", "uring", "pread", "emu:BANDWIDTH,LATENCY[,OPTIONS]" (io/io.h) */
    const char *policy;  /* NAME or NAME:PARAMETER=VALUE,... (stk_get_method lists them); NULL: "lru" */
    const char *cpu;     /* NULL: the best kernels of this CPU; else "ref", "avx2", "avxvnni", "avx512" as an upper bound */
    const char *trace;   /* NULL, or the file to record the run to */
    stk_progress_fn progress;
    void *progress_user;
    const char *predictor;  /* what is read ahead of its use, as policy; NULL: "gate"; "none": nothing */
    uint32_t predict_depth; /* layers ahead; 0: 1 */
    uint32_t reserved2;
    const char *cost;              /* NULL, or the file of stk_calibrate to start the cost table from */
    const stk_policy_hooks *hooks; /* NULL, or a policy of your own instead of `policy`; copied, what it points to is not */
    const char *warm;              /* NULL, or the file that keeps from run to run what the cache and the predictor know */
    uint32_t no_watch;             /* non-zero: nothing is turned off because it does not pay */
    uint32_t n_cpu_layers;         /* the first layers, whose attention and dense products stay on the CPU; the output, too, where
                                      they are all */
    const stk_predictor_hooks *predictor_hooks; /* NULL, or a predictor of your own instead of `predictor`; copied likewise */
    const char *scope;       /* NULL: "global", one cache for all experts of a size; "layer": one for each layer */
    const char *profile;     /* NULL, or a file of stk_tune: what is NULL or 0 here of ram_bytes, policy, scope, predictor (with
                                predict_depth) is as it says */
    const char *device;      /* NULL or "auto": "cuda" where there is a GPU; "emu": one emulated on the CPU; "none" */
    const char *vram_policy; /* of the experts in VRAM; NULL: "lfu" */
    uint64_t vram_bytes;     /* bytes of expert slots in VRAM; 0: what is free, less a margin; STK_NO_VRAM: none */
    uint64_t vram_cap_bytes; /* most that is taken of the device in all; 0: what is free */
    uint64_t pin_bytes;      /* of expert slots in RAM that are pinned; the others are copied through staging */
    uint64_t staging_bytes;  /* pinned memory for copies of experts; 0: 4 experts of the largest size, and 4 MiB */
} stk_engine_options;
#define STK_NO_VRAM UINT64_MAX
/* Sets the first `struct_bytes` bytes of *options, sizeof *options of the caller, to the defaults, struct_bytes among them, and
 * none behind. So do the other stk_..._options_default(). */
STK_API void stk_engine_options_default(stk_engine_options *options, size_t struct_bytes);

/*
 * Loads the dense weights and reserves every byte that the engine will use. `model` must outlive the engine. Errors: STK_EBUDGET
 * (names the least), STK_ENOMEM, STK_EIO, STK_EFORMAT, STK_EINVAL (a profile of another model among them), STK_EUNSUPPORTED,
 * STK_ENOSPC (trace), STK_ESTATE (another run is writing the trace), STK_ECANCELED (by the progress callback).
 *
 * With `warm`, the experts that the file names are read before this returns, and stk_engine_close writes the file anew, whole or
 * not at all. A file that is not there is an empty one. Of another budget: those who would leave first stay behind; of another
 * policy or predictor: what these remember is left out; damaged: it is left out as a whole; one log line says so each time. What
 * is no such file or belongs to another model is refused (STK_EFORMAT, STK_EINVAL) and never written over.
 */
STK_API int stk_engine_open(stk_engine **out, const stk_model *model, const stk_engine_options *options);
/* Writes the file of `warm`, ends the trace, frees all. Returns the first error of these (STK_EIO, STK_ENOSPC), 0 otherwise;
 * closes anyway. */
STK_API int stk_engine_close(stk_engine **engine);

/* What was reserved, in bytes. */
typedef struct stk_memory_info {
    uint32_t struct_bytes;
    uint32_t n_slot;      /* RAM slots of all classes */
    uint32_t n_expert;    /* experts of all layers */
    uint32_t n_ctx;       /* positions */
    uint64_t dense_bytes; /* dense weights in memory */
    uint64_t kv_bytes;
    uint64_t ram_bytes;     /* expert slots in RAM */
    uint64_t ram_bytes_min; /* the least --ram that this model runs with */
    uint64_t buffer_bytes;  /* compute buffers, a function of n_batch */
    uint64_t huge_bytes;    /* of all these, asked for as huge pages */
    const char *io;         /* the I/O backend in use */
    const char *cpu;        /* the kernels in use */
    uint32_t n_threads;
    uint32_t n_warm;        /* experts that were read at open because the file of `warm` names them */
    const char *policy;     /* in use, with its parameters: "lrfu:decay=0.9" */
    const char *scope;      /* "global" or "layer" */
    const char *predictor;  /* in use, likewise; "none": nothing is read ahead */
    uint32_t predict_depth; /* layers that it looks ahead; 0: none */
    uint32_t float_mode;    /* in use: STK_FLOAT_EXACT where FAST was asked for and this machine cannot (a log line says why) */
    const char *device;     /* NULL: none */
    uint64_t vram_bytes;    /* expert slots in VRAM */
    uint64_t vram_dense_bytes; /* on the device, besides: dense weights, KV pages, buffers */
    uint64_t vram_kv_bytes;
    uint64_t vram_buffer_bytes;
    uint64_t vram_free_bytes; /* what was free under the cap before */
    uint64_t pinned_bytes;    /* memory of the host that is pinned, staging included */
    uint32_t n_device_layer;  /* layers whose attention and dense products the device has */
    uint32_t n_vram_slot;     /* VRAM slots of all classes */
} stk_memory_info;
STK_API int stk_engine_get_memory(const stk_engine *engine, stk_memory_info *info);

/*
 * Gives the expert slots another budget, between steps, as of stk_engine_options.ram_bytes (more than all experts take counts as
 * all). Where it is less, the policy's victims leave and their memory goes back to the system; where it is more, memory is taken.
 * Experts that stay keep their bytes. The trace has it, and a replay does the same. Blocks while memory is moved and taken.
 * Errors: STK_EBUDGET (less than the least, which it names, or more than is free or may be locked), STK_ENOMEM: nothing has
 * changed.
 */
STK_API int stk_engine_resize(stk_engine *engine, uint64_t ram_bytes);
/* Writes what a later engine may name as `warm`, whole or not at all. Errors: STK_EIO, STK_ENOSPC, STK_EINVAL (a file of the
 * model), STK_ENOMEM. */
STK_API int stk_engine_save_residency(stk_engine *engine, const char *path);

/*
 * One step: a prompt chunk, one decoded token, several sequences, drafted tokens. Arrays of n entries. Positions of a sequence
 * must continue where it stands (its first is 0) and ascend by one within the step; sequences may be mixed freely.
 */
typedef struct stk_batch {
    uint32_t struct_bytes;
    uint32_t n;            /* 1 to n_batch */
    const int32_t *token;  /* [n] */
    const int32_t *seq;    /* [n], or NULL: all 0 */
    const int32_t *pos;    /* [n], or NULL: each continues its sequence */
    const uint8_t *logits; /* [n] non-zero: compute logits; NULL: of the last entry alone */
} stk_batch;

/*
 * Computes a step. On failure (STK_EIO, STK_ECANCELED, STK_EFULL, STK_EINVAL) no sequence has moved: positions given to the step
 * are taken back, and the call may be repeated. Blocks.
 */
STK_API int stk_step(stk_engine *engine, const stk_batch *batch);

/* Logits of entry i of the last step, [n_vocab] float32, NULL if it did not ask for them. Valid until the next step. */
STK_API const float *stk_get_logits(const stk_engine *engine, uint32_t i);
/* Hidden state of entry i after the last layer's residual, before the final norm, [n_embd] float32; only for entries with logits.
 */
STK_API const float *stk_get_hidden(const stk_engine *engine, uint32_t i);
/* Routing of the last step in one MoE layer: *ids [n, k] expert numbers in rank order, *weights [n, k]. Returns n*k, 0 for a
 * layer without experts. */
STK_API int64_t stk_get_routing(const stk_engine *engine, uint32_t layer, const uint16_t **ids, const float **weights);

/* Number of positions that sequence `seq` holds, or an error. */
STK_API int64_t stk_seq_length(const stk_engine *engine, int32_t seq);
/* Forgets all positions of `seq` from `n_pos` on. Errors: STK_EINVAL. */
STK_API int stk_seq_trim(stk_engine *engine, int32_t seq, int32_t n_pos);

/* Makes the running or next stk_step of this engine return STK_ECANCELED at the next layer. Async-signal-safe, any thread. */
STK_API void stk_cancel(stk_engine *engine);

/* For experiments and tests: routes layer `layer` (-1: all) of every token to ids[k] with equal weights; NULL restores the
 * router. */
STK_API int stk_force_route(stk_engine *engine, int32_t layer, const uint16_t *ids, uint32_t k);
/* For experiments and tests: STK_PLACE_... for all experts from the next step on. */
enum {
    STK_PLACE_AUTO,
    STK_PLACE_CPU,    /* the CPU, also for what is in VRAM */
    STK_PLACE_DEVICE, /* the device, as far as its slots and its staging go: what RAM has is fetched, whatever the policy */
    STK_PLACE_RANDOM, /* either, drawn for each expert of each event */
};
STK_API int stk_force_placement(stk_engine *engine, uint32_t place);
/* Which experts of a layer are in memory: writes at most `cap` flags, 1 in RAM, 2 in VRAM, 0 in neither, and returns the number
 * of experts, 0 for a layer without any. Errors: STK_EINVAL. */
STK_API int64_t stk_get_residency(const stk_engine *engine, uint32_t layer, uint8_t *resident, size_t cap);
/* Drops every expert from the cache (a cold start). */
STK_API int stk_engine_drop_experts(stk_engine *engine);

/* Counters since open or the last reset. */
typedef struct stk_stats {
    uint32_t struct_bytes;
    uint32_t reserved;
    uint64_t n_step;
    uint64_t n_token;
    uint64_t n_event;  /* MoE layers of all steps */
    uint64_t n_lookup; /* distinct experts of all events */
    uint64_t n_pair;   /* token-expert pairs */
    uint64_t n_hit;    /* lookups that found their expert resident */
    uint64_t n_miss;
    uint64_t n_evict;
    uint64_t n_wave;          /* n_event, plus the further waves of events that did not fit */
    uint64_t bytes;           /* expert payload read, prefetches included */
    uint64_t read_bytes;      /* what the drive was asked for */
    uint64_t step_ns;         /* time inside stk_step */
    uint64_t dense_ns;        /* attention, norms, router, output */
    uint64_t expert_ns;       /* computing experts */
    uint64_t arrive_ns;       /* bringing read experts into their layout, while others may still be read */
    uint64_t wait_ns;         /* waiting for reads with nothing left to compute */
    uint64_t io_ns;           /* time with at least one read in flight */
    uint64_t trace_ns;        /* recording the trace */
    uint64_t n_prefetch;      /* experts read ahead of their use */
    uint64_t n_prefetch_used; /* of these, those that an event used before they left */
    uint64_t n_switch;        /* times that the watch turned a technique off, or on again */
    uint64_t n_vram_hit;      /* of the hits, those in VRAM */
    uint64_t n_fetch;         /* experts copied from RAM to VRAM */
    uint64_t n_fetch_failed;  /* of these, copies that failed: the CPU computed the expert */
    uint64_t n_return;        /* experts that left VRAM and went back to RAM */
    uint64_t n_host;          /* lookups in VRAM that the CPU computed */
    uint64_t up_bytes;        /* expert bytes copied to the device, and from it */
    uint64_t down_bytes;
    uint64_t device_ns; /* waiting for the device with nothing left to compute */
} stk_stats;
STK_API int stk_engine_get_stats(const stk_engine *engine, stk_stats *stats);
STK_API int stk_engine_reset_stats(stk_engine *engine);
/* How predictions `depth` layers ahead did, since open; all 0 where nothing is predicted. Errors: STK_EINVAL (depth). */
STK_API int stk_engine_get_predicted(const stk_engine *engine, uint32_t depth, stk_predict_count *count);

/* ---- Where the time goes ------------------------------------------------------------------------------------------------ */

/* Stages of a step, as worker 0 goes through them. */
enum {
    STK_STAGE_EMBED,    /* rows of the embedding */
    STK_STAGE_NORM,     /* norms, residuals, quantizing what products read */
    STK_STAGE_QKV,      /* products for queries, keys and values */
    STK_STAGE_ROPE,     /* norms of heads, rotation, writing to the KV cache */
    STK_STAGE_ATTEND,   /* attention */
    STK_STAGE_ATTN_OUT, /* the product after it */
    STK_STAGE_ROUTER,   /* the router's product, softmax, choice, grouping by expert */
    STK_STAGE_CACHE,    /* the cache's decisions, the plan, the trace */
    STK_STAGE_IO,       /* asking for reads, and waiting for them with nothing to compute */
    STK_STAGE_PACK,     /* bringing what was read into its layout */
    STK_STAGE_GATE_UP,  /* experts: gate, up, their product */
    STK_STAGE_DOWN,     /* experts: down */
    STK_STAGE_COMBINE,  /* weighted sum of the experts' outputs */
    STK_STAGE_OUTPUT,   /* final norm and logits */
    STK_STAGE_BARRIER,  /* waiting for the other threads */
    STK_STAGE_DEVICE,   /* layers of the device, and waiting for it */
    STK_N_STAGE
};
/* A short name, such as "gate_up"; NULL beyond the last. */
STK_API const char *stk_stage_name(uint32_t stage);

/* One stretch of a step. */
typedef struct stk_span {
    uint64_t begin_ns; /* from the step's begin */
    uint32_t ns;
    uint16_t layer; /* n_layer: outside of layers */
    uint16_t stage;
} stk_span;

typedef struct stk_profile {
    uint32_t struct_bytes;
    uint32_t n_layer;
    uint64_t n_step; /* since it was turned on; so are all sums */
    uint64_t n_token;
    const uint64_t *stage_ns; /* [n_layer + 1, STK_N_STAGE]; row n_layer: outside of layers */
    const stk_span *span;     /* [n_span] the last step, in order of time; its end is cut off where it has very many */
    uint32_t n_span;
    uint32_t reserved;
    uint64_t bytes;     /* weights and KV that products and attention went over, each once a step */
    uint64_t int8_ops;  /* multiplications and additions of products with quantized weights */
    uint64_t float_ops; /* of products with float weights, and of attention */
} stk_profile;
/* Turns the clock of stages on (from zero) or off (the initial state). It costs well under a thousandth of a step. */
STK_API int stk_engine_set_profile(stk_engine *engine, int on);
/* Arrays belong to the engine and change with its next step. */
STK_API int stk_engine_get_profile(const stk_engine *engine, stk_profile *profile);

/* ---- Timeline of the queues --------------------------------------------------------------------------------------------- */

/* What a queue does for a while. "cpu": the thread that plans, with its pool; "nvme": the drive, several reads at a time. */
enum {
    STK_WORK_DENSE,      /* cpu: attention, norms, router, output: all but the experts */
    STK_WORK_EXPERTS,    /* cpu: computing a batch of experts */
    STK_WORK_PACK,       /* cpu: bringing what was read into its layout */
    STK_WORK_WAIT,       /* cpu: nothing to do before a read ends */
    STK_WORK_READ,       /* nvme: a part of an expert that an event waits for */
    STK_WORK_READ_AHEAD, /* nvme: a part of one that was predicted */
    STK_N_WORK
};
/* What it is called, and its queue: "cpu", "nvme". NULL beyond the last. */
STK_API const char *stk_work_name(uint32_t kind);
STK_API const char *stk_work_queue(uint32_t kind);

#define STK_NO_LAYER UINT32_MAX
typedef struct stk_work {
    uint64_t begin_ns; /* of a read: when its first piece was handed to the drive, and when its last was back */
    uint64_t end_ns;   /* from the begin of the first step of the timeline; after begin_ns */
    uint64_t step;     /* during which it ended */
    uint64_t bytes;    /* asked of the drive; 0: no read */
    uint32_t kind;     /* STK_WORK_... */
    uint32_t layer;    /* among the layers with experts, from 0; STK_NO_LAYER: of none */
    uint32_t expert;   /* of a read; UINT32_MAX: of none or several */
    uint32_t n_expert; /* of a batch, or of a read; 0 for other work */
} stk_work;

/* Keeps what the queues of an engine or a replay do. Its memory is taken at once and never grows. One run at a time. */
typedef struct stk_timeline stk_timeline;
/* n_max: intervals that there is memory for, 48 bytes each; what comes later is counted as lost. first_step, n_step: steps before
 * are left out, and at most so many kept (0: all), counted from when a run is given it. Errors: STK_EINVAL, STK_ENOMEM. */
STK_API int stk_timeline_open(stk_timeline **out, uint64_t n_max, uint64_t first_step, uint64_t n_step);
STK_API void stk_timeline_close(stk_timeline **timeline);
/* Sets *work to the intervals, in the order in which they ended, and *n_lost (unless NULL) to how many had no room; returns how
 * many there are. Valid until the next step. Reads that go on after the last step are not among them. */
STK_API int64_t stk_timeline_get(const stk_timeline *timeline, const stk_work **work, uint64_t *n_lost);
/* The next steps are taken down there; NULL: no longer. It must outlive the engine, or be taken away. It costs two looks at the
 * clock for each read and each batch of experts. */
STK_API int stk_engine_set_timeline(stk_engine *engine, stk_timeline *timeline);

/* ---- What the machine can do -------------------------------------------------------------------------------------------- */

/* With all threads, measured in about two seconds: the best of several passes, and medians for the waits. */
typedef struct stk_limits {
    uint32_t struct_bytes;
    uint32_t n_threads;
    double read_bytes_per_s; /* memory, over a buffer much larger than the caches, in huge pages */
    double int8_ops_per_s;   /* multiplications and additions of 8-bit codes, with the instructions of the kernels `cpu` */
    double float_ops_per_s;  /* of float32 */
    double run_ns;           /* a job that does nothing */
    double phase_ns;         /* one phase of a job, an empty item for each thread */
    uint64_t buffer_bytes;   /* that were read */
    uint64_t huge_bytes;     /* of these asked for as huge pages */
    const char *cpu;
} stk_limits;
/* n_threads and cpu as in stk_engine_options. Takes up to half of the free memory while it runs. Blocks. Errors: STK_EINVAL,
 * STK_ENOMEM. */
STK_API int stk_measure_limits(stk_limits *limits, uint32_t n_threads, const char *cpu);
/* What is left of a layer when its jobs have nothing to do: waking, meeting, counting; the median. Blocks for milliseconds. */
STK_API int stk_engine_measure_layer(stk_engine *engine, double *layer_ns);
/* How fast experts are read when nothing is computed: k of one layer after another, in flight together, as an event of one token
 * that misses all. Drops every expert from the cache. Blocks for a second and a half. Errors: STK_EIO, STK_ECANCELED. */
STK_API int stk_engine_measure_drive(stk_engine *engine, double *bytes_per_s);

/* The CPU and what of it this process may use. */
typedef struct stk_machine_info {
    uint32_t struct_bytes;
    uint32_t n_cpu;           /* allowed by the affinity mask */
    uint32_t n_core;          /* physical cores among them */
    uint32_t n_threads;       /* that an engine takes by default: n_core, or less where a control group's quota is less */
    uint64_t available_bytes; /* of memory that it may still take */
    const char *cpu;          /* the best kernels */
    char name[64];
} stk_machine_info;
STK_API int stk_get_machine(stk_machine_info *info);

/* One thing that was looked at: its name, what was found, and what to do about it ("" where nothing is to be done). */
enum { STK_FINDING_OK, STK_FINDING_NOTE, STK_FINDING_PROBLEM };
typedef void (*stk_finding_fn)(void *user, int level, const char *topic, const char *found, const char *advice);
/* Looks at what speed depends on: kernels, cores and their quota, NUMA nodes, GPUs on the bus with their link and driver, memory,
 * huge pages, locking, io_uring; and with `path`, a model or any file on its drive, at direct reads, read-ahead, the file system
 * and the speed of reads there, which takes up to a second or so. Errors: STK_EIO (the file), STK_ENOMEM. */
STK_API int stk_doctor(const char *path, stk_finding_fn fn, void *user);

typedef struct stk_calibrate_options {
    uint32_t struct_bytes;
    uint32_t n_threads; /* as in stk_engine_options; so are the others */
    uint64_t ram_bytes;
    const char *cpu;
    const char *io;
    stk_progress_fn progress; /* in parts of the work */
    void *progress_user;
} stk_calibrate_options;
STK_API void stk_calibrate_options_default(stk_calibrate_options *options, size_t struct_bytes);
/*
 * Measures what things take on this machine and writes it to `path` (the form is in src/plan/cost_file.h), whole or not at all:
 * experts of every format by token count, packing, the drive alone and while the CPU computes; with a model its own experts and
 * dense part, and the drive that it lies on. Without one the drive is that of `path`, through a file of 250 MB that is gone
 * afterwards. Takes half a minute to minutes. Errors: those of opening an engine, STK_EIO, STK_ENOSPC, STK_ECANCELED.
 */
STK_API int stk_calibrate(const stk_model *model, const stk_calibrate_options *options, const char *path);
/* Whether a file is one that stk_calibrate has written: 0, STK_EIO or STK_EFORMAT. */
STK_API int stk_cost_check(const char *path);
/* Name i of the known machines whose tables may be given in place of a file's path; NULL past the last. */
STK_API const char *stk_machine_list(uint32_t i);

/* ---- Sampler ------------------------------------------------------------------------------------------------------------ */

typedef struct stk_sampler stk_sampler;
typedef struct stk_sampler_options {
    uint32_t struct_bytes;
    int32_t top_k;        /* 0: off */
    float temperature;    /* 0: greedy */
    float top_p;          /* 1: off */
    float min_p;          /* 0: off */
    float repeat_penalty; /* 1: off */
    int32_t repeat_last_n;
    uint32_t reserved;
    uint64_t seed;
} stk_sampler_options;
STK_API void stk_sampler_options_default(stk_sampler_options *options, size_t struct_bytes);
STK_API int stk_sampler_open(stk_sampler **out, const stk_sampler_options *options, uint32_t n_vocab);
STK_API void stk_sampler_close(stk_sampler **sampler);
/* Tells the sampler of a token that stands in the text, for the repetition penalty. */
STK_API int stk_sampler_accept(stk_sampler *sampler, int32_t id);
/* Chooses a token from logits [n_vocab]; order: penalty, top-k, top-p, min-p, temperature. The same seed and logits give the same
 * token. Errors: STK_EINVAL when every logit is NaN. */
STK_API int32_t stk_sampler_sample(stk_sampler *sampler, const float *logits);

/* ---- Traces ------------------------------------------------------------------------------------------------------------- */

/*
 * A recorded run, or a routing trace of another tool; the format is found by looking at the content (traces/README.md lists what
 * is read and which columns a table needs). Imported traces have a step for each token unless they say otherwise.
 */
typedef struct stk_trace stk_trace;

/* Errors: STK_EIO, STK_EFORMAT (names file and byte or line), STK_EUNSUPPORTED, STK_ENOMEM. */
STK_API int stk_trace_open(stk_trace **out, const char *path);
STK_API void stk_trace_close(stk_trace **trace);

typedef struct stk_trace_info {
    uint32_t struct_bytes;
    uint32_t n_layer;  /* with experts */
    uint32_t n_expert; /* most experts of a layer */
    uint32_t k;        /* most experts of a token */
    uint32_t n_batch;  /* most tokens of a step */
    uint32_t recorded; /* non-zero: of a run, with its slots and policy */
    uint32_t sized;    /* non-zero: the bytes of experts are known; else they are taken as 1 MiB each */
    uint32_t reserved;
    uint64_t expert_bytes; /* of all experts */
    uint64_t n_slot;       /* of the recorded run; 0: none */
    uint64_t ram_bytes;
    const char *format; /* "stoker", "route.csv", "mrt8", "csv", "jsonl", "router-trace" */
    const char *model;  /* this and the following: "" where the trace does not say; what no terminal should see is escaped */
    const char *policy;
    const char *io;
    const char *params; /* of the policy */
} stk_trace_info;
/* Fills at most info->struct_bytes bytes. */
STK_API int stk_trace_get_info(const stk_trace *trace, stk_trace_info *info);

/* One layer of one step. Arrays live until the next call on the trace. */
typedef struct stk_trace_event {
    uint32_t struct_bytes;
    uint32_t decode; /* 0: the step reads a prompt */
    uint64_t step;
    uint32_t layer;       /* counted over layers with experts */
    uint32_t model_layer; /* its number in the model */
    uint32_t n_tok;
    uint32_t k;
    uint32_t n_top;
    uint32_t n_expert;
    const int32_t *seq;      /* [n_tok] */
    const int32_t *pos;      /* [n_tok] */
    const int32_t *token;    /* [n_tok] -1: unknown */
    const uint16_t *ids;     /* [n_tok, k] in rank order, 0xffff for none */
    const float *weights;    /* [n_tok, k], or NULL */
    const uint16_t *top_ids; /* [n_tok, n_top] best first, or NULL */
    const float *top_scores; /* [n_tok, n_top] router probabilities, or NULL */
} stk_trace_event;
/* Fills at most event->struct_bytes bytes. 1: *event is the next one; 0: the end; negative: an error, the same again later. */
STK_API int stk_trace_next(stk_trace *trace, stk_trace_event *event);
/* Non-zero when the trace ended without its end, as that of a run that was killed: all events before were returned. */
STK_API int stk_trace_is_cut(const stk_trace *trace);

enum { STK_TRACE_FORMAT_STOKER, STK_TRACE_FORMAT_CSV };
typedef struct stk_trace_convert_options {
    uint32_t struct_bytes;
    uint32_t format;       /* STK_TRACE_FORMAT_... of what is written */
    uint64_t first_step;   /* steps before are left out */
    uint64_t n_step;       /* steps kept at most; 0: all */
    uint64_t expert_bytes; /* of imported traces, in place of what they say; 0: as they say */
    stk_progress_fn progress;
    void *progress_user;
} stk_trace_convert_options;
STK_API void stk_trace_convert_options_default(stk_trace_convert_options *options, size_t struct_bytes);
/*
 * Writes the traces, one after another, to `path`, which appears whole or not at all; sequences and steps are numbered on. One
 * whole trace of Stoker's own stays what it was and can be verified; what was cut or merged cannot. Errors: as stk_trace_open;
 * STK_EINVAL (shapes differ, no step is left), STK_ENOSPC, STK_ECANCELED.
 */
STK_API int stk_trace_convert(const char *const *traces, uint32_t n, const char *path, const stk_trace_convert_options *options);

/* ---- Replay ------------------------------------------------------------------------------------------------------------- */

enum {
    STK_SCOPE_GLOBAL, /* a cache for all layers whose experts have the same size, as the engine has it */
    STK_SCOPE_LAYER,  /* a cache for each layer, all of the same part of their experts */
    STK_SCOPE_AUTO,   /* as the profile says; without one global */
};
enum {
    STK_RESET_NONE,     /* what the cache holds is carried over from sequence to sequence */
    STK_RESET_SEQUENCE, /* each sequence begins with an empty cache; what a policy remembers of experts, it keeps */
};

typedef struct stk_replay_count {
    uint64_t n_token, n_event, n_lookup, n_hit, n_miss, n_evict;
    uint64_t bytes, read_bytes;
    uint64_t step_ns;                                 /* of the virtual clock; of it: */
    uint64_t dense_ns, expert_ns, arrive_ns, wait_ns; /* as in stk_stats */
} stk_replay_count;

typedef struct stk_replay_layer {
    uint32_t layer;                   /* number in the model */
    uint32_t n_slot;                  /* of its cache, which other layers may share */
    stk_replay_count prefill, decode; /* n_token and times are 0 */
} stk_replay_layer;

/* Of a replay with VRAM, by phase: experts looked up and where they were; where they were computed; what moved; how long each
 * queue worked. */
typedef struct stk_replay_tiers {
    uint32_t struct_bytes;
    uint32_t reserved;
    uint64_t n_token, n_event, n_lookup;
    uint64_t n_vram, n_ram;                   /* lookups found in VRAM; in RAM alone */
    uint64_t n_gpu, n_fetch, n_bypass, n_cpu; /* on the GPU from VRAM, copied there into a slot, through staging; on the CPU */
    uint64_t link_bytes, read_bytes;          /* copied to the GPU; asked of the drive */
    uint64_t step_ns, dense_ns, event_ns;
    uint64_t cpu_ns, nvme_ns, link_ns, gpu_ns; /* of event_ns, each queue's work */
} stk_replay_tiers;

/* Further figures of a replay. The caller sets struct_bytes, layers and n_layer_max. */
typedef struct stk_replay_detail {
    uint32_t struct_bytes;
    uint32_t sized;       /* 0: the bytes of experts are an assumption, and so is what follows from them */
    uint64_t n_sequence;  /* that began */
    uint64_t n_expert;    /* of all layers */
    uint64_t token_slots; /* slots that one token uses, over all layers */
    stk_replay_count prefill, decode;
    stk_replay_layer *layers; /* [n_layer_max] to fill, or NULL */
    uint32_t n_layer_max;
    uint32_t n_layer;
    char policy[64];
    stk_predict_count predicted[3]; /* by layers ahead, from 1; all 0 without a predictor */
    uint32_t scope;                 /* STK_SCOPE_GLOBAL or STK_SCOPE_LAYER */
    uint32_t reserved;
    uint64_t vram_bytes; /* this and the following: of a replay with vram_bytes or mode, else 0 */
    stk_replay_tiers tiers_prefill, tiers_decode;
} stk_replay_detail;

/* How a what-if replay chooses what of the predicted experts is read ahead. */
enum {
    STK_AHEAD_VALUE,  /* as a live run: what saves more than it costs; without times, as STK_AHEAD_LIKELY */
    STK_AHEAD_LIKELY, /* what is as likely used as not */
    STK_AHEAD_IMPACT  /* for comparison, HybriMoE's: what makes the most difference to the next layers, simulated with and without
                         it  as if predictions were certain */
};

typedef struct stk_replay_options {
    uint32_t struct_bytes;
    uint32_t verify;    /* non-zero: repeat the recorded run and compare every decision and counter */
    uint64_t ram_bytes; /* 0: the trace's own */
    uint64_t n_slot;    /* instead of ram_bytes; 0: unused */
    const char *policy; /* as in stk_engine_options; NULL: the trace's own (what-if: "lru") */
    const char *io;     /* NULL: no times; "emu:BANDWIDTH,LATENCY": predict times with this drive */
    uint64_t seed;
    stk_progress_fn progress;
    void *progress_user;
    double fraction;           /* instead of ram_bytes: slots for this part of all experts, in (0, 1]; 0: unused */
    uint32_t scope;            /* STK_SCOPE_...; stk_replay_options_default sets AUTO */
    uint32_t reset;            /* STK_RESET_... */
    const char *params;        /* of policy, where that names none: "name=value,...", or NULL */
    const char *cost;          /* where times come from. NULL: the trace's own; a trace, whose run measured them, for the drive of
                                  io; or a file of stk_calibrate, whose drive it is without io */
    uint64_t expert_bytes;     /* of imported traces, in place of what they say; 0: as they say */
    stk_replay_detail *detail; /* NULL, or where further figures go */
    const stk_policy_hooks *hooks; /* as in stk_engine_options; with verify, the policy that the run was recorded with */
    const char *predictor; /* NULL or "gate": what the trace recorded is read ahead, chosen anew; "none": nothing; another one, as
                              in stk_engine_options, works on the trace's events and hears what was recorded of routers ahead, one
                              token at a time; not with verify, which repeats what was */
    const stk_predictor_hooks *predictor_hooks; /* as in stk_engine_options */
    uint32_t predict_depth;                     /* layers ahead at most; 0: all that were recorded, or 1 */
    uint32_t ahead;                             /* STK_AHEAD_...; not with verify */
    const char *profile;     /* NULL, or a file of stk_tune: budget, policy, scope and predictor that are not given are its */
    uint64_t vram_bytes;     /* slots of a GPU over RAM; with it or mode, cost is needed and ram_bytes 0 holds all */
    const char *mode;        /* how experts are placed and scheduled on it; NULL: "hybrid" (stk_mode_list) */
    const char *uses_from;   /* a trace of other sequences of the model, whose experts are placed in VRAM first; or NULL */
    stk_timeline *timeline;  /* NULL, or where the modelled queues are taken down; with io or cost, which give them times; not yet
                                with VRAM */
    const stk_model *model;  /* NULL, or the model that imported traces are of: its experts' sizes, in place of what they say */
    const char *model_shape; /* NULL, or the same of a shape of stk_synth, as "qwen3-30b-a3b" or "qwen3-30b-a3b:Q8_0" (Q4_K_M
                                where none is named) */
} stk_replay_options;
typedef struct stk_replay_result {
    uint32_t struct_bytes;
    uint32_t complete; /* 0 when the trace is cut off: the figures are those up to the cut */
    uint64_t n_slot;
    uint64_t ram_bytes;
    uint64_t virtual_ns;
    stk_stats stats; /* times are those of the virtual clock, 0 without io; last, since it grows */
} stk_replay_result;
STK_API void stk_replay_options_default(stk_replay_options *options, size_t struct_bytes);
/*
 * Replays a trace. With `io` or `verify` it goes through the same cache and scheduler as a run; otherwise through the cache
 * alone, which decides the same. n_slot and fraction say what the cache holds; ram_bytes includes the slots that a policy which
 * may refuse experts needs beside it. Warns (stk_log_set) where a budget is below what one token uses, and where sizes or costs
 * are assumed. Errors: STK_EFORMAT, STK_EIO, STK_EBUDGET; STK_EINVAL (no budget for an imported trace, an option without
 * meaning); STK_ESTATE when a verifying replay differs from the recorded run (the detail names the first difference).
 */
STK_API int stk_replay(const char *trace, const stk_replay_options *options, stk_replay_result *result);
/* Mode i and one line about it; NULL past the last. */
STK_API const char *stk_mode_list(uint32_t i, const char **what);
/* The same for several traces of one model, one after another as one run. */
STK_API int stk_replay_many(const char *const *traces, uint32_t n, const stk_replay_options *options, stk_replay_result *result);

/* ---- Tuning ------------------------------------------------------------------------------------------------------------- */

typedef struct stk_tune_options {
    uint32_t struct_bytes;
    uint32_t n_threads;     /* replays at the same time; 0: the cores that this process may use */
    uint64_t ram_bytes;     /* of expert slots; 0: */
    double fraction;        /* of the bytes of all expert slots, in (0, 1]; 0: what the trace was recorded with */
    const char *io;         /* as in stk_replay_options, and so are the next two. Without io and cost no times are predicted: */
    const char *cost;       /* then the hit rate decides, and what is read ahead stays as it is by default */
    uint64_t expert_bytes;  /* of imported traces */
    uint64_t seed;          /* of random policies and drives */
    const stk_model *model; /* NULL, or the model that the traces are of: checked, and named in the profile; imported ones take
                               its experts' sizes, as in stk_replay_options */
    const char *profile;    /* NULL, or where the profile goes (the form is in src/tune/profile_file.h) */
    const char *report;     /* NULL, or where the report goes, one HTML file that needs no other */
    const char *state;      /* NULL, or a file that keeps every result, so that the same call goes on where one was cancelled */
    stk_progress_fn progress;
    void *progress_user;
    const char *model_shape; /* as in stk_replay_options */
} stk_tune_options;
STK_API void stk_tune_options_default(stk_tune_options *options, size_t struct_bytes);

/* The best configuration found, beside the default: lru, one cache for all layers, and what the next layer's router names read
 * ahead (with imported traces, which do not know it: nothing). All figures are of decoding, if the traces have any. */
typedef struct stk_tune_result {
    uint32_t struct_bytes;
    uint32_t n_config;  /* configurations that were replayed */
    uint32_t n_replay;  /* replays that they took; */
    uint32_t n_resumed; /* of these, found in the state file */
    uint32_t n_fold;    /* parts of the traces: sequences, or stretches where there are few of them */
    uint32_t timed;     /* non-zero: tok_s and default_tok_s are predicted, and the margin is of them; else of misses */
    uint32_t scope;     /* STK_SCOPE_... */
    uint32_t fitted;    /* non-zero: each layer has its own number of slots */
    uint32_t depth;     /* layers ahead */
    uint32_t n_tied; /* configurations that are as good as the best as far as the traces can tell; this is the simplest of them */
    uint64_t ram_bytes;
    uint64_t n_sequence;
    uint64_t n_token;
    double fraction;
    double hit_rate;
    double default_hit_rate;
    double bound_hit_rate; /* of belady-bypass, which knows what comes: what no cache exceeds without reading ahead, where experts
                              are of one size; a heuristic where they are not */
    double tok_s;
    double default_tok_s;
    double margin;     /* how much faster than the default, 0.1: 10 % (untimed: how many fewer misses): the mean over parts, each
                          with the configuration that the others chose */
    double margin_low; /* the least and the greatest of the parts */
    double margin_high;
    double tie_margin;     /* how much better than this one the best of these is, as margin is, on the traces that chose it */
    double cache_hit_rate; /* of its cache, when nothing is read ahead: what bound_hit_rate is to be compared with; */
    double default_cache_hit_rate; /* of the default's */
    char policy[256];              /* as --policy and --predictor take them: with their parameters, NAME:PARAMETER=VALUE,... */
    char predictor[256];
} stk_tune_result;
/*
 * Searches for the best cache for the traces' model under a budget: policies, their parameters, a cache for all layers or one for
 * each, slots of each layer by marginal gain, predictors and how far they look ahead; coarse first, then finer around what is
 * best. Every figure is of traces that did not choose the configuration (stk_tune_result.margin). Progress ("tune") counts
 * replays. It may call from this thread alone; the replays run on threads of their own until it returns.
 *
 * Files appear whole or not at all. When cancelled it returns STK_ECANCELED and keeps the state; the state file is removed when
 * the search has ended. Errors: those of stk_replay_many; STK_EINVAL (no budget, the model is another), STK_ENOSPC.
 */
STK_API int stk_tune(const char *const *traces, uint32_t n, const stk_tune_options *options, stk_tune_result *result);
/* ---- Plan --------------------------------------------------------------------------------------------------------------- */

typedef struct stk_plan_options {
    uint32_t struct_bytes;
    uint32_t n_ctx, n_batch, n_seq_max, n_threads; /* as in stk_engine_options; so are the KV types and ram_bytes */
    uint32_t kv_k_type, kv_v_type;
    uint32_t reserved;
    uint64_t ram_bytes;
    uint64_t ram_free_bytes; /* of the machine that is asked about; 0: what is free here */
    uint64_t vram_bytes;     /* of expert slots; 0: what is left of the device beside the rest and a margin */
    uint64_t vram_cap_bytes; /* of the device; 0: the cost table's */
    const char *cost;        /* NULL, a file of stk_calibrate, or a known machine; with a GPU in it, that is planned for */
} stk_plan_options;
STK_API void stk_plan_options_default(stk_plan_options *options, size_t struct_bytes);

/* What goes where. All bytes are reserved ones. */
typedef struct stk_plan_info {
    uint32_t struct_bytes;
    uint32_t gpu;       /* non-zero: attention, dense weights and KV on the GPU, experts in VRAM over RAM */
    uint32_t n_ctx;     /* positions that were planned with */
    uint32_t n_ctx_max; /* most that fit in the same memory, with the least slots where they were not given */
    uint32_t n_expert;  /* of all layers */
    uint32_t n_slot_vram, n_slot_ram;
    uint32_t reserved;
    uint64_t dense_bytes, kv_bytes,
        buffer_bytes;       /* on the GPU if there is one, else in RAM; buffers there are taken to be the CPU's */
    uint64_t staging_bytes; /* pinned RAM for copies; 0 without a GPU */
    uint64_t vram_bytes, vram_used_bytes, vram_cap_bytes; /* slots; all; the device's */
    uint64_t ram_bytes, ram_used_bytes, ram_free_bytes;
    uint64_t nvme_bytes;         /* experts that are in neither */
    double vram_hit, ram_hit;    /* shares of lookups that are expected in VRAM; in RAM alone */
    double decode_tok_s;         /* predicted, with an empty context, routed as recorded runs were */
    double decode_tok_s_uniform; /* with experts drawn evenly: the worst case */
    double prefill_tok_s;        /* of steps of n_batch tokens */
    char machine[128];           /* of the cost table; "" for none */
    char gpu_name[128];
} stk_plan_info;
/*
 * Says what would go where and how fast it would be, before anything is loaded. Experts are looked up in VRAM and RAM with the
 * square root of the share that fits, as LRU does on recorded runs. Errors: STK_EBUDGET (what cannot fit; names the least that
 * would), STK_EINVAL, and those of the cost file.
 */
STK_API int stk_plan(const stk_model *model, const stk_plan_options *options, stk_plan_info *info);

/* ---- Packed models ------------------------------------------------------------------------------------------------------- */

typedef struct stk_pack_options {
    uint32_t struct_bytes;
    uint32_t reserved;
    const char *io; /* how the model is read, as in stk_engine_options; NULL: "auto" */
    stk_progress_fn progress;
    void *progress_user;
} stk_pack_options;
STK_API void stk_pack_options_default(stk_pack_options *options, size_t struct_bytes);
/*
 * Writes `model` in a form whose reads need no permutation and in which one contiguous range, at a multiple of 4,096 bytes, is
 * an expert. It is opened and runs as any model does, with the same output; it takes as much room; other programs refuse it. The
 * file appears at `path` whole or not at all; a file of that name is replaced. options NULL: the defaults. Blocks.
 *
 * Errors: STK_EINVAL (the model is packed, or owns `path`), STK_ENOSPC (names what is needed and what is free), STK_EIO,
 * STK_ENOMEM, STK_ECANCELED (by the progress callback).
 */
STK_API int stk_pack(const stk_model *model, const char *path, const stk_pack_options *options);
/* Reads all of a packed model and compares it with the sums that it was written with. Errors: STK_EFORMAT (names what is
 * damaged), STK_EINVAL (the model is not packed: there are no sums), STK_EIO, STK_ENOMEM, STK_ECANCELED. */
STK_API int stk_pack_check(const stk_model *model, const stk_pack_options *options);

/* ---- Synthetic models --------------------------------------------------------------------------------------------------- */

typedef struct stk_synth_options {
    uint32_t struct_bytes;
    uint32_t n_layer;       /* 0: the shape's, or the trace's */
    uint32_t n_vocab;       /* 0: the shape's; at least 257 */
    uint32_t reserved;      /* 0 */
    uint64_t seed;          /* the same seed and options give the same bytes */
    const char *shape;      /* "qwen3-30b-a3b" or another one below */
    const char *type;       /* "Q4_K_M", "Q5_K_M", "Q8_0", "Q4_0", "BF16", "F16", "F32" */
    const char *route_from; /* NULL, or a trace whose routing the model follows */
    stk_progress_fn progress;
    void *progress_user;
} stk_synth_options;
STK_API void stk_synth_options_default(stk_synth_options *options, size_t struct_bytes);
/*
 * Writes a GGUF model of random weights in the sizes and formats of a real one, for measuring speed here and in other programs.
 * Shapes: qwen3-30b-a3b, mixtral-8x7b, tiny, and for other programs alone deepseek-v2-lite and qwen2-57b-a14b; each also with
 * "-quarter" at the end, a quarter of the layers. The vocabulary tokenizes any text. The file appears at `path` whole or not at
 * all; a file of that name is replaced.
 *
 * With route_from, the first tokens of the trace, at most n_embd, become vocabulary entries 0, 1, 2, ...; entry t is routed as
 * the trace routed it and is followed by t + 1, the last by 0. Layers, experts and experts used are the trace's. Hidden states
 * are the same in every layer there, so that looking ahead through them is right every time.
 *
 * Errors: STK_EINVAL (no such shape or type; the detail lists them), STK_ENOSPC (names what is needed and what is free), STK_EIO,
 * STK_ENOMEM, STK_EFORMAT (the trace), STK_ECANCELED (by the progress callback). Blocks.
 */
STK_API int stk_synth(const char *path, const stk_synth_options *options);

#ifdef __cplusplus
}
#endif

#endif
