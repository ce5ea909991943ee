/* help: made from the table of verbs and the table of options. */
#include <string.h>

#include "common.h"

enum { COLUMNS = 110, LEFT = 36, INDENT = 2 + LEFT + 1 };

/* Word by word from INDENT on; what goes beyond COLUMNS stands in further lines below the first word. */
static void print_words(FILE *out, const char *text) {
    size_t column = INDENT;
    for (const char *word = text; *word;) {
        size_t n = strcspn(word, " ");
        bool breaks = word != text && column + 1 + n > COLUMNS;
        if (breaks)
            fprintf(out, "\n%*s", INDENT, "");
        else if (word != text)
            fputc(' ', out);
        column = (breaks ? INDENT : column + (word != text)) + n;
        fwrite(word, 1, n, out);
        word += n + (word[n] == ' ');
    }
    fputc('\n', out);
}

static void print_option(FILE *out, const cli_option *o) {
    char left[64], text[1024];
    size_t n = 0;
    if (o->letter) n += (size_t)snprintf(left + n, sizeof left - n, "-%c, ", o->letter);
    if (o->alias) n += (size_t)snprintf(left + n, sizeof left - n, "%s%s, ", strlen(o->alias) == 3 ? "-" : "--", o->alias);
    snprintf(left + n, sizeof left - n, "--%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
    fprintf(out, "  %-*s ", LEFT, left);
    snprintf(text, sizeof text, "%s%s%s%s", o->help, o->initial ? " [" : "", o->initial ? o->initial : "", o->initial ? "]" : "");
    print_words(out, text);
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
    fprintf(out, "\n`stoker VERB --help` lists the options of a verb, `stoker help policies` and `stoker help predictors` what "
                 "the cache may go by. Example:\n\n"
                 "  stoker run -m model.gguf -p \"Once upon a time\" -n 100 --ram 8G\n\n"
                 "Text goes to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 128 + n ended by "
                 "signal n.\n");
}

/* ---- Policies and predictors --------------------------------------------------------------------------------------------- */

static void print_params(FILE *out, uint32_t kind, uint32_t i) {
    stk_param_info p = {.struct_bytes = sizeof p};
    for (uint32_t j = 0; stk_get_method_param(kind, i, j, &p) == 1; j++)
        fprintf(out, "                   %-12s %s, %g to %g [%g]\n", p.name, p.what, p.least, p.most, p.initial);
}

static void help_methods(FILE *out, uint32_t kind) {
    stk_method_info m = {.struct_bytes = sizeof m};
    if (kind == STK_METHOD_POLICY)
        fprintf(out,
                "An eviction policy says which expert leaves the cache: --policy NAME or --policy NAME:PARAMETER=VALUE,...\n\n");
    else
        fprintf(out, "A predictor says what to read ahead of its use: --predictor NAME, NAME:PARAMETER=VALUE,... or none\n\n");
    for (uint32_t i = 0; stk_get_method(kind, i, &m) == 1; i++) {
        fprintf(out, "  %-14s %s%s\n", m.name, m.idea, m.replay_only ? " (for `stoker replay`)" : "");
        print_params(out, kind, i);
    }
    fprintf(out, "\nParameters have their range, and their default in brackets. Example: %s\n",
            kind == STK_METHOD_POLICY ? "--policy lrfu:decay=0.9" : "--predictor history:keep=0.9");
}

int cli_help(const cli_settings *settings) {
    if (settings->operand && !strcmp(settings->operand, "policies")) {
        help_methods(stdout, STK_METHOD_POLICY);
        return cli_write("", 0);
    }
    if (settings->operand && !strcmp(settings->operand, "predictors")) {
        help_methods(stdout, STK_METHOD_PREDICTOR);
        return cli_write("", 0);
    }
    const cli_verb *verb = settings->operand ? cli_verb_find(settings->operand) : NULL;
    if (settings->operand && !verb) return cli_fail(CLI_USAGE, "help", "no verb is called '%s' (stoker help)", settings->operand);
    if (verb)
        cli_help_verb(stdout, verb);
    else
        help_all(stdout);
    return cli_write("", 0);
}
