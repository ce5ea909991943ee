/*
 * timeline: --timeline: what the queues did and when, for the tokens asked for, as a file for chrome://tracing or Perfetto (JSON
 * in the Trace Event Format) and as a picture (SVG) beside it.
 */
#ifndef STK_CLI_TIMELINE_H
#define STK_CLI_TIMELINE_H

#include "common.h"

typedef struct cli_timeline {
    stk_timeline *work; /* NULL: nobody asked for one */
    const char *path;   /* of the JSON */
    char *svg_path;
    uint64_t n_before; /* steps before token 1 */
    const char *unit;  /* what a step behind them is called */
} cli_timeline;

/* Room for the tokens that --timeline-tokens names; n_before: steps of the prompt, which are token 0; model may be NULL. Fails
 * where the files could not be written later. Zero `t` before. */
int cli_timeline_open(cli_timeline *t, const cli_settings *settings, const stk_model *model, uint64_t n_before, const char *unit);
/* Writes both files; `what` goes into the title. Without a timeline does nothing. */
int cli_timeline_save(const cli_timeline *t, const char *what);
void cli_timeline_close(cli_timeline *t);

#endif
