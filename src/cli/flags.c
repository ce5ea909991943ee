/* flags: the option table. Names are llama.cpp's where the meaning is the same. */
#include "options.h"

#include <stdint.h>

#define AT(field) offsetof(cli_settings, field)
enum { ENGINE = CLI_RUN | CLI_PERPLEXITY | CLI_LOGITS };
#define I32_MAX  ((double)INT32_MAX)
#define SEED_MAX 9007199254740991.0 /* 2^53 - 1: what every JSON reader keeps */

const cli_option cli_options[] = {
    {ENGINE, 'm', "model", NULL, "FILE", CLI_TEXT, 0, 0, AT(model), NULL, "the model, a GGUF file; of a split model any part"},

    /* What goes in and what comes out. */
    {CLI_RUN, 'p', "prompt", NULL, "TEXT", CLI_TEXT, 0, 0, AT(prompt), NULL,
     "the prompt; without -p and -f it is read from stdin"},
    {CLI_RUN, 'f', "file", NULL, "FILE", CLI_TEXT, 0, 0, AT(file), NULL,
     "a file with the prompt (one newline at its end is dropped)"},
    {CLI_PERPLEXITY, 'f', "file", NULL, "FILE", CLI_TEXT, 0, 0, AT(file), NULL, "the text to measure"},
    {CLI_RUN, 0, "chat", NULL, NULL, CLI_FLAG, 0, 0, AT(chat), NULL, "wrap the prompt as a ChatML turn of a user"},
    {CLI_RUN, 'n', "n-predict", "predict", "N", CLI_INT, -1, I32_MAX, AT(n_predict), "-1",
     "tokens to generate; -1: until the text ends or the context is full"},
    {CLI_RUN, 0, "ignore-eos", NULL, NULL, CLI_FLAG, 0, 0, AT(ignore_eos), NULL, "go on after a token that ends the text"},
    {CLI_LOGITS, 0, "tokens", NULL, "LIST", CLI_LIST, 0, I32_MAX, AT(tokens), NULL, "token ids, 1,2,3, or @FILE that lists them"},
    {CLI_RUN, 0, "tokens", NULL, "LIST", CLI_LIST, 0, I32_MAX, AT(tokens), NULL,
     "the prompt as token ids, 1,2,3, or @FILE that lists them"},
    {CLI_LOGITS, 0, "greedy", NULL, "N", CLI_INT, 0, I32_MAX, AT(n_greedy), "0",
     "go on after them with the N likeliest tokens, one by one"},
    {CLI_LOGITS, 'o', "output", NULL, "FILE", CLI_TEXT, 0, 0, AT(output), NULL,
     "where the logits go: little-endian float32 [n_tokens, n_vocab]; - for stdout"},
    {CLI_LOGITS, 0, "chunk", NULL, "LIST", CLI_LIST, 1, I32_MAX, AT(chunk), NULL,
     "tokens of a step; of a list such as 5,1,17 in turn (default: -b)"},

    /* Context and machine. */
    {CLI_RUN, 'c', "ctx-size", NULL, "N", CLI_INT, 0, I32_MAX, AT(n_ctx), "0",
     "positions of the context; 0: the lesser of the model's and 4096"},
    {CLI_LOGITS, 'c', "ctx-size", NULL, "N", CLI_INT, 0, I32_MAX, AT(n_ctx), "0",
     "positions of the context; 0: as many as tokens"},
    {CLI_PERPLEXITY, 'c', "ctx-size", NULL, "N", CLI_INT, 0, I32_MAX, AT(n_ctx), "0",
     "tokens of a chunk; 0: the lesser of the model's context and 512"},
    {ENGINE, 't', "threads", NULL, "N", CLI_INT, 0, 1024, AT(n_threads), "0",
     "threads; 0: the physical cores this process may use"},
    {ENGINE, 'b', "batch-size", NULL, "N", CLI_INT, 1, 65536, AT(n_batch), "512", "most tokens of one step"},
    {ENGINE, 0, "ram", NULL, "SIZE", CLI_SIZE, 1, 0, AT(ram_bytes), NULL,
     "memory for experts, as 512M or 8G (default: what is free, less a margin)"},
    {CLI_REPLAY, 0, "ram", NULL, "SIZE", CLI_SIZE, 1, 0, AT(ram_bytes), NULL, "memory for experts (default: as recorded)"},
    {CLI_REPLAY, 0, "slots", NULL, "N", CLI_INT, 1, I32_MAX, AT(n_slot), NULL, "experts that fit, instead of --ram"},
    {CLI_REPLAY, 0, "fraction", NULL, "F", CLI_REAL, 0, 1, AT(fraction), NULL,
     "part of all experts that fits, instead of --ram: 0.25"},
    {CLI_REPLAY, 0, "scope", NULL, "global|layer", CLI_TEXT, 0, 0, AT(scope), "global",
     "one cache for all layers, or one for each"},
    {CLI_REPLAY, 0, "reset", NULL, "none|sequence", CLI_TEXT, 0, 0, AT(reset), NULL,
     "when the cache is emptied (default: never, with the hit rate of both where there are several sequences)"},
    {CLI_REPLAY | CLI_TRACE, 0, "expert-bytes", NULL, "SIZE", CLI_SIZE, 1, 0, AT(expert_bytes), NULL,
     "size of an expert, for traces of other tools that do not say or say otherwise"},
    {ENGINE, 0, "mlock", NULL, NULL, CLI_FLAG, 0, 0, AT(mlock), NULL, "lock weights and experts in memory"},
    {CLI_RUN, 0, "cache-type-k", "ctk", "f16|f32", CLI_TEXT, 0, 0, AT(kv_k), "f16", "type of the K cache"},
    {CLI_RUN, 0, "cache-type-v", "ctv", "f16|f32", CLI_TEXT, 0, 0, AT(kv_v), "f16", "type of the V cache"},
    {CLI_PERPLEXITY | CLI_LOGITS, 0, "cache-type-k", "ctk", "f16|f32", CLI_TEXT, 0, 0, AT(kv_k), "f32", "type of the K cache"},
    {CLI_PERPLEXITY | CLI_LOGITS, 0, "cache-type-v", "ctv", "f16|f32", CLI_TEXT, 0, 0, AT(kv_v), "f32", "type of the V cache"},
    {ENGINE, 0, "io", NULL, "SPEC", CLI_TEXT, 0, 0, AT(io), "auto",
     "how experts are read: auto, uring, pread, or a modelled drive emu:BANDWIDTH,LATENCY[,reorder][,eio=N][,short=N]"},
    {CLI_REPLAY, 0, "io", NULL, "SPEC", CLI_TEXT, 0, 0, AT(io), NULL,
     "predict times with a drive emu:BANDWIDTH,LATENCY (default: no times)"},
    {ENGINE, 0, "policy", NULL, "NAME", CLI_TEXT, 0, 0, AT(policy), "lru",
     "which expert leaves the cache: lru, lru2, slru, lfu, lrfu, s3fifo, mrs, pinned or random"},
    {CLI_REPLAY, 0, "policy", NULL, "NAME", CLI_TEXT, 0, 0, AT(policy), NULL,
     "which expert leaves the cache: as for run, NAME or NAME:PARAMETER=VALUE,..., or belady or belady-bypass,"
     " which know what comes (default: as recorded, else lru)"},
    {CLI_REPLAY, 0, "cost", NULL, "TRACE", CLI_TEXT, 0, 0, AT(cost), NULL,
     "a trace whose run measured the times that --io predicts with (default: the trace itself)"},
    {CLI_TRACE, 'o', "output", NULL, "FILE", CLI_TEXT, 0, 0, AT(output), NULL,
     "what to write; a name that ends in .csv gives CSV, else Stoker's own format"},
    {CLI_TRACE, 0, "from", NULL, "N", CLI_INT, 0, I32_MAX, AT(first_step), "0", "cut: the first step to keep"},
    {CLI_TRACE, 0, "steps", NULL, "N", CLI_INT, 0, I32_MAX, AT(n_step), "0", "cut: how many steps to keep; 0: all"},
    {ENGINE, 0, "predictor", NULL, "NAME", CLI_TEXT, 0, 0, AT(predictor), "gate",
     "what is read ahead of its use: gate (what the next layers' routers say), popularity, previous, history, transition,"
     " crosslayer, tokenid, matrices, path, mix (all of these) or none"},
    {ENGINE, 0, "lookahead", NULL, "N", CLI_INT, 1, 3, AT(n_ahead), "1", "layers that the predictor looks ahead"},
    {ENGINE, 0, "cpu", NULL, "ref|avx2|avxvnni|avx512", CLI_TEXT, 0, 0, AT(cpu), NULL,
     "kernels at most (default: the best of this CPU)"},
    {ENGINE, 0, "trace", NULL, "FILE", CLI_TEXT, 0, 0, AT(trace), NULL, "record every routing event, for `stoker replay`"},

    /* Sampling. */
    {CLI_RUN, 0, "temp", "temperature", "T", CLI_REAL, 0, 1000, AT(temp), "0.8", "temperature; 0: always the likeliest token"},
    {CLI_RUN, 0, "top-k", NULL, "N", CLI_INT, 0, I32_MAX, AT(top_k), "40", "sample from the N likeliest tokens; 0: off"},
    {CLI_RUN, 0, "top-p", NULL, "P", CLI_REAL, 0, 1, AT(top_p), "0.95",
     "sample from the likeliest tokens that make up P; 1: off"},
    {CLI_RUN, 0, "min-p", NULL, "P", CLI_REAL, 0, 1, AT(min_p), "0.05", "drop tokens below P times the likeliest; 0: off"},
    {CLI_RUN, 0, "repeat-penalty", NULL, "X", CLI_REAL, 0.01, 100, AT(repeat_penalty), "1",
     "penalty for tokens that stand in the text; 1: off"},
    {CLI_RUN, 0, "repeat-last-n", NULL, "N", CLI_INT, 0, 1048576, AT(repeat_last_n), "64", "how far back the penalty looks"},
    {CLI_RUN, 's', "seed", NULL, "N", CLI_INT, -1, SEED_MAX, AT(seed), "-1",
     "the same seed gives the same text; -1: draw one and print it"},
    {CLI_REPLAY | CLI_LOGITS | CLI_PERPLEXITY, 's', "seed", NULL, "N", CLI_INT, 0, SEED_MAX, AT(seed), "0",
     "of whatever is drawn: modelled drives, random policies"},

    /* What is shown. */
    {CLI_REPLAY, 0, "verify", NULL, NULL, CLI_FLAG, 0, 0, AT(verify), NULL, "repeat the recorded run and compare every decision"},
    {CLI_INSPECT, 0, "tensors", NULL, NULL, CLI_FLAG, 0, 0, AT(list_tensors), NULL, "list every tensor"},
    {CLI_REPLAY, 0, "csv", NULL, "FILE", CLI_TEXT, 0, 0, AT(csv), NULL, "write the figures of each layer"},
    {ENGINE | CLI_INSPECT | CLI_REPLAY | CLI_TRACE, 0, "json", NULL, NULL, CLI_FLAG, 0, 0, AT(json), NULL,
     "print one JSON object instead of text"},
    {ENGINE, 0, "stats", NULL, NULL, CLI_FLAG, 0, 0, AT(stats), NULL, "print every counter at the end"},
    {ENGINE | CLI_REPLAY | CLI_TRACE, 'q', "quiet", NULL, NULL, CLI_FLAG, 0, 0, AT(quiet), NULL,
     "no progress, no sizes, no table"},
    {ENGINE | CLI_INSPECT | CLI_REPLAY | CLI_TRACE, 'v', "verbose", NULL, NULL, CLI_FLAG, 0, 0, AT(verbose), NULL,
     "say more on stderr"},
    {CLI_ALL, 'h', "help", NULL, NULL, CLI_FLAG, 0, 0, AT(help), NULL, "print this help"},
};
const size_t cli_n_option = sizeof cli_options / sizeof cli_options[0];
