/*
 * timeline_svg: the queues as a picture that needs nothing else: a band for each step, all on one scale of time, with a row for
 * each lane; above them what each kind of work took in all. Colours as in bench_svg.c; every stretch says what it is when pointed
 * at.
 */
#include <stdlib.h>
#include <string.h>

#include "svg.h"
#include "timeline_lanes.h"

enum {
    WIDTH = 1200,
    LEFT = 84, /* of the axis */
    RIGHT = 1180,
    ROW = 16,
    GAP = 16, /* above a band */
    LEGEND_ROW = 19,
    MOST_BANDS = 64,
};

static const char *const fills[STK_N_WORK] = {
    [STK_WORK_DENSE] = "#0072b2",   [STK_WORK_EXPERTS] = "#009e73", [STK_WORK_PACK] = "#e69f00",
    [STK_WORK_WAIT] = "url(#wait)", [STK_WORK_READ] = "#d55e00",    [STK_WORK_READ_AHEAD] = "#f0e442",
};

typedef struct band {
    uint64_t step, begin_ns, end_ns;
    double y;
} band;

typedef struct bands {
    band list[MOST_BANDS];
    uint32_t n;
    uint64_t n_more; /* steps that are not drawn */
    uint64_t longest_ns;
} bands;

/* A step begins and ends with work of the CPU; reads may begin before it and go on behind it. */
static void find_bands(const cli_lanes *l, bands *b) {
    uint64_t last = UINT64_MAX;
    for (uint64_t i = 0; i < l->n; i++) {
        const stk_work *w = l->work[i];
        if (l->queue[w->kind] != 0) continue;
        band *at = b->n ? &b->list[b->n - 1] : NULL;
        if (!at || w->step != last) {
            last = w->step;
            b->n_more += b->n == MOST_BANDS;
            if (b->n == MOST_BANDS) continue;
            at = &b->list[b->n++];
            *at = (band){w->step, w->begin_ns, w->end_ns, 0};
        }
        if (at->step == w->step && w->end_ns > at->end_ns) at->end_ns = w->end_ns;
    }
    b->longest_ns = 1;
    for (uint32_t i = 0; i < b->n; i++)
        if (b->list[i].end_ns - b->list[i].begin_ns > b->longest_ns) b->longest_ns = b->list[i].end_ns - b->list[i].begin_ns;
}

static double legend(cli_svg *s, const cli_lanes *l, double y) {
    uint64_t ns[STK_N_WORK] = {0}, bytes[STK_N_WORK] = {0};
    for (uint64_t i = 0; i < l->n; i++) {
        ns[l->work[i]->kind] += l->work[i]->end_ns - l->work[i]->begin_ns;
        bytes[l->work[i]->kind] += l->work[i]->bytes;
    }
    for (uint32_t k = 0; k < STK_N_WORK; k++) {
        char size[32];
        double at = y + k * LEGEND_ROW;
        cli_svg_put(s,
                    "<rect x=\"%d\" y=\"%.0f\" width=\"26\" height=\"13\" fill=\"%s\" stroke=\"#888\" stroke-width=\"0.5\"/>\n",
                    LEFT, at, fills[k]);
        cli_svg_put(s, "<text x=\"%d\" y=\"%.0f\">%s: %s</text>\n", LEFT + 34, at + 11, stk_work_queue(k), stk_work_name(k));
        cli_svg_put(s, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">%.2f ms</text>\n", LEFT + 290, at + 11,
                    (double)ns[k] * 1e-6);
        if (bytes[k])
            cli_svg_put(s, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">%s</text>\n", LEFT + 390, at + 11,
                        cli_bytes_text(bytes[k], size));
    }
    return y + STK_N_WORK * LEGEND_ROW;
}

static uint32_t rows_of(const cli_lanes *l) {
    uint32_t n = 0;
    for (uint32_t q = 0; q < l->n_queue; q++) n += l->queues[q].n_lane;
    return n;
}

static void draw_frame(cli_svg *s, const cli_timeline *t, const cli_lanes *l, const band *b) {
    double y = b->y;
    uint64_t number = b->step - t->n_before + 1;
    if (b->step < t->n_before)
        cli_svg_put(s, "<text x=\"%d\" y=\"%.1f\" font-weight=\"bold\">prompt, %.2f ms</text>\n", LEFT, y - 4,
                    (double)(b->end_ns - b->begin_ns) * 1e-6);
    else
        cli_svg_put(s, "<text x=\"%d\" y=\"%.1f\" font-weight=\"bold\">%s %llu, %.2f ms</text>\n", LEFT, y - 4, t->unit,
                    (unsigned long long)number, (double)(b->end_ns - b->begin_ns) * 1e-6);
    for (uint32_t q = 0; q < l->n_queue; q++)
        for (uint32_t lane = 0; lane < l->queues[q].n_lane; lane++, y += ROW) {
            cli_svg_put(s, "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" fill=\"#f4f4f4\"/>\n", LEFT, y, RIGHT - LEFT,
                        ROW - 2);
            if (lane == 0)
                cli_svg_put(s, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 6, y + 11, l->queues[q].name);
        }
}

static void draw_work(cli_svg *s, const cli_lanes *l, uint64_t i, const band *b, double px_per_ns) {
    const stk_work *w = l->work[i];
    uint32_t row = l->lane[i];
    uint64_t begin = w->begin_ns > b->begin_ns ? w->begin_ns : b->begin_ns, end = w->end_ns < b->end_ns ? w->end_ns : b->end_ns;
    if (end <= begin) return;
    for (uint32_t q = 0; q < l->queue[w->kind]; q++) row += l->queues[q].n_lane;
    cli_svg_put(s, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\"><title>%s, %.3f ms",
                LEFT + (double)(begin - b->begin_ns) * px_per_ns, b->y + row * ROW, (double)(end - begin) * px_per_ns, ROW - 2,
                fills[w->kind], stk_work_name(w->kind), (double)(w->end_ns - w->begin_ns) * 1e-6);
    if (w->layer != STK_NO_LAYER) cli_svg_put(s, ", layer %u", w->layer);
    if (w->expert != UINT32_MAX) cli_svg_put(s, ", expert %u", w->expert);
    if (w->n_expert > 1) cli_svg_put(s, ", %u experts", w->n_expert);
    cli_svg_put(s, "</title></rect>\n");
}

static void draw_bands(cli_svg *s, const cli_timeline *t, const cli_lanes *l, bands *b, double y) {
    double height = rows_of(l) * (double)ROW, px_per_ns = (double)(RIGHT - LEFT) / (double)b->longest_ns;
    for (uint32_t i = 0; i < b->n; i++, y += height + GAP + 8) {
        b->list[i].y = y + GAP;
        draw_frame(s, t, l, &b->list[i]);
    }
    for (uint64_t i = 0; i < l->n; i++)
        for (uint32_t k = 0; k < b->n; k++)
            if (l->work[i]->step == b->list[k].step) draw_work(s, l, i, &b->list[k], px_per_ns);
}

int cli_timeline_svg(const cli_timeline *t, const cli_lanes *l, const char *what) {
    cli_svg s = {.rc = CLI_OK};
    bands *b = calloc(1, sizeof *b);
    if (!b) return cli_fail(CLI_FAILED, "--timeline", "out of memory");
    find_bands(l, b);
    double band_height = rows_of(l) * ROW + GAP + 8, top = 62 + STK_N_WORK * LEGEND_ROW + 44;
    double height = top + b->n * band_height + 20;
    cli_svg_put(&s,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" "
                "font-family=\"sans-serif\" "
                "font-size=\"12\">\n",
                WIDTH, height, WIDTH, height);
    cli_svg_put(
        &s, "<defs><pattern id=\"wait\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
            "<rect width=\"4\" height=\"4\" fill=\"#fff\"/><rect width=\"1.4\" height=\"4\" fill=\"#888\"/></pattern></defs>\n");
    cli_svg_put(&s, "<rect width=\"%d\" height=\"%.0f\" fill=\"#fff\"/>\n", WIDTH, height);
    cli_svg_put(&s,
                "<text x=\"%d\" y=\"28\" font-size=\"18\" font-weight=\"bold\">What the queues did</text>\n<text x=\"%d\" "
                "y=\"47\" fill=\"#444\">",
                LEFT, LEFT);
    cli_svg_text(&s, what);
    if (b->n_more) cli_svg_put(&s, "; %llu more %ss are in the JSON file alone", (unsigned long long)b->n_more, t->unit);
    cli_svg_put(&s, "</text>\n");
    double y = legend(&s, l, 62);
    cli_svg_axis(&s, LEFT, RIGHT, y + 24, top + b->n * band_height, (double)b->longest_ns * 1e-6);
    cli_svg_put(&s, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\" fill=\"#444\">ms</text>\n", LEFT - 6, y + 20);
    draw_bands(&s, t, l, b, top - 8);
    cli_svg_put(&s, "</svg>\n");
    int rc = s.rc == CLI_OK ? cli_write_file(t->svg_path, "timeline", s.out.data, s.out.bytes) : s.rc;
    free(s.out.data);
    free(b);
    return rc;
}
