/*
 * report: a tuning run as one page of HTML with pictures in SVG. It needs no other file and no network, fits a phone, follows the
 * reader's light or dark mode, and prints. Colours are from the palette of Okabe and Ito, in an order of falling contrast; every
 * line and bar is also told apart by its dashes, its marks and a label beside it.
 *
 * Who may call it: src/report*.c and tune.c. Pictures are 400 units wide, so that their text is readable where they are shrunk to
 * a phone.
 */
#ifndef STK_REPORT_H
#define STK_REPORT_H

#include "tune.h"

/* Text that grows. After a failure everything is dropped, and `failed` says so at the end. */
typedef struct stk_page {
    char *text;
    size_t n, room;
    bool failed;
} stk_page;
void stk_page_put(stk_page *page, const char *fmt, ...) STK_PRINTF(2, 3);
/* Text of anybody's, with what means something in HTML replaced. */
void stk_page_text(stk_page *page, const char *text);

enum { STK_REPORT_WIDTH = 400, STK_REPORT_SERIES = 8 };

/* One line of a chart; points with y < 0 are left out. */
typedef struct stk_series {
    const char *name;
    const double *x, *y; /* [n] */
    uint32_t n;
    bool is_bound; /* drawn thin and grey */
} stk_series;

typedef struct stk_chart {
    const char *id, *title, *x_name, *y_name;
    const stk_series *series;
    uint32_t n_series;
    bool log_x;
    double mark_x; /* a vertical line there; 0: none */
    const char *mark_name;
} stk_chart;
/* x in (0, 1], y in [0, 1], both shown in per cent. */
void stk_report_lines(stk_page *page, const stk_chart *chart);

/* Use by layer (rows) and expert (columns): values [n_row, n_col], each against the greatest. */
void stk_report_heat(stk_page *page, const uint64_t *values, uint32_t n_row, uint32_t n_col);

/* Bars of parts one behind the other, one bar a row: values [n_bar, n_part] in ms. */
void stk_report_stack(stk_page *page, const char *const *bars, uint32_t n_bar, const char *const *parts, uint32_t n_part,
                      const double *values);

/* One dot for each part, a line for the whole; values that are no number are left out. */
void stk_report_dots(stk_page *page, const double *values, uint32_t n, double whole);

/* A bar for each layer. */
void stk_report_layers(stk_page *page, const uint32_t *n_slot, uint32_t n_layer, uint32_t n_expert);

#endif
