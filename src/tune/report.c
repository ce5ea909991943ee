/* report: the page around the pictures. Everything in it is XML, so that any parser reads it. */
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REUSE_POINTS = 64, TABLE_ROWS = 16, CONFIG_BYTES = 2 * STK_SPEC_BYTES + 128 };

/* Okabe and Ito: blue, vermillion, green, orange, sky blue, purple, black, yellow. */
static const char style[] =
    ":root{--ink:#1a1a1a;--soft:#5c5c5c;--paper:#fff;--card:#f6f6f4;--grid:#d9d9d4;--heat:#08306b;"
    "--c0:#0072b2;--c1:#d55e00;--c2:#007a5a;--c3:#b87900;--c4:#3f9bd1;--c5:#a4497f;--c6:#333;--c7:#8a8200}\n"
    "@media screen and "
    "(prefers-color-scheme:dark){:root{--ink:#ececec;--soft:#a9a9a9;--paper:#161616;--card:#212121;--grid:#3b3b3b;"
    "--heat:#9ecae1;--c0:#56b4e9;--c1:#f28c4b;--c2:#2fc498;--c3:#f0b840;--c4:#9bd3f5;--c5:#dd93bd;--c6:#ddd;--c7:#f0e442}}\n"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:1240px;padding:16px;background:var(--paper);color:var(--ink);"
    "font:16px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:1.5rem;line-height:1.25;margin:.5em 0 .2em}h2{font-size:1.1rem;margin:0 0 .4em}p{margin:.4em 0;max-width:46em}"
    ".soft,figcaption{color:var(--soft);font-size:.9rem}code{overflow-wrap:anywhere}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:1em 0}"
    ".tile{background:var(--card);border-radius:8px;padding:10px 14px}.tile b{display:block;font-size:1.45rem;line-height:1.3}\n"
    ".grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}"
    "figure{background:var(--card);border-radius:8px;margin:0;padding:14px;break-inside:avoid}"
    "svg{display:block;width:100%;height:auto}\n"
    "text{font:11px system-ui,sans-serif;fill:var(--ink)}text.tick{fill:var(--soft);font-size:10.5px}.end{text-anchor:end}"
    ".mid{text-anchor:middle}text.in{fill:#fff;font-weight:600}path{fill:none}\n"
    ".grid{stroke:var(--grid)}.frame{stroke:var(--soft);stroke-width:.5}.lead{stroke:var(--soft);stroke-width:.7}"
    ".mark{stroke:var(--ink);stroke-dasharray:3 2;stroke-width:1}.line{stroke-width:2;stroke-linejoin:round}"
    ".line.bound{stroke:var(--soft)!important;stroke-width:1.4;stroke-dasharray:1 2!important}.heat{fill:var(--heat)}\n"
    ".l0{stroke:var(--c0)}.l1{stroke:var(--c1);stroke-dasharray:7 2}.l2{stroke:var(--c2);stroke-dasharray:4 2}"
    ".l3{stroke:var(--c3);stroke-dasharray:8 2 2 2}.l4{stroke:var(--c4);stroke-dasharray:2 "
    "2}.l5{stroke:var(--c5);stroke-dasharray:10 3}"
    ".l6{stroke:var(--c6)}.l7{stroke:var(--c7)}\n"
    ".f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}.f4{fill:var(--c4)}.f5{fill:var(--c5)}"
    ".f6{fill:var(--c6)}.f7{fill:var(--c7)}rect{stroke:var(--card);stroke-width:1}\n"
    ".scroll{overflow-x:auto;margin-top:16px}caption{text-align:left;padding-bottom:6px}td:first-child{min-width:13em}table{"
    "border-collapse:collapse;font-size:.9rem;min-width:100%}"
    "th,td{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid var(--grid);vertical-align:top}"
    ".n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}tr.best td{font-weight:600}\n"
    "@media screen and (prefers-color-scheme:dark){text.in{fill:#111}}\n"
    "@page{margin:14mm}@media print{body{max-width:none;padding:0;font-size:11pt}.tile,figure{background:none;border:1px solid "
    "#ccc}"
    ".grid2{grid-template-columns:1fr 1fr;gap:8px}.tiles{grid-template-columns:repeat(4,1fr)}"
    ".scroll{overflow:visible}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}\n";

static void config_text(const stk_tune_config *c, bool timed, char out[CONFIG_BYTES]) {
    int n = snprintf(out, CONFIG_BYTES, "%s, %s", c->policy,
                     c->scope == STK_SCOPE_GLOBAL ? "one cache for all layers"
                     : c->fitted                  ? "fitted slots for each layer"
                                                  : "equal slots for each layer");
    if (!timed || n < 0 || n >= CONFIG_BYTES) return;
    if (strcmp(c->predictor, "none") == 0)
        snprintf(out + n, (size_t)(CONFIG_BYTES - n), ", nothing read ahead");
    else
        snprintf(out + n, (size_t)(CONFIG_BYTES - n), ", %s %u layer%s ahead", c->predictor, c->depth, c->depth == 1 ? "" : "s");
}

static stk_tune_sum sum_of(const stk_tune_report *r, uint32_t i) {
    return stk_tune_total(r->tune, (const stk_tune_sum(*)[2])r->list->items[i].parts, UINT32_MAX);
}

static double rate(const stk_tune_sum *s) {
    return s->v[STK_TUNE_LOOKUPS] ? (double)s->v[STK_TUNE_HITS] / (double)s->v[STK_TUNE_LOOKUPS] : 0;
}

static double speed(const stk_tune_sum *s) {
    return s->v[STK_TUNE_STEP_NS] ? (double)s->v[STK_TUNE_TOKENS] * 1e9 / (double)s->v[STK_TUNE_STEP_NS] : 0;
}

/* ---- Head ---------------------------------------------------------------------------------------------------------------- */

static void head(stk_page *page, const stk_tune_report *r) {
    const stk_tune_traces *t = &r->tune->traces;
    char config[CONFIG_BYTES];
    stk_page_put(
        page,
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'/>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'/>"
        "<meta name='color-scheme' content='light dark'/><title>Stoker: a tuned expert cache</title>\n<style>%s</style></head>"
        "<body>\n",
        style);
    stk_page_put(page, "<h1>A tuned expert cache%s", t->model[0] ? " for " : "");
    stk_page_text(page, strrchr(t->model, '/') ? strrchr(t->model, '/') + 1 : t->model); /* some tools write a path */
    stk_page_put(
        page,
        "</h1>\n<p class='soft'>%u layers of %u experts, %u a token; %.1f MiB of expert slots, %.1f %% of all. Traces: %llu "
        "tokens in %llu sequence%s. %u configurations, %u replays.</p>\n",
        t->n_layer, t->n_expert, t->k, (double)r->result->ram_bytes / (1 << 20), 100 * r->result->fraction,
        (unsigned long long)t->n_token, (unsigned long long)t->n_sequence, t->n_sequence == 1 ? "" : "s", r->result->n_config,
        r->result->n_replay);
    config_text(&r->list->items[r->best].config, r->tune->timed, config);
    stk_page_put(page, "<p>Best: <b>");
    stk_page_text(page, config);
    config_text(&r->list->items[0].config, r->tune->timed, config);
    stk_page_put(page, "</b>");
    if (r->result->n_tied > 1)
        stk_page_put(page,
                     ", the simplest of %u configurations that are as good as far as these traces can tell (the best of them by "
                     "%.1f %%)",
                     r->result->n_tied, 100 * r->result->tie_margin);
    stk_page_put(page, ". The default beside it: ");
    stk_page_text(page, config);
    stk_page_put(page, ".</p>\n");
}

static void tiles(stk_page *page, const stk_tune_report *r) {
    const stk_tune_result *x = r->result;
    stk_page_put(page, "<div class='tiles'>\n");
    stk_page_put(page, "<div class='tile'><b>%+.1f %%</b>%s; parts from %+.1f to %+.1f %%</div>\n", 100 * x->margin,
                 x->timed ? "speed beside the default" : "fewer misses than the default", 100 * x->margin_low,
                 100 * x->margin_high);
    if (x->timed)
        stk_page_put(page, "<div class='tile'><b>%.2f tok/s</b>predicted; the default %.2f</div>\n", x->tok_s, x->default_tok_s);
    stk_page_put(page, "<div class='tile'><b>%.1f %%</b>of lookups hit; the default %.1f %%</div>\n", 100 * x->hit_rate,
                 100 * x->default_hit_rate);
    stk_page_put(
        page,
        "<div class='tile'><b>%.1f %%</b>without reading ahead; the default %.1f %%, belady-bypass, which knows what comes, "
        "%.1f %%</div>\n</div>\n",
        100 * x->cache_hit_rate, 100 * x->default_cache_hit_rate, 100 * x->bound_hit_rate);
}

/* ---- Figures ------------------------------------------------------------------------------------------------------------- */

static void curves(stk_page *page, const stk_tune_report *r) {
    const stk_tune_curves *c = r->curves;
    stk_series series[STK_TUNE_CURVES];
    for (uint32_t i = 0; i < c->n_curve; i++)
        series[i] = (stk_series){c->names[i], c->fractions, c->rates[i], c->n_budget, i + 1 == c->n_curve};
    stk_page_put(page, "<figure><h2>Hit rate by budget</h2>\n");
    stk_report_lines(page, &(stk_chart){.id = "rates",
                                        .title = "Hit rate by budget and policy, with the bound",
                                        .x_name = "part of all experts that fits",
                                        .series = series,
                                        .n_series = c->n_curve,
                                        .mark_x = r->result->fraction,
                                        .mark_name = "budget"});
    stk_page_put(
        page, "<figcaption>Without reading ahead. The dotted line, belady-bypass, knows what comes: %s</figcaption></figure>\n",
        r->tune->traces.one_size ? "no cache does better." : "with experts of several sizes a good heuristic for the best.");
}

/* Time of a token by cause in ms. */
static void causes_of(const stk_tune_sum *s, double out[5]) {
    const enum stk_tune_figure figures[4] = {STK_TUNE_DENSE_NS, STK_TUNE_EXPERT_NS, STK_TUNE_ARRIVE_NS, STK_TUNE_WAIT_NS};
    double n = 1e6 * (double)STK_MAX(s->v[STK_TUNE_TOKENS], 1u), rest = (double)s->v[STK_TUNE_STEP_NS] / n;
    for (int i = 0; i < 4; i++) {
        out[i] = (double)s->v[figures[i]] / n;
        rest -= out[i];
    }
    out[4] = fmax(rest, 0);
}

static void causes(stk_page *page, const stk_tune_report *r) {
    static const char *const parts[] = {"dense part", "computing experts", "packing what was read", "waiting for reads",
                                        "the rest"};
    enum { PARTS = 5, BARS = 3 };
    char names[BARS][CONFIG_BYTES];
    const char *bars[BARS];
    double values[BARS * PARTS];
    uint32_t which[BARS], n = 0;
    which[n++] = 0;
    for (uint32_t i = 1; i < r->list->n && n == 1; i++) /* the default's cache without reading ahead */
        if (strcmp(r->list->items[i].config.policy, "lru") == 0 && r->list->items[i].config.scope == STK_SCOPE_GLOBAL &&
            strcmp(r->list->items[i].config.predictor, "none") == 0)
            which[n++] = i;
    if (r->best && r->best != which[n - 1]) which[n++] = r->best;
    for (uint32_t b = 0; b < n; b++) {
        stk_tune_sum s = sum_of(r, which[b]);
        const stk_tune_config *c = &r->list->items[which[b]].config;
        snprintf(names[b], sizeof names[b], "%s%s%s, %s",
                 which[b] == 0         ? "default: "
                 : which[b] == r->best ? "best: "
                                       : "",
                 c->policy,
                 c->scope == STK_SCOPE_GLOBAL ? ""
                 : c->fitted                  ? ", fitted layers"
                                              : ", by layer",
                 strcmp(c->predictor, "none") == 0 ? "nothing read ahead" : c->predictor);
        bars[b] = names[b];
        causes_of(&s, values + b * PARTS);
    }
    stk_page_put(page, "<figure><h2>Predicted time of a token, in ms</h2>\n");
    stk_report_stack(page, bars, n, parts, PARTS, values);
    stk_page_put(page, "<figcaption>On the virtual clock, by what the step waited for.</figcaption></figure>\n");
}

static void margins(stk_page *page, const stk_tune_report *r) {
    stk_page_put(page, "<figure><h2>Margin over the default, part by part</h2>\n");
    stk_report_dots(page, r->margins, r->tune->traces.n_part, r->result->margin);
    stk_page_put(
        page,
        "<figcaption>The traces are cut into %u parts (%s). For each, the configuration that the others chose, so that no part "
        "judges its own choice.</figcaption></figure>\n",
        r->result->n_fold, r->tune->traces.n_sequence >= 4 ? "whole sequences" : "stretches, as there are few sequences");
}

static void reuse(stk_page *page, const stk_tune_report *r) {
    const stk_tune_traces *t = &r->tune->traces;
    double x[REUSE_POINTS], y[REUSE_POINTS], n_key = (double)t->n_layer * t->n_expert;
    uint64_t sum = 0;
    size_t key = 0;
    for (uint32_t i = 0; i < REUSE_POINTS; i++) {
        x[i] = pow(n_key, (double)i / (REUSE_POINTS - 1)) / n_key;
        for (; key < n_key && (double)(key + 1) <= x[i] * n_key * (1 + 1e-9); key++) sum += t->far[key];
        y[i] = t->n_lookup ? (double)sum / (double)t->n_lookup : 0;
    }
    const stk_series series = {"all layers", x, y, REUSE_POINTS, false};
    stk_page_put(page, "<figure><h2>How soon experts are used again</h2>\n");
    stk_report_lines(page, &(stk_chart){.id = "reuse",
                                        .title = "Share of lookups by reuse distance",
                                        .x_name = "other experts used in between, of all",
                                        .series = &series,
                                        .n_series = 1,
                                        .log_x = true,
                                        .mark_x = r->result->fraction,
                                        .mark_name = "budget"});
    stk_page_put(
        page, "<figcaption>Share of lookups whose expert was used before, at most that many experts ago: what lru hits with so "
              "many slots.</figcaption></figure>\n");
}

static void heat(stk_page *page, const stk_tune_report *r) {
    const stk_tune_traces *t = &r->tune->traces;
    stk_page_put(page, "<figure><h2>Use of experts by layer</h2>\n");
    stk_report_heat(page, t->uses, t->n_layer, t->n_expert);
    stk_page_put(page, "<figcaption>The darker, the more often; the scale follows the square root.</figcaption></figure>\n");
}

static void layers(stk_page *page, const stk_tune_report *r) {
    if (!r->layer_slots) return;
    stk_page_put(page, "<figure><h2>Slots of each layer</h2>\n");
    stk_report_layers(page, r->layer_slots, r->tune->traces.n_layer, r->tune->traces.n_expert);
    stk_page_put(page, "<figcaption>Given out by marginal gain.</figcaption></figure>\n");
}

/* ---- The table ----------------------------------------------------------------------------------------------------------- */

static void row(stk_page *page, const stk_tune_report *r, uint32_t i) {
    char config[CONFIG_BYTES];
    stk_tune_sum s = sum_of(r, i), plain = sum_of(r, 0);
    config_text(&r->list->items[i].config, r->tune->timed, config);
    stk_page_put(page, "<tr%s><td>", i == r->best ? " class='best'" : "");
    stk_page_text(page, config);
    stk_page_put(page, "%s</td><td class='n'>%.1f %%</td><td class='n'>%.1f</td>", i == 0 ? " (the default)" : "", 100 * rate(&s),
                 (double)s.v[STK_TUNE_BYTES] / (1 << 20) / (double)STK_MAX(s.v[STK_TUNE_TOKENS], 1u));
    if (r->tune->timed)
        stk_page_put(page, "<td class='n'>%.2f</td><td class='n'>%+.1f %%</td>", speed(&s),
                     100 * (speed(&s) / speed(&plain) - 1));
    stk_page_put(page, "</tr>\n");
}

static void table(stk_page *page, const stk_tune_report *r) {
    bool shown[512] = {false};
    stk_page_put(page,
                 "<div class='scroll'><table><caption class='soft'>The best configurations, over all parts</caption><tr><th>"
                 "configuration</th><th class='n'>hits</th><th class='n'>MiB read a token</th>%s</tr>\n",
                 r->tune->timed ? "<th class='n'>tok/s</th><th class='n'>beside default</th>" : "");
    for (uint32_t n = 0; n < STK_MIN(r->list->n, (uint32_t)TABLE_ROWS); n++) {
        uint32_t best = UINT32_MAX;
        double least = INFINITY;
        for (uint32_t i = 0; i < STK_MIN(r->list->n, (uint32_t)STK_ARRAY_LEN(shown)); i++) {
            double cost =
                shown[i] ? INFINITY : stk_tune_cost(r->tune, (const stk_tune_sum(*)[2])r->list->items[i].parts, UINT32_MAX);
            if (cost >= least) continue;
            least = cost;
            best = i;
        }
        if (best == UINT32_MAX) break;
        shown[best] = true;
        row(page, r, best);
    }
    if (!shown[0]) row(page, r, 0);
    stk_page_put(page, "</table></div>\n");
}

static void foot(stk_page *page, const stk_tune_report *r) {
    stk_page_put(page, "<p class='soft'>Figures are of %s. ",
                 r->tune->phase == STK_DECODE ? "decoded tokens" : "prompts, as nothing is decoded");
    if (!r->tune->timed)
        stk_page_put(page, "No drive was given, so that no times are predicted, and what is read ahead was not looked at. ");
    else if (!r->tune->traces.n_ahead)
        stk_page_put(
            page,
            "The traces do not say what the next layers' routers expected, so that the default is shown without reading ahead. ");
    stk_page_put(page, "Drive: ");
    stk_page_text(page, r->tune->o.io ? r->tune->o.io : r->tune->timed ? "as in the cost file" : "none");
    stk_page_put(page, ". Costs: ");
    stk_page_text(page, r->tune->o.cost ? r->tune->o.cost : "the traces' own");
    stk_page_put(page, ". Traces:");
    for (uint32_t i = 0; i < r->tune->traces.n_path; i++) {
        stk_page_put(page, " <code>");
        stk_page_text(page, r->tune->traces.paths[i]);
        stk_page_put(page, "</code>");
    }
    stk_page_put(page, ". Made by stoker %s.</p>\n</body></html>\n", stk_version());
}

int stk_tune_report_save(const char *path, const stk_tune_report *r) {
    stk_page page = {0};
    head(&page, r);
    tiles(&page, r);
    stk_page_put(&page, "<div class='grid2'>\n");
    curves(&page, r);
    if (r->tune->timed) causes(&page, r);
    margins(&page, r);
    reuse(&page, r);
    heat(&page, r);
    layers(&page, r);
    stk_page_put(&page, "</div>\n");
    table(&page, r);
    foot(&page, r);
    int rc = page.failed ? stk_fail(STK_ENOMEM, "report %s: out of memory", path)
                         : stk_text_file_save(path, "report", page.text, page.n);
    free(page.text);
    return rc;
}
