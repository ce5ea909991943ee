/* options: the parser over the table of flags.c, on top of getopt_long_only (which knows "-ctk" as llama.cpp writes it). */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

enum { MAX_ROWS = 96, LONG_BASE = 256, MAX_NAME = 63 };

const cli_verb *cli_verb_find(const char *name) {
    for (size_t i = 0; i < cli_n_verb; i++)
        if (!strcmp(cli_verbs[i].name, name)) return &cli_verbs[i];
    return NULL;
}

/* Edits between a and b: a letter added, lost, changed, or two neighbours swapped. Texts longer than MAX_NAME are never near. */
static size_t edit_distance(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b), rows[3][MAX_NAME + 1];
    if (n > MAX_NAME || m > MAX_NAME) return SIZE_MAX;
    for (size_t i = 0; i <= n; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = i ? above[j - 1] + (a[i - 1] != b[j - 1]) : j;
            if (i && above[j] + 1 < best) best = above[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && above2[j - 2] + 1 < best)
                best = above2[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[n % 3][m];
}

const char *cli_nearest(const char *text, const char *const *names, size_t n) {
    const char *best = NULL;
    size_t least = strlen(text) < 6 ? 2 : 3; /* one slip in a short word, two in a long one */
    for (size_t i = 0; i < n; i++) {
        size_t d = names[i] ? edit_distance(text, names[i]) : SIZE_MAX;
        if (d < least) {
            least = d;
            best = names[i];
        }
    }
    return best;
}

bool cli_size_parse(const char *text, uint64_t *bytes) {
    static const char units[] = "KMGT";
    char *end;
    if (text[0] < '0' || text[0] > '9') return false;
    if (strspn(text, "0123456789") == strlen(text)) { /* whole numbers are exact up to 2^64 */
        errno = 0;
        *bytes = strtoull(text, NULL, 10);
        return errno == 0;
    }
    if (strcspn(text, "xXpPeE") != strlen(text)) return false; /* no hexadecimal or scientific floats */
    double v = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (*end && *end != 'b' && *end != 'B') {
        if (!unit) return false;
        v *= (double)(UINT64_C(1) << (10 * (unit - units + 1)));
        end++;
        if (*end == 'i') end++;
    }
    if (*end == 'b' || *end == 'B') end++;
    if (*end || !(v < 0x1p64)) return false;
    *bytes = (uint64_t)v;
    return true;
}

static bool int_parse(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return end != text && !*end && !errno;
}

static bool real_parse(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && isfinite(*out);
}

/* Says how a value of this option looks: "a whole number from 1 to 1024". */
static int value_fail(const char *verb, const cli_option *o, const char *text) {
    static const char *const nouns[] = {"", "a text", "a whole number", "a number", "a size", "a list of numbers"};
    if (o->kind == CLI_TEXT) return cli_fail(CLI_USAGE, verb, "--%s takes %s, not '%s'", o->name, o->value, text);
    if (o->kind == CLI_SIZE) return cli_fail(CLI_USAGE, verb, "--%s takes a size such as 512M or 8G, not '%s'", o->name, text);
    if (o->max == INT32_MAX) /* as good as no limit */
        return cli_fail(CLI_USAGE, verb, "--%s takes %s from %.16g, not '%s'", o->name, nouns[o->kind], o->min, text);
    return cli_fail(CLI_USAGE, verb, "--%s takes %s from %.16g to %.16g, not '%s'", o->name, nouns[o->kind], o->min, o->max,
                    text);
}

/* Whether `text` is one of the words of "a|b|c"; a value name without '|' is no choice and takes every text. */
static bool choice_has(const char *choices, const char *text) {
    size_t n = strlen(text);
    if (!strchr(choices, '|')) return true;
    for (const char *p = choices; p; p = strchr(p, '|')) {
        if (*p == '|') p++;
        if (strcspn(p, "|") == n && !strncmp(p, text, n)) return true;
    }
    return false;
}

/* "1,2,3", or "@FILE" with numbers between commas and white space. */
static int list_set(const char *verb, const cli_option *o, const char *text, cli_list *list) {
    static const char between[] = ", \t\r\n";
    cli_buffer buffer = {0};
    int rc = text[0] == '@' ? cli_read_file(&buffer, text + 1) : cli_buffer_add(&buffer, text, strlen(text));
    if (rc == CLI_OK) rc = cli_buffer_add(&buffer, "", 1);
    int32_t *v =
        rc == CLI_OK ? malloc((buffer.bytes / 2 + 1) * sizeof *v) : NULL; /* a number takes two characters with what follows */
    if (rc == CLI_OK && !v) rc = cli_fail(CLI_FAILED, verb, "--%s: out of memory", o->name);
    size_t n = 0;
    if (rc == CLI_OK && strlen(buffer.data) + 1 != buffer.bytes) rc = value_fail(verb, o, text); /* a 0 byte inside */
    for (const char *p = buffer.data; rc == CLI_OK && *(p += strspn(p, between));) {
        char *end;
        errno = 0;
        long long x = strtoll(p, &end, 10);
        if (end == p || errno || (*end && !strchr(between, *end)) || (double)x < o->min || (double)x > o->max)
            rc = value_fail(verb, o, text);
        else
            v[n++] = (int32_t)x;
        p = end;
    }
    if (rc == CLI_OK && n == 0) rc = value_fail(verb, o, text);
    free(buffer.data);
    free(list->v);
    *list = (cli_list){v, n};
    return rc;
}

static int option_set(cli_settings *settings, const char *verb, const cli_option *o, const char *text) {
    void *at = (char *)settings + o->offset;
    switch (o->kind) {
    case CLI_FLAG: *(bool *)at = true; return CLI_OK;
    case CLI_TEXT: *(const char **)at = text; return choice_has(o->value, text) ? CLI_OK : value_fail(verb, o, text);
    case CLI_LIST: return list_set(verb, o, text, at);
    case CLI_SIZE: {
        uint64_t *v = at;
        return cli_size_parse(text, v) && (double)*v >= o->min ? CLI_OK : value_fail(verb, o, text);
    }
    case CLI_INT: {
        int64_t *v = at;
        return int_parse(text, v) && (double)*v >= o->min && (double)*v <= o->max ? CLI_OK : value_fail(verb, o, text);
    }
    case CLI_REAL: {
        double *v = at;
        return real_parse(text, v) && *v >= o->min && *v <= o->max ? CLI_OK : value_fail(verb, o, text);
    }
    }
    return CLI_USAGE;
}

/* The rows of one verb as getopt wants them. */
typedef struct getopt_tables {
    struct option longs[2 * MAX_ROWS + 1];
    const char *names[2 * MAX_ROWS];
    size_t n;
    char shorts[3 * MAX_ROWS];
} getopt_tables;

static void tables_build(getopt_tables *t, enum cli_verb_bit verb) {
    char *s = t->shorts;
    *t = (getopt_tables){.n = 0};
    *s++ = ':'; /* a missing value comes back as ':' */
    for (size_t i = 0; i < cli_n_option && t->n < 2 * MAX_ROWS - 1; i++) {
        const cli_option *o = &cli_options[i];
        if (!(o->verbs & verb)) continue;
        const char *names[2] = {o->name, o->alias};
        for (int k = 0; k < 2; k++) {
            if (!names[k]) continue;
            t->names[t->n] = names[k];
            int has = !o->value ? no_argument : o->value[0] == '[' ? optional_argument : required_argument;
            t->longs[t->n++] = (struct option){names[k], has, NULL, LONG_BASE + (int)i};
        }
        if (!o->letter) continue;
        *s++ = o->letter;
        if (o->value) *s++ = ':';
    }
}

static const cli_option *option_of(int code, enum cli_verb_bit verb) {
    if (code >= LONG_BASE) return &cli_options[code - LONG_BASE];
    for (size_t i = 0; i < cli_n_option; i++)
        if ((cli_options[i].verbs & verb) && cli_options[i].letter == code) return &cli_options[i];
    return NULL;
}

/* `arg` is what the user wrote, dashes included. */
static int unknown_fail(const cli_verb *verb, const getopt_tables *t, const char *arg) {
    char name[MAX_NAME + 1];
    const char *start = arg + strspn(arg, "-");
    size_t len = strcspn(start, "="), n_prefix = 0;
    const char *begins = NULL;
    if (len > MAX_NAME) return cli_fail(CLI_USAGE, verb->name, "unknown option '%.40s...' (stoker %s --help)", arg, verb->name);
    memcpy(name, start, len);
    name[len] = 0;
    for (size_t i = 0; i < t->n; i++) {
        if (!strcmp(t->names[i], name)) return cli_fail(CLI_USAGE, verb->name, "--%s takes no value", name);
        if (strncmp(t->names[i], name, len) != 0) continue;
        begins = t->names[i];
        n_prefix++;
    }
    if (n_prefix > 1 && len > 1)
        return cli_fail(CLI_USAGE, verb->name, "'%s' may mean several options (stoker %s --help)", arg, verb->name);
    const char *near = len < 2 ? NULL : begins ? begins : cli_nearest(name, t->names, t->n);
    if (near) return cli_fail(CLI_USAGE, verb->name, "unknown option '%s'; did you mean --%s?", arg, near);
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *o = &cli_options[i];
        if (strcmp(o->name, name) != 0 && !(len == 1 && o->letter == name[0])) continue;
        for (size_t k = 0; k < cli_n_verb; k++)
            if (o->verbs & cli_verbs[k].bit)
                return cli_fail(CLI_USAGE, verb->name, "no option '%s' here; it belongs to `stoker %s`", arg, cli_verbs[k].name);
    }
    return cli_fail(CLI_USAGE, verb->name, "unknown option '%s' (stoker %s --help)", arg, verb->name);
}

static int n_words(const char *text) {
    int n = 1;
    for (; *text; text++) n += *text == ' ';
    return n;
}

static int operand_set(cli_settings *settings, const cli_verb *verb, int n, char **rest) {
    const char *words = verb->operand;
    int named = words ? n_words(words) : 0;
    int least = words && words[0] == '[' ? 0 : named;
    int most = words && strstr(words, "...") ? n : named;
    if (n > most) return cli_fail(CLI_USAGE, verb->name, "unexpected argument '%s' (stoker %s --help)", rest[most], verb->name);
    if (n) settings->operand = rest[0];
    settings->operands = rest;
    settings->n_operand = n;
    if (n >= least || settings->help) return CLI_OK;
    const char *missing = words;
    for (int i = 0; i < n; i++) missing = strchr(missing, ' ') + 1;
    return cli_fail(CLI_USAGE, verb->name, "which %s? (stoker %s %s)", missing, verb->name, words);
}

/* getopt also takes the beginning of a name, down to "-p" for --policy; what a later version may read differently is refused. */
static bool is_whole_name(const cli_option *o, const char *spelled) {
    spelled += strspn(spelled, "-");
    size_t n = strcspn(spelled, "=");
    return (strlen(o->name) == n && !strncmp(o->name, spelled, n)) ||
           (o->alias && strlen(o->alias) == n && !strncmp(o->alias, spelled, n));
}

/* A number that follows an option whose value may be left out; getopt takes it for an argument of the verb. */
static char *optional_value(int argc, char **argv) {
    static char left_out[] = CLI_NO_VALUE;
    char *next = optind < argc ? argv[optind] : NULL;
    if (!next || !*next || next[strspn(next, "0123456789")]) return left_out;
    optind++;
    return next;
}

int cli_settings_parse(cli_settings *settings, const cli_verb *verb, int argc, char **argv) {
    getopt_tables t;
    int code;
    memset(settings, 0, sizeof *settings);
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *o = &cli_options[i];
        if (!(o->verbs & verb->bit) || !o->initial) continue;
        int rc = option_set(settings, verb->name, o, o->initial);
        if (rc) return rc;
    }
    tables_build(&t, verb->bit);
    opterr = 0;
    optind = 0; /* glibc: start over, also for a second call */
    while ((code = getopt_long_only(argc, argv, t.shorts, t.longs, NULL)) != -1) {
        if (code == ':') return cli_fail(CLI_USAGE, verb->name, "%s needs a value", argv[optind - 1]);
        if (code == '?') {
            char letter[3] = {'-', (char)optopt, 0};
            bool is_letter = optopt > 0 && optopt < LONG_BASE;
            return unknown_fail(verb, &t, is_letter ? letter : argv[optind - 1]);
        }
        const char *spelled = argv[optind - (optarg && optarg == argv[optind - 1] ? 2 : 1)];
        if (code >= LONG_BASE && !is_whole_name(&cli_options[code - LONG_BASE], spelled)) return unknown_fail(verb, &t, spelled);
        const cli_option *o = option_of(code, verb->bit);
        if (o->value && o->value[0] == '[' && !optarg) optarg = optional_value(argc, argv);
        int rc = option_set(settings, verb->name, o, optarg);
        if (rc) return rc;
    }
    return operand_set(settings, verb, argc - optind, argv + optind);
}

void cli_settings_fini(cli_settings *settings) {
    free(settings->tokens.v);
    free(settings->chunk.v);
    free(settings->n_prompt.v);
    free(settings->n_gen.v);
    free(settings->n_depth.v);
    memset(settings, 0, sizeof *settings);
}
