/*
 * svg: what the pictures share: text that grows, escaped text, and axes of time.
 */
#ifndef STK_CLI_SVG_H
#define STK_CLI_SVG_H

#include "common.h"

/* A picture under construction; zero it to start, free out.data at the end. The first failure stays in rc and ends all writing.
 */
typedef struct cli_svg {
    cli_buffer out;
    int rc;
} cli_svg;

void cli_svg_put(cli_svg *s, const char *fmt, ...) CLI_PRINTF(2, 3);
/* Text of a model's file: what XML keeps for itself is written in its way, control characters are left out. */
void cli_svg_text(cli_svg *s, const char *text);
/* An axis of time from x `left` to `right`, which is `most` (of any unit): ticks, with their numbers, over a band from y0 to y1.
 */
void cli_svg_axis(cli_svg *s, int left, int right, double y0, double y1, double most);

#endif
