/* report_svg: the pictures of the report. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

/* The plot's rectangle in a picture of lines; right of it stand the labels. */
enum { LEFT = 40, TOP = 10, RIGHT = 276, BOTTOM = 214, HEIGHT = 252, LABEL_GAP = 13, N_TICK = 5 };

/* ---- Text ---------------------------------------------------------------------------------------------------------------- */

void stk_page_put(stk_page *page, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (page->failed || n < 0) return;
    if (page->n + (size_t)n + 1 > page->room) {
        size_t room = 2 * page->room + (size_t)n + 4096;
        char *more = realloc(page->text, room);
        if (!more) {
            page->failed = true;
            return;
        }
        page->text = more;
        page->room = room;
    }
    va_start(ap, fmt);
    vsnprintf(page->text + page->n, page->room - page->n, fmt, ap);
    va_end(ap);
    page->n += (size_t)n;
}

void stk_page_text(stk_page *page, const char *text) {
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '<' || *p == '>' || *p == '&' || *p == '"')
            stk_page_put(page, "&#%d;", *p);
        else if (*p < 0x20 || *p == 0x7f)
            stk_page_put(page, " ");
        else
            stk_page_put(page, "%c", *p);
    }
}

/* ---- Lines --------------------------------------------------------------------------------------------------------------- */

static double x_at(const stk_chart *c, double x) {
    static const double log_from = 0.001;
    double part = c->log_x ? log(fmax(x, log_from) / log_from) / log(1 / log_from) : x;
    return LEFT + part * (RIGHT - LEFT);
}

static double y_at(double y) { return BOTTOM - y * (BOTTOM - TOP); }

static void axes(stk_page *page, const stk_chart *c) {
    static const double log_ticks[] = {0.001, 0.01, 0.1, 1};
    for (int i = 0; i < N_TICK; i++) {
        double y = (double)i / (N_TICK - 1);
        stk_page_put(page, "<path class='grid' d='M%d %.1fH%d'/><text class='tick end' x='%d' y='%.1f'>%.0f %%</text>\n", LEFT,
                     y_at(y), RIGHT, LEFT - 4, y_at(y) + 4, 100 * y);
    }
    for (int i = 0; i < (c->log_x ? 4 : N_TICK); i++) {
        double x = c->log_x ? log_ticks[i] : (double)i / (N_TICK - 1);
        stk_page_put(page, "<path class='grid' d='M%.1f %dV%d'/><text class='tick mid' x='%.1f' y='%d'>%g %%</text>\n",
                     x_at(c, x), TOP, BOTTOM, x_at(c, x), BOTTOM + 14, 100 * x);
    }
    stk_page_put(page, "<text class='name mid' x='%d' y='%d'>%s</text>\n", (LEFT + RIGHT) / 2, BOTTOM + 32, c->x_name);
    if (c->mark_x > 0)
        stk_page_put(page, "<path class='mark' d='M%.1f %dV%d'/><text class='tick %s' x='%.1f' y='%d'>%s</text>\n",
                     x_at(c, c->mark_x), TOP, BOTTOM, c->mark_x > 0.6 ? "end" : "",
                     x_at(c, c->mark_x) + (c->mark_x > 0.6 ? -4 : 4), BOTTOM - 5, c->mark_name);
}

/* A mark of the series' own shape. */
static void mark(stk_page *page, uint32_t series, double x, double y) {
    switch (series % 4) {
    case 0: stk_page_put(page, "<circle class='f%u' cx='%.1f' cy='%.1f' r='3' />", series, x, y); break;
    case 1: stk_page_put(page, "<path class='f%u' d='M%.1f %.1fl3.4 6h-6.8z'/>", series, x, y - 3.8); break;
    case 2: stk_page_put(page, "<path class='f%u' d='M%.1f %.1fh5.4v5.4h-5.4z'/>", series, x - 2.7, y - 2.7); break;
    default: stk_page_put(page, "<path class='f%u' d='M%.1f %.1fl3.8 3.8l-3.8 3.8l-3.8-3.8z'/>", series, x, y - 3.8); break;
    }
}

static void line(stk_page *page, const stk_chart *c, uint32_t i) {
    const stk_series *s = &c->series[i];
    bool begun = false, few = s->n <= 16;
    stk_page_put(page, "<path class='line %s%u' d='", s->is_bound ? "bound l" : "l", i);
    for (uint32_t k = 0; k < s->n; k++) {
        if (!(s->y[k] >= 0)) continue;
        stk_page_put(page, "%s%.1f %.1f", begun ? "L" : "M", x_at(c, s->x[k]), y_at(s->y[k]));
        begun = true;
    }
    stk_page_put(page, begun ? "'/>" : "M0 0'/>");
    for (uint32_t k = 0; few && !s->is_bound && k < s->n; k++)
        if (s->y[k] >= 0) mark(page, i, x_at(c, s->x[k]), y_at(s->y[k]));
    stk_page_put(page, "\n");
}

/* Names beside the ends of the lines, moved apart where they would meet. */
static void labels(stk_page *page, const stk_chart *c) {
    uint32_t order[STK_REPORT_SERIES];
    double at[STK_REPORT_SERIES], end[STK_REPORT_SERIES];
    uint32_t n = STK_MIN(c->n_series, (uint32_t)STK_REPORT_SERIES);
    for (uint32_t i = 0; i < n; i++) {
        const stk_series *s = &c->series[i];
        end[i] = s->n && s->y[s->n - 1] >= 0 ? y_at(s->y[s->n - 1]) : BOTTOM;
        uint32_t k = i;
        for (; k && end[order[k - 1]] > end[i]; k--) order[k] = order[k - 1];
        order[k] = i;
    }
    for (uint32_t k = 0; k < n; k++) {
        at[k] = end[order[k]];
        if (k && at[k] < at[k - 1] + LABEL_GAP) at[k] = at[k - 1] + LABEL_GAP;
    }
    double over = n ? at[n - 1] - BOTTOM : 0;
    for (uint32_t k = n; over > 0 && k-- > 0;) at[k] = fmin(at[k], BOTTOM - (double)(n - 1 - k) * LABEL_GAP);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = order[k];
        stk_page_put(page, "<path class='lead' d='M%d %.1fL%d %.1f'/>", RIGHT + 2, end[i], RIGHT + 12, at[k]);
        if (!c->series[i].is_bound) mark(page, i, RIGHT + 17, at[k]);
        stk_page_put(page, "<text class='label' x='%d' y='%.1f'>", RIGHT + 24, at[k] + 3.6);
        stk_page_text(page, c->series[i].name);
        stk_page_put(page, "</text>\n");
    }
}

void stk_report_lines(stk_page *page, const stk_chart *c) {
    stk_page_put(page, "<svg viewBox='0 0 %d %d' role='img' aria-labelledby='%s-t'><title id='%s-t'>%s</title>\n",
                 STK_REPORT_WIDTH, HEIGHT, c->id, c->id, c->title);
    axes(page, c);
    for (uint32_t i = c->n_series; i-- > 0;) line(page, c, i); /* the first on top */
    labels(page, c);
    stk_page_put(page, "</svg>\n");
}

/* ---- Heat map ------------------------------------------------------------------------------------------------------------ */

void stk_report_heat(stk_page *page, const uint64_t *values, uint32_t n_row, uint32_t n_col) {
    enum { LEVELS = 9, MAP_LEFT = 30, MAP_WIDTH = STK_REPORT_WIDTH - 34 };
    uint64_t most = 1;
    for (size_t i = 0; i < (size_t)n_row * n_col; i++) most = STK_MAX(most, values[i]);
    double w = (double)MAP_WIDTH / n_col, h = fmin(fmax(200.0 / n_row, 4), 20), height = h * n_row;
    stk_page_put(page,
                 "<svg viewBox='0 0 %d %.0f' role='img' aria-labelledby='heat-t'><title id='heat-t'>How often each expert of "
                 "each layer is "
                 "used</title>\n",
                 STK_REPORT_WIDTH, height + 58);
    for (int level = 1; level < LEVELS; level++) {
        stk_page_put(page, "<path class='heat' fill-opacity='%.3f' d='", (double)level / (LEVELS - 1));
        for (uint32_t r = 0; r < n_row; r++)
            for (uint32_t c = 0; c < n_col; c++) {
                double share = sqrt((double)values[(size_t)r * n_col + c] / (double)most);
                if ((int)ceil(share * (LEVELS - 1)) != level) continue;
                stk_page_put(page, "M%.2f %.2fh%.2fv%.2fh-%.2fz", MAP_LEFT + c * w, 4 + r * h, w, h, w);
            }
        stk_page_put(page, "'/>\n");
    }
    stk_page_put(page, "<path class='frame' d='M%d 4h%dv%.1fh-%dz'/>\n", MAP_LEFT, MAP_WIDTH, height, MAP_WIDTH);
    uint32_t step = (uint32_t)STK_MAX(ceil(12 / h), 1);
    for (uint32_t r = 0; r < n_row; r += step)
        stk_page_put(page, "<text class='tick end' x='%d' y='%.1f'>%u</text>", MAP_LEFT - 4, 4 + r * h + h / 2 + 4, r);
    for (int i = 0; i <= 4; i++)
        stk_page_put(page, "<text class='tick %s' x='%.1f' y='%.1f'>%u</text>",
                     i == 4 ? "end"
                     : i    ? "mid"
                            : "",
                     MAP_LEFT + i * MAP_WIDTH / 4.0, height + 17, i == 4 ? n_col - 1 : (uint32_t)(n_col * (uint32_t)i / 4));
    stk_page_put(page,
                 "\n<text class='name' x='%d' y='%.1f'>expert; a row for each layer</text><text class='tick end' x='%d' "
                 "y='%.1f'>never</text>",
                 MAP_LEFT, height + 40, MAP_LEFT + 210, height + 40);
    for (int level = 0; level < LEVELS; level++)
        stk_page_put(page, "<path class='heat' fill-opacity='%.3f' d='M%d %.1fh10v10h-10z'/>", (double)level / (LEVELS - 1),
                     MAP_LEFT + 216 + 10 * level, height + 31);
    stk_page_put(page, "<text class='tick' x='%d' y='%.1f'>most</text></svg>\n", MAP_LEFT + 220 + 10 * LEVELS, height + 40);
}

/* ---- Bars ---------------------------------------------------------------------------------------------------------------- */

void stk_report_stack(stk_page *page, const char *const *bars, uint32_t n_bar, const char *const *parts, uint32_t n_part,
                      const double *values) {
    enum { ROW = 50, BAR = 20, WIDTH = STK_REPORT_WIDTH - 70 };
    double most = 1e-9;
    for (uint32_t b = 0; b < n_bar; b++) {
        double sum = 0;
        for (uint32_t p = 0; p < n_part; p++) sum += values[b * n_part + p];
        most = fmax(most, sum);
    }
    stk_page_put(page,
                 "<svg viewBox='0 0 %d %u' role='img' aria-labelledby='time-t'><title id='time-t'>Predicted time of a token by "
                 "cause</title>\n",
                 STK_REPORT_WIDTH, n_bar * ROW + 24 + 18 * ((n_part + 1) / 2));
    for (uint32_t b = 0; b < n_bar; b++) {
        double x = 2, y = b * ROW + 20, sum = 0;
        stk_page_put(page, "<text class='label' x='2' y='%.1f'>", y - 6);
        stk_page_text(page, bars[b]);
        stk_page_put(page, "</text>\n");
        for (uint32_t p = 0; p < n_part; p++) {
            double v = values[b * n_part + p], w = WIDTH * v / most;
            stk_page_put(page, "<rect class='f%u b%u' x='%.1f' y='%.1f' width='%.1f' height='%d' />", p, p, x, y, w, BAR);
            if (w > 30)
                stk_page_put(page, "<text class='in i%u mid' x='%.1f' y='%.1f'>%.*f</text>", p, x + w / 2, y + 14, v < 10 ? 2 : 1,
                             v);
            x += w;
            sum += v;
        }
        stk_page_put(page, "<text class='label' x='%.1f' y='%.1f'>%.*f ms</text>\n", x + 5, y + 14.5, sum < 10 ? 2 : 1, sum);
    }
    for (uint32_t p = 0; p < n_part; p++) {
        double x = 2 + (p % 2) * 190, y = n_bar * ROW + 12 + 18.0 * floor(p / 2.0);
        stk_page_put(
            page,
            "<rect class='f%u b%u' x='%.0f' y='%.1f' width='14' height='12' /><text class='label' x='%.0f' y='%.1f'>%s</text>\n",
            p, p, x, y, x + 20, y + 10, parts[p]);
    }
    stk_page_put(page, "</svg>\n");
}

void stk_report_dots(stk_page *page, const double *values, uint32_t n, double whole) {
    enum { X0 = 20, X1 = STK_REPORT_WIDTH - 20, ROW = 17 };
    double low = fmin(0, whole), high = fmax(0.01, whole);
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(values[i])) continue;
        low = fmin(low, values[i]);
        high = fmax(high, values[i]);
    }
    double scale = (X1 - X0 - 95) / (high - low), zero = X0 + 30 - low * scale, bottom = n * ROW + 24;
    stk_page_put(
        page, "<svg viewBox='0 0 %d %.0f' role='img' aria-labelledby='parts-t'><title id='parts-t'>Margin of each part</title>\n",
        STK_REPORT_WIDTH, bottom + 22);
    stk_page_put(page, "<path class='grid' d='M%.1f 8V%.0f'/><text class='tick mid' x='%.1f' y='%.0f'>the default</text>\n", zero,
                 bottom, zero, bottom + 14);
    stk_page_put(page, "<path class='mark' d='M%.1f 8V%.0f'/><text class='label %s' x='%.1f' y='%.0f'>all %+.1f %%</text>\n",
                 zero + whole * scale, bottom, fabs(whole * scale) < 90 ? "" : "mid", zero + whole * scale, bottom + 14,
                 100 * whole);
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(values[i])) continue;
        double x = zero + values[i] * scale, y = 18 + i * ROW;
        stk_page_put(page, "<path class='lead' d='M%.1f %.1fH%.1f'/>", zero, y, x);
        mark(page, 0, x, y);
        stk_page_put(page, "<text class='tick%s' x='%.1f' y='%.1f'>%+.1f %%</text>\n", values[i] < 0 ? " end" : "",
                     x + (values[i] < 0 ? -7 : 7), y + 4, 100 * values[i]);
    }
    stk_page_put(page, "</svg>\n");
}

void stk_report_layers(stk_page *page, const uint32_t *n_slot, uint32_t n_layer, uint32_t n_expert) {
    enum { X0 = 30, WIDTH = STK_REPORT_WIDTH - 40, HIGH = 120 };
    double w = (double)WIDTH / n_layer;
    stk_page_put(
        page, "<svg viewBox='0 0 %d %d' role='img' aria-labelledby='slots-t'><title id='slots-t'>Slots of each layer</title>\n",
        STK_REPORT_WIDTH, HIGH + 40);
    for (int i = 0; i <= 2; i++)
        stk_page_put(page, "<path class='grid' d='M%d %dH%d'/><text class='tick end' x='%d' y='%d'>%u</text>\n", X0,
                     8 + HIGH - i * HIGH / 2, X0 + WIDTH, X0 - 4, 12 + HIGH - i * HIGH / 2, n_expert * (uint32_t)i / 2);
    for (uint32_t l = 0; l < n_layer; l++) {
        double h = (double)HIGH * n_slot[l] / n_expert;
        stk_page_put(page, "<rect class='f0' x='%.2f' y='%.1f' width='%.2f' height='%.1f' />", X0 + l * w + w * 0.1, 8 + HIGH - h,
                     w * 0.8, h);
        if (w >= 20)
            stk_page_put(page, "<text class='tick mid' x='%.1f' y='%.1f'>%u</text>", X0 + (l + 0.5) * w, 4 + HIGH - h, n_slot[l]);
    }
    for (uint32_t l = 0; l < n_layer; l += STK_MAX(n_layer / 8, 1u))
        stk_page_put(page, "<text class='tick mid' x='%.1f' y='%d'>%u</text>", X0 + (l + 0.5) * w, HIGH + 22, l);
    stk_page_put(page, "<text class='name mid' x='%d' y='%d'>layer</text></svg>\n", X0 + WIDTH / 2, HIGH + 36);
}
