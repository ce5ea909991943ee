/* trace_text: records as text. */
#include "trace_text.h"

#include <stdarg.h>

#include "tests/trace_random.h"

static char text[1 << 16];
static size_t used;

STK_PRINTF(1, 2)
static void say(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text + used, sizeof text - used, fmt, args);
    va_end(args);
    if (n > 0) used = STK_MIN(used + (size_t)n, sizeof text - 1);
}

static void say_step(const stk_trace_step *s) {
    say("%s[", used ? " " : "");
    for (uint32_t i = 0; i < s->n_tok; i++) say("%s%d@%d%s", i ? " " : "", s->seq[i], s->pos[i], s->logits[i] ? "" : "p");
    say("]");
}

static void say_ids(const uint16_t *ids, uint32_t n_tok, uint32_t n) {
    for (uint32_t i = 0; i < n_tok * n; i++) {
        if (i) say("%s", i % n ? " " : ",");
        if (ids[i] == STK_NO_EXPERT)
            say("-");
        else
            say("%u", ids[i]);
    }
}

static void say_event(const stk_event *e) {
    say(" %u:", e->layer);
    say_ids(e->ids, e->n_tok, e->k);
    for (uint32_t i = 0; e->weights && i < e->n_tok * e->k; i++) say("%c%g", i ? ' ' : '=', (double)e->weights[i]);
    if (e->n_top) say("^");
    if (e->n_top) say_ids(e->top_ids, e->n_tok, e->n_top);
}

const char *trace_text(const char *path) {
    stk_source *s;
    stk_trace_record r;
    used = 0;
    text[0] = 0;
    int rc = stk_source_open(&s, &path, 1, NULL);
    while (rc >= 0 && (rc = stk_source_read(s, &r)) == 1) {
        if (r.kind == STK_TRACE_STEP) say_step(&r.step);
        if (r.kind == STK_TRACE_EVENT) say_event(&r.event);
    }
    if (rc < 0) say("%s", stk_error_detail());
    stk_source_close(&s);
    return text;
}

const char *trace_text_of(const char *content) {
    tr_store(tr_path(), content, strlen(content));
    return trace_text(tr_path());
}
