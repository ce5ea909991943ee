/* svg: text that grows, and axes. */
#include "svg.h"

#include <stdarg.h>
#include <stdio.h>

enum { N_TICK = 10 };

void cli_svg_put(cli_svg *s, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (s->rc == CLI_OK && n > 0) s->rc = cli_buffer_add(&s->out, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

void cli_svg_text(cli_svg *s, const char *text) {
    for (; *text; text++) {
        if (*text == '<')
            cli_svg_put(s, "&lt;");
        else if (*text == '&')
            cli_svg_put(s, "&amp;");
        else if ((unsigned char)*text >= ' ')
            cli_svg_put(s, "%c", *text);
    }
}

/* A step of 1, 2 or 5 times a power of ten that cuts `most` into at most N_TICK. */
static double tick_of(double most) {
    double step = 1e-3;
    for (int i = 0; most / step > N_TICK; i++) step *= i % 3 == 1 ? 2.5 : 2;
    return step;
}

void cli_svg_axis(cli_svg *s, int left, int right, double y0, double y1, double most) {
    double step = tick_of(most);
    for (int i = 0; i * step <= most * 1.0001; i++) {
        double t = i * step, x = left + t / most * (right - left);
        cli_svg_put(s, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ccc\"/>\n", x, y0, x, y1);
        cli_svg_put(s, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"10\" text-anchor=\"middle\" fill=\"#444\">%.10g</text>\n", x,
                    y0 - 4, t);
    }
}
