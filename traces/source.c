/* source: which reader a file takes, and several files as one. */
#include "traces/source.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "traces/import.h"
#include "traces/trace_format.h"

/* One open file. */
typedef struct file {
    stk_trace_reader *reader; /* Stoker's own format, or: */
    stk_input *in;
    const import_ops *ops;
    void *state;
    stk_trace_header header;
    bool sized;
} file;

struct stk_source {
    uint32_t n_path, i_path; /* the running one */
    char **paths;
    stk_source_options options;
    file file;
    stk_trace_header header; /* as the first file's, n_batch the most of all; its pointers are `first`'s */
    file first;              /* kept open for the header where there are several files */
    stk_source_info info;
    bool ended, cut;

    /* Numbering on: what the files before had. */
    uint64_t step_base, next_step;
    int64_t seq_base, next_seq;
    int32_t *seq;
    uint32_t seq_cap;
    stk_trace_end end; /* of records passed on: events, lookups, pairs */
    int error;         /* sticky */
    char detail[512];
};

/* ---- One file ----------------------------------------------------------------------------------------------------------- */

/* Whether the file is for stk_trace_reader: what is no regular file cannot be looked at first. */
static int is_own(const char *path, bool *own) {
    struct stat st;
    uint8_t magic[8] = {0};
    stk_input *in;
    *own = stat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0;
    if (*own) return 0;
    STK_TRY(stk_input_open(&in, path));
    const uint8_t *data = magic;
    int64_t n = stk_input_peek(in, &data);
    *own = n >= 8 && memcmp(data, "STKTRACE", 8) == 0;
    bool packed = *own && stk_input_is_packed(in);
    stk_input_close(&in);
    if (packed) return stk_fail(STK_EUNSUPPORTED, "a Stoker trace within another compression: unpack it first");
    return n < 0 ? (int)n : 0;
}

static void *copy(const void *of, size_t n, size_t bytes) {
    void *out = calloc(n, bytes);
    return out ? memcpy(out, of, n * bytes) : NULL;
}

static int check_shape(const stk_trace_header *h, const stk_trace_header *shape) {
    if (!shape || (h->n_layer == shape->n_layer && h->n_expert == shape->n_expert)) return 0;
    return stk_fail(STK_EINVAL, "it has %u layers of %u experts; the model has %u of %u", h->n_layer, h->n_expert, shape->n_layer,
                    shape->n_expert);
}

/* Another model's classes and extents in place of what a trace says. */
static int take_shape(file *f, const stk_trace_header *shape) {
    stk_trace_header *h = &f->header;
    STK_TRY(check_shape(h, shape));
    free((void *)h->classes);
    free((void *)h->layer_class);
    free((void *)h->extents);
    h->n_part = shape->n_part;
    h->n_class = shape->n_class;
    h->classes = copy(shape->classes, shape->n_class, sizeof *shape->classes);
    h->layer_class = copy(shape->layer_class, shape->n_layer, sizeof *shape->layer_class);
    h->extents = copy(shape->extents, (size_t)shape->n_layer * shape->n_expert * shape->n_part, sizeof *shape->extents);
    f->sized = true;
    return h->classes && h->layer_class && h->extents ? 0 : stk_fail(STK_ENOMEM, "out of memory");
}

static int open_import(file *f, const char *path, const stk_source_options *o) {
    const uint8_t *data;
    STK_TRY(stk_input_open(&f->in, path));
    int64_t n = stk_input_peek(f->in, &data);
    if (n < 0) return (int)n;
    const import_ops *ops = stk_import_find(data, (size_t)n);
    if (!ops) return stk_fail(STK_EFORMAT, "byte 0: not a trace of a known format (traces/README.md lists them)");
    f->ops = ops;
    int rc = ops->open(&f->state, f->in, o->expert_bytes, &f->header, &f->sized);
    if (rc < 0) return stk_fail_in(rc, "%s", ops->name);
    return o->shape ? take_shape(f, o->shape) : rc;
}

static void close_file(file *f) {
    stk_trace_reader_close(&f->reader);
    if (f->ops) {
        f->ops->close(f->state);
        stk_trace_header_free(&f->header);
    }
    stk_input_close(&f->in);
    *f = (file){0};
}

static int open_file(file *f, const char *path, const stk_source_options *o) {
    bool own;
    *f = (file){0};
    int rc = is_own(path, &own);
    if (rc >= 0 && own) {
        STK_TRY(stk_trace_reader_open(&f->reader, path));
        f->header = *stk_trace_reader_header(f->reader);
        f->sized = true;
        rc = check_shape(&f->header, o->shape);
    }
    if (rc >= 0 && !own) rc = open_import(f, path, o);
    if (rc >= 0) return rc;
    close_file(f);
    return stk_fail_in(rc, "trace %s", path);
}

/* 1, 0 at the end, or an error. */
static int read_file(stk_source *s, stk_trace_record *record) {
    file *f = &s->file;
    if (f->reader) return stk_trace_read(f->reader, record);
    int rc = f->ops->read(f->state, record);
    return rc < 0 ? stk_fail_in(rc, "trace %s: %s", s->paths[s->i_path], f->ops->name) : rc;
}

/* ---- Open and close ----------------------------------------------------------------------------------------------------- */

static int compare_shapes(const stk_source *s, const stk_trace_header *h, const char *path) {
    const stk_trace_header *first = &s->header;
    bool same = h->n_layer == first->n_layer && h->n_expert == first->n_expert && h->k == first->k;
    for (uint32_t i = 0; same && i < h->n_layer; i++)
        same = h->model_layer[i] == first->model_layer[i] &&
               h->classes[h->layer_class[i]].payload_bytes == first->classes[first->layer_class[i]].payload_bytes;
    if (same) return 0;
    return stk_fail(STK_EINVAL,
                    "trace %s: %u layers of %u experts, %u a token, which is another model than that of %s (%u, %u, %u)", path,
                    h->n_layer, h->n_expert, h->k, s->paths[0], first->n_layer, first->n_expert, first->k);
}

static int open_all(stk_source *s, const char *const *paths, uint32_t n) {
    s->paths = calloc(n, sizeof *s->paths);
    if (!s->paths) return stk_fail(STK_ENOMEM, "out of memory");
    for (; s->n_path < n; s->n_path++) {
        s->paths[s->n_path] = strdup(paths[s->n_path]);
        if (!s->paths[s->n_path]) return stk_fail(STK_ENOMEM, "out of memory");
    }
    STK_TRY(open_file(&s->file, paths[0], &s->options));
    s->header = s->file.header;
    s->info = (stk_source_info){
        .format = s->file.reader ? "stoker" : s->file.ops->name, .recorded = n == 1 && s->file.reader, .sized = s->file.sized};
    if (n == 1) return 0;
    s->first = s->file;
    s->file = (file){0};
    for (uint32_t i = 1; i < n; i++) {
        STK_TRY(open_file(&s->file, paths[i], &s->options));
        STK_TRY(compare_shapes(s, &s->file.header, paths[i]));
        s->header.n_batch = STK_MAX(s->header.n_batch, s->file.header.n_batch);
        s->info.sized &= s->file.sized;
        close_file(&s->file);
    }
    return open_file(&s->file, paths[0], &s->options);
}

int stk_source_open(stk_source **out, const char *const *paths, uint32_t n, const stk_source_options *options) {
    *out = NULL;
    if (!n) return stk_fail(STK_EINVAL, "no trace is named");
    stk_source *s = calloc(1, sizeof *s);
    if (!s) return stk_fail(STK_ENOMEM, "out of memory");
    if (options) s->options = *options;
    int rc = open_all(s, paths, n);
    if (rc < 0) stk_source_close(&s);
    *out = s;
    return rc;
}

void stk_source_close(stk_source **source) {
    stk_source *s = *source;
    if (!s) return;
    close_file(&s->file);
    close_file(&s->first);
    for (uint32_t i = 0; i < s->n_path; i++) free(s->paths[i]);
    free(s->paths);
    free(s->seq);
    free(s);
    *source = NULL;
}

const stk_trace_header *stk_source_header(const stk_source *s) { return &s->header; }
const stk_source_info *stk_source_get_info(const stk_source *s) { return &s->info; }
bool stk_source_cut(const stk_source *s) { return s->cut; }

/* Of several files, each counts as much as the others. */
void stk_source_progress(const stk_source *s, uint64_t *done, uint64_t *total) {
    if (s->file.reader)
        stk_trace_reader_progress(s->file.reader, done, total);
    else if (s->file.in)
        stk_input_progress(s->file.in, done, total);
    else
        *done = *total = 0;
    *done += s->i_path * *total;
    *total *= s->n_path;
}

/* ---- Reading ------------------------------------------------------------------------------------------------------------ */

static int renumber_step(stk_source *s, stk_trace_step *step) {
    if (step->n_tok > s->seq_cap) {
        int32_t *seq = realloc(s->seq, step->n_tok * sizeof *seq);
        if (!seq) return stk_fail(STK_ENOMEM, "out of memory for a step");
        s->seq = seq;
        s->seq_cap = step->n_tok;
    }
    for (uint32_t i = 0; i < step->n_tok; i++) {
        int64_t seq = step->seq[i] + s->seq_base;
        if (seq > INT32_MAX) return stk_fail(STK_EUNSUPPORTED, "more sequences than 32 bits can number");
        s->seq[i] = (int32_t)seq;
        s->next_seq = STK_MAX(s->next_seq, seq + 1);
    }
    step->step += s->step_base;
    s->next_step = STK_MAX(s->next_step, step->step + 1);
    step->seq = s->seq;
    return 0;
}

static int renumber(stk_source *s, stk_trace_record *r) {
    switch (r->kind) {
    case STK_TRACE_STEP: return renumber_step(s, &r->step);
    case STK_TRACE_EVENT:
        r->event.step += s->step_base;
        r->event.seq = s->seq;
        return 0;
    case STK_TRACE_ABORT: r->abort_step += s->step_base; return 0;
    default: return 0;
    }
}

static void count_event(stk_source *s, const stk_event *e) {
    s->end.n_event++;
    s->end.n_lookup += e->n_distinct;
    uint64_t n_pair = 0;
    for (uint32_t i = 0; i < e->n_distinct; i++) n_pair += e->counts[i];
    s->end.n_pair += n_pair;
}

/* The running file is done: 1 when the next one is open, 0 when there is none. */
static int next_file(stk_source *s) {
    if (s->file.reader && stk_trace_reader_cut(s->file.reader)) s->cut = true;
    if (s->i_path + 1 == s->n_path) return 0;
    close_file(&s->file);
    s->i_path++;
    s->step_base = s->next_step;
    s->seq_base = s->next_seq;
    STK_TRY(open_file(&s->file, s->paths[s->i_path], &s->options));
    STK_TRY(compare_shapes(s, &s->file.header, s->paths[s->i_path]));
    return 1;
}

/* The END that stands for files which have none, or of which there are several. */
static int give_end(stk_source *s, stk_trace_record *record) {
    s->ended = true;
    if (s->cut) return 0;
    record->kind = STK_TRACE_END;
    record->end = s->end;
    return 1;
}

static int read_record(stk_source *s, stk_trace_record *record) {
    if (s->ended) return 0;
    for (int rc;;) {
        STK_TRY(rc = read_file(s, record));
        bool end = rc == 0 || (record->kind == STK_TRACE_END && !s->info.recorded);
        if (end && !s->info.recorded) {
            STK_TRY(rc = next_file(s));
            if (rc == 0) return give_end(s, record);
            continue;
        }
        if (rc == 0) {
            s->cut = stk_trace_reader_cut(s->file.reader);
            return 0;
        }
        if (record->kind == STK_TRACE_COST && s->i_path > 0) continue; /* the first file's stands for all */
        if (s->info.recorded) return 1;
        if (record->kind == STK_TRACE_EVENT) count_event(s, &record->event);
        if (s->n_path > 1) STK_TRY(renumber(s, record));
        return 1;
    }
}

int stk_source_read(stk_source *s, stk_trace_record *record) {
    if (s->error) return stk_fail(s->error, "%s", s->detail);
    int rc = read_record(s, record);
    if (rc >= 0) return rc;
    s->error = rc;
    strncpy(s->detail, stk_error_detail(), sizeof s->detail - 1);
    return rc;
}
