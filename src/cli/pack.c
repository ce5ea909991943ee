/* pack: writes a packed model of a plain one. */
#include "session.h"

typedef struct written {
    uint64_t bytes;
    double started_at;
} written;

static int progress(void *user, const char *what, uint64_t done, uint64_t total) {
    ((written *)user)->bytes = total;
    return cli_progress(NULL, what, done, total);
}

int cli_pack(const cli_settings *s) {
    cli_session session = {0};
    stk_pack_options o;
    written w = {.started_at = cli_now()};
    char size[32], rate[32];
    if (!s->model) return cli_fail(CLI_USAGE, "pack", "which model? (-m FILE)");
    if (!s->output) return cli_fail(CLI_USAGE, "pack", "where to? (-o FILE)");
    int rc = cli_session_open_model(&session, s->model);
    if (rc != CLI_OK) return rc;
    stk_pack_options_default(&o, sizeof o);
    o.io = s->io;
    o.progress = progress;
    o.progress_user = &w;
    int packed = stk_pack(session.model, s->output, &o);
    cli_progress_clear();
    if (packed < 0) {
        rc = cli_fail_stk(packed, "pack");
    } else {
        double seconds = cli_now() - w.started_at;
        cli_note("%s: %s in %.1f s, %s/s", s->output, cli_bytes_text(w.bytes, size), seconds,
                 cli_bytes_text((uint64_t)((double)w.bytes / seconds), rate));
    }
    return cli_session_close(&session, rc);
}
