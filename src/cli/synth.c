/* synth: writes a model of random weights in the shape of a real one. */
#include "common.h"

typedef struct written {
    uint64_t bytes;
    double started_at;
} written;

static int progress(void *user, const char *what, uint64_t done, uint64_t total) {
    ((written *)user)->bytes = total;
    return cli_progress(NULL, what, done, total);
}

int cli_synth(const cli_settings *s) {
    stk_synth_options o;
    written w = {.started_at = cli_now()};
    char size[32], rate[32];
    if (!s->output) return cli_fail(CLI_USAGE, "synth", "where to? (-o FILE)");
    if (s->route_from && s->n_layer)
        return cli_fail(CLI_USAGE, "synth", "--layers and --route-from exclude one another: the layers are the trace's");
    stk_synth_options_default(&o, sizeof o);
    o.shape = s->operand;
    o.type = s->operands[1];
    o.n_layer = (uint32_t)s->n_layer;
    o.n_vocab = (uint32_t)s->n_vocab;
    o.seed = (uint64_t)s->seed;
    o.route_from = s->route_from;
    o.progress = progress;
    o.progress_user = &w;
    int rc = stk_synth(s->output, &o);
    cli_progress_clear();
    if (rc == STK_EINVAL) return cli_fail(CLI_USAGE, "synth", "%s", stk_error_detail());
    if (rc < 0) return cli_fail_stk(rc, "synth");
    double seconds = cli_now() - w.started_at;
    cli_note("%s: %s in %.1f s, %s/s", s->output, cli_bytes_text(w.bytes, size), seconds,
             cli_bytes_text((uint64_t)((double)w.bytes / seconds), rate));
    return CLI_OK;
}
