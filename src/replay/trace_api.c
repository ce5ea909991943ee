/* trace_api: traces of the public API: looking at one, and writing one out of others. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/model/gguf.h"
#include "tally.h"
#include "traces/export.h"
#include "traces/source.h"

/* ---- Looking at one ----------------------------------------------------------------------------------------------------- */

struct stk_trace {
    stk_source *source;
    enum stk_phase phase; /* of the running step */
    char *text[4];        /* model, policy, io, params of the header, as they may be shown */
};

/* A file is not trusted to be shown as it is: control characters and stray bytes are escaped. */
static char *printable(const char *text) {
    stk_gguf_string s = {text, strlen(text)};
    size_t cap = 4 * s.bytes + 8;
    char *out = malloc(cap);
    if (out) stk_gguf_format(&(stk_gguf_value){.type = STK_GGUF_STRING, .item = STK_GGUF_STRING, .n = 1, .data = &s}, out, cap);
    return out;
}

static int take_texts(stk_trace *t) {
    const stk_trace_header *h = stk_source_header(t->source);
    const char *const texts[] = {h->model, h->policy, h->io, h->params};
    for (size_t i = 0; i < STK_ARRAY_LEN(texts); i++)
        if (!(t->text[i] = printable(texts[i]))) return stk_fail(STK_ENOMEM, "out of memory for the trace");
    return STK_OK;
}

int stk_trace_open(stk_trace **out, const char *path) {
    if (!out || !path) return stk_fail(STK_EINVAL, "stk_trace_open: an argument is NULL");
    *out = NULL;
    stk_trace *t = calloc(1, sizeof *t);
    if (!t) return stk_fail(STK_ENOMEM, "trace %s: out of memory", path);
    int rc = stk_source_open(&t->source, &path, 1, NULL);
    if (rc >= 0) rc = take_texts(t);
    if (rc < 0) stk_trace_close(&t);
    *out = t;
    return rc;
}

void stk_trace_close(stk_trace **trace) {
    if (!trace || !*trace) return;
    stk_source_close(&(*trace)->source);
    for (size_t i = 0; i < STK_ARRAY_LEN((*trace)->text); i++) free((*trace)->text[i]);
    free(*trace);
    *trace = NULL;
}

int stk_trace_get_info(const stk_trace *trace, stk_trace_info *info) {
    if (!trace || !info || info->struct_bytes < sizeof info->struct_bytes)
        return stk_fail(STK_EINVAL, "stk_trace_get_info: an argument is NULL or of no size");
    const stk_trace_header *h = stk_source_header(trace->source);
    const stk_source_info *source = stk_source_get_info(trace->source);
    stk_trace_info full = {.struct_bytes = STK_MIN(info->struct_bytes, (uint32_t)sizeof full),
                           .n_layer = h->n_layer,
                           .n_expert = h->n_expert,
                           .k = h->k,
                           .n_batch = h->n_batch,
                           .recorded = source->recorded && h->policy[0],
                           .sized = source->sized,
                           .ram_bytes = h->ram_bytes,
                           .format = source->format,
                           .model = trace->text[0],
                           .policy = trace->text[1],
                           .io = trace->text[2],
                           .params = trace->text[3]};
    for (uint32_t i = 0; i < h->n_layer; i++) full.expert_bytes += h->n_expert * h->classes[h->layer_class[i]].payload_bytes;
    for (uint32_t c = 0; c < h->n_class; c++) full.n_slot += h->classes[c].n_slot;
    memcpy(info, &full, full.struct_bytes);
    return STK_OK;
}

static void fill_event(const stk_trace *t, const stk_event *e, stk_trace_event *out) {
    stk_trace_event full = {.struct_bytes = STK_MIN(out->struct_bytes, (uint32_t)sizeof full),
                            .decode = t->phase == STK_DECODE,
                            .step = e->step,
                            .layer = e->layer,
                            .model_layer = stk_source_header(t->source)->model_layer[e->layer],
                            .n_tok = e->n_tok,
                            .k = e->k,
                            .n_top = e->n_top,
                            .n_expert = e->n_expert,
                            .seq = e->seq,
                            .pos = e->pos,
                            .token = e->token,
                            .ids = e->ids,
                            .weights = e->weights,
                            .top_ids = e->top_ids,
                            .top_scores = e->top_scores};
    memcpy(out, &full, full.struct_bytes);
}

int stk_trace_next(stk_trace *trace, stk_trace_event *event) {
    if (!trace || !event || event->struct_bytes < sizeof event->struct_bytes)
        return stk_fail(STK_EINVAL, "stk_trace_next: an argument is NULL or of no size");
    stk_trace_record record;
    int rc;
    while ((rc = stk_source_read(trace->source, &record)) == 1) {
        if (record.kind == STK_TRACE_STEP) trace->phase = stk_tally_phase(&record.step);
        if (record.kind != STK_TRACE_EVENT) continue;
        fill_event(trace, &record.event, event);
        return 1;
    }
    return rc;
}

int stk_trace_is_cut(const stk_trace *trace) { return trace && stk_source_cut(trace->source); }

/* ---- Writing one -------------------------------------------------------------------------------------------------------- */

typedef struct convert {
    stk_trace_convert_options o;
    stk_source *source;
    stk_trace_writer *writer; /* or: */
    stk_export *export;
    bool whole;      /* everything passes: counters of a recorded run still hold */
    uint64_t n_step; /* seen */
    bool keep;       /* the running step */
    stk_trace_end end;
} convert;

void stk_trace_convert_options_default(stk_trace_convert_options *o, size_t struct_bytes) {
    stk_struct_give(o, struct_bytes, &(stk_trace_convert_options){0}, sizeof *o);
}

static int write_record(convert *c, const stk_trace_record *record) {
    return c->export ? stk_export_write(c->export, record) : stk_trace_write(c->writer, record);
}

/* Events of the steps that stay, and what stands among them. */
static int take_record(convert *c, const stk_trace_record *record) {
    if (record->kind == STK_TRACE_END) {
        if (c->whole) c->end = record->end;
        return STK_OK;
    }
    if (record->kind == STK_TRACE_STEP) {
        uint64_t i = c->n_step++;
        c->keep = i >= c->o.first_step && (!c->o.n_step || i - c->o.first_step < c->o.n_step);
    }
    if (!c->keep && record->kind != STK_TRACE_COST) return STK_OK;
    if (record->kind == STK_TRACE_EVENT && !c->whole) {
        const stk_event *e = &record->event;
        c->end.n_event++;
        c->end.n_lookup += e->n_distinct;
        for (uint32_t i = 0; i < e->n_distinct; i++) c->end.n_pair += e->counts[i];
    }
    return write_record(c, record);
}

static int show_progress(const convert *c) {
    uint64_t done, total;
    if (!c->o.progress || c->n_step % 1024) return STK_OK;
    stk_source_progress(c->source, &done, &total);
    return c->o.progress(c->o.progress_user, "convert", done, total) ? stk_fail(STK_ECANCELED, "the conversion was cancelled")
                                                                     : STK_OK;
}

static int copy_records(convert *c) {
    stk_trace_record record;
    int rc;
    while ((rc = stk_source_read(c->source, &record)) == 1) {
        STK_TRY(take_record(c, &record));
        if (record.kind == STK_TRACE_STEP) STK_TRY(show_progress(c));
    }
    if (rc < 0) return rc;
    if (c->n_step <= c->o.first_step)
        return stk_fail(STK_EINVAL, "step %llu of %llu: nothing is left", (unsigned long long)c->o.first_step,
                        (unsigned long long)c->n_step);
    /* A trace that was cut off stays so. */
    if (c->whole && stk_source_cut(c->source)) return STK_OK;
    return write_record(c, &(stk_trace_record){.kind = STK_TRACE_END, .end = c->end});
}

static int close_outputs(convert *c) {
    int rc = stk_trace_writer_close(&c->writer), rc2 = stk_export_close(&c->export);
    return rc < 0 ? rc : rc2;
}

static int convert_to(convert *c, const char *path) {
    stk_trace_header header = *stk_source_header(c->source), *h = &header;
    if (c->o.first_step) h->state_bytes = 0; /* the cache's state before another step */
    int rc =
        c->o.format == STK_TRACE_FORMAT_CSV ? stk_export_open(&c->export, path, h) : stk_trace_writer_open(&c->writer, path, h);
    if (rc < 0) return rc;
    rc = copy_records(c);
    int closed = close_outputs(c);
    return rc < 0 ? rc : closed;
}

/* Writes beside `path`, then takes its place; what is no regular file (a pipe, /dev/stdout) is written as it is. */
static int convert_whole(convert *c, const char *path) {
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) return convert_to(c, path);
    size_t bytes = strlen(path) + 32;
    char *beside = malloc(bytes);
    if (!beside) return stk_fail(STK_ENOMEM, "%s: out of memory", path);
    snprintf(beside, bytes, "%s.tmp-%ld", path, (long)getpid());
    int rc = convert_to(c, beside);
    if (rc >= 0 && rename(beside, path) < 0) rc = stk_fail_errno(errno, "%s", path);
    if (rc < 0) unlink(beside);
    free(beside);
    return rc;
}

int stk_trace_convert(const char *const *traces, uint32_t n, const char *path, const stk_trace_convert_options *options) {
    if (!traces || !n || !path) return stk_fail(STK_EINVAL, "stk_trace_convert: an argument is NULL");
    convert c = {0};
    stk_trace_convert_options_default(&c.o, sizeof c.o);
    if (options) STK_TRY(stk_struct_take(&c.o, sizeof c.o, options, "convert options"));
    if (c.o.format > STK_TRACE_FORMAT_CSV) return stk_fail(STK_EINVAL, "format %u: no such choice", c.o.format);
    for (uint32_t i = 0; i < n; i++)
        if (!traces[i]) return stk_fail(STK_EINVAL, "stk_trace_convert: trace %u is NULL", i);
    STK_TRY(stk_source_open(&c.source, traces, n, &(stk_source_options){.expert_bytes = c.o.expert_bytes}));
    c.whole = stk_source_get_info(c.source)->recorded && !c.o.first_step && !c.o.n_step;
    int rc = convert_whole(&c, path);
    stk_source_close(&c.source);
    return rc;
}
