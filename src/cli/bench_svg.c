/*
 * bench_svg: one token's microseconds as a picture that needs nothing else: what each stage took in all, the whole token on one
 * axis of time, and below it a row for every layer from where that begins.
 *
 * Colours are told apart by those who see fewer of them (Okabe and Ito's palette, kinds of one hue by lightness), wide stretches
 * have their name on them, and every stretch has it as its tooltip.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "svg.h"

enum {
    WIDTH = 1200,
    LEFT = 64,    /* of the axes */
    RIGHT = 1120, /* behind it stands what a row took */
    ROW = 13,
    LEGEND_COLUMNS = 3,
    LEGEND_ROW = 19,
};

static const struct look {
    const char *fill;
    bool dark; /* names on it are white */
} looks[STK_N_STAGE] = {
    [STK_STAGE_EMBED] = {"#666666", true},       [STK_STAGE_NORM] = {"#f0e442", false},
    [STK_STAGE_QKV] = {"#0072b2", true},         [STK_STAGE_ROPE] = {"#a6d3f0", false},
    [STK_STAGE_ATTEND] = {"#56b4e9", false},     [STK_STAGE_ATTN_OUT] = {"#003f66", true},
    [STK_STAGE_ROUTER] = {"#cc79a7", false},     [STK_STAGE_CACHE] = {"#7a3c5d", true},
    [STK_STAGE_IO] = {"#d55e00", true},          [STK_STAGE_PACK] = {"#e69f00", false},
    [STK_STAGE_GATE_UP] = {"#009e73", true},     [STK_STAGE_DOWN] = {"#7fd6bd", false},
    [STK_STAGE_COMBINE] = {"#fff6a8", false},    [STK_STAGE_OUTPUT] = {"#222222", true},
    [STK_STAGE_BARRIER] = {"url(#wait)", false},
};

static void stretch(cli_svg *s, double x, double y, double width, double height, const stk_span *span) {
    const struct look *look = &looks[span->stage];
    const char *name = stk_stage_name(span->stage);
    cli_svg_put(s, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"><title>%s %.1f us</title></rect>\n", x,
                y, width, height, look->fill, name, span->ns * 1e-3);
    if (width > 6.0 * (double)strlen(name) + 6 && span->stage != STK_STAGE_BARRIER)
        cli_svg_put(s, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"9.5\" text-anchor=\"middle\" fill=\"%s\">%s</text>\n",
                    x + width / 2, y + height / 2 + 3.4, look->dark ? "#fff" : "#000", name);
}

static double legend(cli_svg *s, const stk_profile *p, double y) {
    double ns[STK_N_STAGE] = {0}, total = 0;
    for (uint32_t i = 0; i < p->n_span; i++) {
        ns[p->span[i].stage] += p->span[i].ns;
        total += p->span[i].ns;
    }
    int rows = (STK_N_STAGE + LEGEND_COLUMNS - 1) / LEGEND_COLUMNS, column = (WIDTH - LEFT) / LEGEND_COLUMNS;
    for (int k = 0; k < STK_N_STAGE; k++) {
        int across = k / rows;
        double x = LEFT + across * column, at = y + k % rows * LEGEND_ROW;
        cli_svg_put(s,
                    "<rect x=\"%.0f\" y=\"%.0f\" width=\"26\" height=\"13\" fill=\"%s\" stroke=\"#888\" stroke-width=\"0.5\"/>\n",
                    x, at, looks[k].fill);
        cli_svg_put(s, "<text x=\"%.0f\" y=\"%.0f\">%s</text>\n", x + 34, at + 11, stk_stage_name((uint32_t)k));
        cli_svg_put(s, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%.1f us</text>\n", x + 200, at + 11, ns[k] * 1e-3);
        cli_svg_put(s, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"end\">%.1f %%</text>\n", x + 260, at + 11,
                    total > 0 ? 100 * ns[k] / total : 0);
    }
    return y + rows * LEGEND_ROW;
}

static double end_ns(const stk_span *span) { return (double)span->begin_ns + span->ns; }

/* The spans [first, *end) of the next layer at or behind `first`; false when there is none. */
static bool next_layer(const stk_profile *p, uint32_t *first, uint32_t *end) {
    while (*first < p->n_span && p->span[*first].layer == p->n_layer) ++*first;
    if (*first == p->n_span) return false;
    for (*end = *first; *end < p->n_span && p->span[*end].layer == p->span[*first].layer; ++*end) {
    }
    return true;
}

static double whole_step(cli_svg *s, const stk_profile *p, double y) {
    double all = p->n_span ? end_ns(&p->span[p->n_span - 1]) : 1, scale = (RIGHT - LEFT) / all;
    cli_svg_put(s, "<text x=\"%d\" y=\"%.0f\" font-weight=\"bold\">The whole token, in microseconds</text>\n", LEFT, y);
    cli_svg_axis(s, LEFT, RIGHT, y + 24, y + 58, all * 1e-3);
    for (uint32_t i = 0; i < p->n_span; i++)
        stretch(s, LEFT + (double)p->span[i].begin_ns * scale, y + 26, p->span[i].ns * scale, 30, &p->span[i]);
    return y + 70;
}

static double layers(cli_svg *s, const stk_profile *p, double y) {
    double longest = 1, at = y + 28;
    uint32_t n_row = 0;
    for (uint32_t first = 0, end; next_layer(p, &first, &end); first = end, n_row++) {
        double ns = end_ns(&p->span[end - 1]) - (double)p->span[first].begin_ns;
        longest = ns > longest ? ns : longest;
    }
    double scale = (RIGHT - LEFT) / longest;
    cli_svg_put(s, "<text x=\"%d\" y=\"%.0f\" font-weight=\"bold\">Each layer from its begin, in microseconds</text>\n", LEFT, y);
    cli_svg_axis(s, LEFT, RIGHT, y + 24, at + n_row * ROW, longest * 1e-3);
    for (uint32_t first = 0, end; next_layer(p, &first, &end); first = end, at += ROW) {
        double begin = (double)p->span[first].begin_ns;
        cli_svg_put(s, "<text x=\"%d\" y=\"%.1f\" font-size=\"10\" text-anchor=\"end\">%s%u</text>\n", LEFT - 6, at + 9.5,
                    first == 0 || at == y + 28 ? "layer " : "", p->span[first].layer);
        for (uint32_t i = first; i < end; i++)
            stretch(s, LEFT + ((double)p->span[i].begin_ns - begin) * scale, at, p->span[i].ns * scale, ROW - 1.5, &p->span[i]);
        cli_svg_put(s, "<text x=\"%d\" y=\"%.1f\" font-size=\"10\">%.1f</text>\n", RIGHT + 6, at + 9.5,
                    (end_ns(&p->span[end - 1]) - begin) * 1e-3);
    }
    return at;
}

int bench_svg(const char *path, const char *what, const stk_profile *p) {
    cli_svg s = {.rc = CLI_OK};
    double ns = p->n_span ? end_ns(&p->span[p->n_span - 1]) : 0;
    uint32_t n_row = 0;
    for (uint32_t first = 0, end; next_layer(p, &first, &end); first = end) n_row++;
    int rows = (STK_N_STAGE + LEGEND_COLUMNS - 1) / LEGEND_COLUMNS,
        height = 70 + rows * LEGEND_ROW + 24 + 70 + 24 + 44 + (int)n_row * ROW;
    cli_svg_put(
        &s,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n",
        WIDTH, height, WIDTH, height);
    cli_svg_put(
        &s, "<defs><pattern id=\"wait\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
            "<rect width=\"4\" height=\"4\" fill=\"#fff\"/><rect width=\"1.4\" height=\"4\" fill=\"#888\"/></pattern></defs>\n");
    cli_svg_put(&s, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", WIDTH, height);
    cli_svg_put(
        &s,
        "<text x=\"%d\" y=\"28\" font-size=\"18\" font-weight=\"bold\">One token: %.2f ms</text>\n<text x=\"%d\" y=\"47\" "
        "fill=\"#444\">",
        LEFT, ns * 1e-6, LEFT);
    cli_svg_text(&s, what);
    cli_svg_put(&s, "</text>\n");
    double y = legend(&s, p, 62);
    y = whole_step(&s, p, y + 24);
    layers(&s, p, y + 24);
    cli_svg_put(&s, "</svg>\n");
    int rc = s.rc == CLI_OK ? cli_write_file(path, "drawing", s.out.data, s.out.bytes) : s.rc;
    free(s.out.data);
    return rc;
}
