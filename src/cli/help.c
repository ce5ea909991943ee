/* help: made from the table of verbs and the table of options. */
#include <string.h>

#include "common.h"

static void print_option(FILE *out, const cli_option *o) {
    char left[64];
    size_t n = 0;
    if (o->letter) n += (size_t)snprintf(left + n, sizeof left - n, "-%c, ", o->letter);
    if (o->alias) n += (size_t)snprintf(left + n, sizeof left - n, "%s%s, ", strlen(o->alias) == 3 ? "-" : "--", o->alias);
    snprintf(left + n, sizeof left - n, "--%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
    fprintf(out, "  %-36s %s", left, o->help);
    if (o->initial) fprintf(out, " [%s]", o->initial);
    fputc('\n', out);
}

void cli_help_verb(FILE *out, const cli_verb *verb) {
    fprintf(out, "stoker %s: %s.\n\nusage: stoker %s%s%s [options]\n", verb->name, verb->summary, verb->name,
            verb->operand ? " " : "", verb->operand ? verb->operand : "");
    if (verb->text) fprintf(out, "\n%s\n", verb->text);
    fprintf(out, "\noptions, with their defaults in brackets:\n");
    for (size_t i = 0; i < cli_n_option; i++)
        if (cli_options[i].verbs & verb->bit) print_option(out, &cli_options[i]);
}

static void help_all(FILE *out) {
    fprintf(out,
            "stoker %s runs Mixture-of-Experts language models that are larger than memory.\n\nusage: stoker VERB [options]\n\n",
            stk_version());
    for (size_t i = 0; i < cli_n_verb; i++) fprintf(out, "  %-12s %s\n", cli_verbs[i].name, cli_verbs[i].summary);
    fprintf(out, "\n`stoker VERB --help` lists the options of a verb. Example:\n\n"
                 "  stoker run -m model.gguf -p \"Once upon a time\" -n 100 --ram 8G\n\n"
                 "Text goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 128 + n ended by "
                 "signal n.\n");
}

int cli_help(const cli_settings *settings) {
    const cli_verb *verb = settings->operand ? cli_verb_find(settings->operand) : NULL;
    if (settings->operand && !verb) return cli_fail(CLI_USAGE, "help", "no verb is called '%s' (stoker help)", settings->operand);
    if (verb)
        cli_help_verb(stdout, verb);
    else
        help_all(stdout);
    return cli_write("", 0);
}
