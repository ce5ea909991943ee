/*
 * source: one or several traces as one stream of records, whatever their formats: Stoker's own (trace.h) and those that
 * traces/README.md lists under "Formats of others". The format is found by looking at the content. Several traces follow one
 * another as one run: their steps and sequences are numbered on.
 *
 * Who may call it: src/. Threads: one owner. Ownership: what it returns lives until its next call. Errors: as trace.h; the detail
 * names the file and the byte or line. Only Stoker's own format can be read from a pipe.
 */
#ifndef STK_SOURCE_H
#define STK_SOURCE_H

#include "traces/trace.h"

/* What an expert is taken to weigh where neither the trace nor the options say. */
enum { STK_SOURCE_EXPERT_BYTES = 1 << 20 };

typedef struct stk_source_options {
    uint64_t expert_bytes;         /* of imported traces, in place of what they say; 0: as they say */
    const stk_trace_header *shape; /* NULL, or what says how large their experts are and where they lie; borrowed until close */
} stk_source_options;

typedef struct stk_source_info {
    const char *format; /* of the first file: "stoker", "route.csv", "mrt8", ... */
    bool recorded;      /* one file of Stoker's own: it may hold a run's own decisions, costs and slots */
    bool sized;         /* the bytes of experts are known, not STK_SOURCE_EXPERT_BYTES */
} stk_source_info;

typedef struct stk_source stk_source;
/* Opens n >= 1 traces of the same shape (STK_EINVAL: they differ, or are of other layers or experts than options->shape). `paths`
 * is copied; options NULL: none. */
int stk_source_open(stk_source **out, const char *const *paths, uint32_t n, const stk_source_options *options) STK_CHECKED;
void stk_source_close(stk_source **s);
const stk_trace_header *stk_source_header(const stk_source *s);
const stk_source_info *stk_source_get_info(const stk_source *s);

/*
 * As stk_trace_read. Imported traces give STEP, EVENT and END records: an event has k experts a token, STK_NO_EXPERT where the
 * trace has fewer, and the counters of END that only a run can know are 0. The tokens of a step ask for logits where they are
 * decoded, not where they are read of a prompt.
 */
int stk_source_read(stk_source *s, stk_trace_record *record) STK_CHECKED;
/* Whether a trace ended without an END record. */
bool stk_source_cut(const stk_source *s);
void stk_source_progress(const stk_source *s, uint64_t *done, uint64_t *total);

#endif
