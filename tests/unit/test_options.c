/* options: sizes, ranges, choices, lists, defaults, and what is said of mistakes. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cache/policy.h"
#include "src/cli/options.h"
#include "tests/temp.h"

/* The program's own table lies beside main(); options read no more of it than this. */
const cli_verb cli_verbs[] = {{.bit = CLI_RUN, .name = "run"},
                              {.bit = CLI_LOGITS, .name = "logits"},
                              {.bit = CLI_REPLAY, .name = "replay", .operand = "FILE"},
                              {.bit = CLI_TRACE, .name = "trace", .operand = "info|cut TRACE..."},
                              {.bit = CLI_SYNTH, .name = "synth", .operand = "SHAPE TYPE"},
                              {.bit = CLI_HELP, .name = "help", .operand = "[VERB]"}};
const size_t cli_n_verb = sizeof cli_verbs / sizeof cli_verbs[0];

enum { MAX_ARGS = 15 };

/* Parses words up to NULL; argv[0] is the verb. */
static int parse(cli_settings *s, char *const *words) {
    char *argv[MAX_ARGS + 1] = {NULL};
    int argc = 0;
    for (; words[argc] && argc < MAX_ARGS; argc++) argv[argc] = words[argc];
    return cli_settings_parse(s, cli_verb_find(argv[0]), argc, argv);
}
#define PARSE(s, ...) parse(s, (char *const[]){__VA_ARGS__, NULL})

/* Parses a mistake and checks all that is said of it on stderr. */
static void expect_mistake(char *const *words, const char *message) {
    char said[512] = "";
    cli_settings s;
    int saved = dup(STDERR_FILENO), file = memfd_create("stderr", 0);
    cr_assert(saved >= 0 && file >= 0);
    dup2(file, STDERR_FILENO);
    int rc = parse(&s, words);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    ssize_t n = pread(file, said, sizeof said - 1, 0);
    close(saved);
    close(file);
    cli_settings_fini(&s);
    cr_assert(n >= 0);
    cr_assert_eq(rc, CLI_USAGE);
    cr_assert_str_eq(said, message);
}

Test(options, sizes) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"4096", 4096},
                {"1k", 1024},
                {"1K", 1024},
                {"512M", 512u << 20},
                {"8G", UINT64_C(8) << 30},
                {"1.5GiB", 3u << 29},
                {"2TB", UINT64_C(2) << 40},
                {"7B", 7},
                {"0.5M", 1u << 19},
                {"18446744073709551615", UINT64_MAX}};
    static const char *const bad[] = {
        "", "G", "-1", "1x", "1GG", "1 G", "0x10", "1e3", "nan", "inf", "1.5.", "8Gi8", "18446744073709551616", "99999999T"};
    uint64_t bytes;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_assert(cli_size_parse(good[i].text, &bytes), "%s", good[i].text);
        cr_assert_eq(bytes, good[i].bytes, "%s", good[i].text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) cr_assert_not(cli_size_parse(bad[i], &bytes), "'%s'", bad[i]);
}

Test(options, defaults_are_those_of_the_table) {
    cli_settings s;
    cr_assert_eq(PARSE(&s, "run"), CLI_OK);
    cr_assert_eq(s.n_predict, -1);
    cr_assert_eq(s.n_batch, 512);
    cr_assert_eq(s.top_k, 40);
    cr_assert_float_eq(s.temp, 0.8, 1e-12);
    cr_assert_float_eq(s.top_p, 0.95, 1e-12);
    cr_assert_float_eq(s.min_p, 0.05, 1e-12);
    cr_assert_str_eq(s.kv_k, "f16");
    cr_assert_eq(s.ram_bytes, 0);
    cli_settings_fini(&s);
    cr_assert_eq(PARSE(&s, "logits"), CLI_OK);
    cr_assert_str_eq(s.kv_k, "f32", "the same option has another default for another verb");
    cli_settings_fini(&s);
}

Test(options, every_default_passes_its_own_check) {
    for (size_t i = 0; i < cli_n_verb; i++) {
        cli_settings s;
        const char *operand = cli_verbs[i].operand;
        char *words[] = {(char *)cli_verbs[i].name, operand ? "x" : NULL, operand && strchr(operand, ' ') ? "y" : NULL, NULL};
        cr_assert_eq(parse(&s, words), CLI_OK, "%s", cli_verbs[i].name);
        cli_settings_fini(&s);
    }
}

Test(options, short_long_and_llama_spellings) {
    cli_settings s;
    cr_assert_eq(PARSE(&s, "run", "-m", "a.gguf", "-n5", "-ctk", "f32", "--ctv=f32", "--seed", "7", "--temp", "0", "--json"),
                 CLI_OK);
    cr_assert_str_eq(s.model, "a.gguf");
    cr_assert_eq(s.n_predict, 5);
    cr_assert_str_eq(s.kv_k, "f32");
    cr_assert_str_eq(s.kv_v, "f32");
    cr_assert_eq(s.seed, 7);
    cr_assert_eq(s.temp, 0);
    cr_assert(s.json);
    cr_assert_not(s.mlock);
    cli_settings_fini(&s);
}

Test(options, lists) {
    cli_settings s;
    cr_assert_eq(PARSE(&s, "logits", "--tokens", "1,22,333", "--chunk", "7"), CLI_OK);
    cr_assert_eq(s.tokens.n, 3);
    cr_assert_eq(s.tokens.v[2], 333);
    cr_assert_eq(s.chunk.n, 1);
    cli_settings_fini(&s);
}

Test(options, list_from_a_file) {
    char path[TEMP_PATH], arg[TEMP_PATH + 1];
    FILE *f = fopen(temp_file(path, "stoker-options"), "w");
    cr_assert_not_null(f);
    fputs("1, 2\n3\t4\n", f);
    fclose(f);
    snprintf(arg, sizeof arg, "@%s", path);
    cli_settings s;
    int rc = PARSE(&s, "logits", "--tokens", arg);
    remove(path);
    cr_assert_eq(rc, CLI_OK);
    cr_assert_eq(s.tokens.n, 4);
    cr_assert_eq(s.tokens.v[3], 4);
    cli_settings_fini(&s);
}

Test(options, operands) {
    cli_settings s;
    cr_assert_eq(PARSE(&s, "replay", "--slots", "3", "t.trace", "--verify"), CLI_OK);
    cr_assert_str_eq(s.operand, "t.trace");
    cr_assert(s.verify);
    cli_settings_fini(&s);
    cr_assert_eq(PARSE(&s, "help"), CLI_OK);
    cr_assert_null(s.operand);
    cli_settings_fini(&s);
    cr_assert_eq(PARSE(&s, "synth", "a", "-o", "x", "b"), CLI_OK);
    cr_assert_str_eq(s.operand, "a");
    cr_assert_str_eq(s.operands[1], "b");
    cli_settings_fini(&s);
    cr_assert_eq(PARSE(&s, "trace", "info", "a", "b", "c"), CLI_OK);
    cr_assert_eq(s.n_operand, 4);
    cr_assert_str_eq(s.operands[3], "c");
    cli_settings_fini(&s);
}

/* Each mistake is one line that says what to do. */
#define MISTAKE(name, message, ...)                                                                                              \
    Test(options_mistakes, name) { expect_mistake((char *const[]){__VA_ARGS__, NULL}, message); }
MISTAKE(swapped, "stoker: run: unknown option '--tmep'; did you mean --temp?\n", "run", "--tmep", "1")
MISTAKE(near, "stoker: run: unknown option '--top_k=3'; did you mean --top-k?\n", "run", "--top_k=3")
MISTAKE(far, "stoker: run: unknown option '--frobnicate' (stoker run --help)\n", "run", "--frobnicate")
MISTAKE(letter, "stoker: run: unknown option '-z' (stoker run --help)\n", "run", "-z")
MISTAKE(ambiguous, "stoker: run: '--re' may mean several options (stoker run --help)\n", "run", "--re")
MISTAKE(other_verb, "stoker: run: no option '--verify' here; it belongs to `stoker replay`\n", "run", "--verify")
MISTAKE(no_value, "stoker: run: -m needs a value\n", "run", "-m")
MISTAKE(too_much_value, "stoker: run: --json takes no value\n", "run", "--json=1")
MISTAKE(not_a_number, "stoker: run: --temp takes a number from 0 to 1000, not 'hot'\n", "run", "--temp", "hot")
MISTAKE(nan, "stoker: run: --top-p takes a number from 0 to 1, not 'nan'\n", "run", "--top-p", "nan")
MISTAKE(range, "stoker: run: --threads takes a whole number from 0 to 1024, not '2000'\n", "run", "-t", "2000")
MISTAKE(range_of_seeds, "stoker: run: --seed takes a whole number from -1 to 9007199254740991, not '9007199254740992'\n", "run",
        "--seed", "9007199254740992")
MISTAKE(trailing, "stoker: run: --n-predict takes a whole number from -1, not '5x'\n", "run", "-n", "5x")
MISTAKE(no_size, "stoker: run: --ram takes a size such as 512M or 8G, not '0'\n", "run", "--ram", "0")
MISTAKE(no_choice, "stoker: run: --cache-type-k takes f16|f32, not 'f1'\n", "run", "-ctk", "f1")
MISTAKE(list_item, "stoker: logits: --tokens takes a list of numbers from 0, not '1,-2'\n", "logits", "--tokens", "1,-2")
MISTAKE(list_empty, "stoker: logits: --tokens takes a list of numbers from 0, not ''\n", "logits", "--tokens", "")
MISTAKE(list_overflow, "stoker: logits: --tokens takes a list of numbers from 0, not '4294967296'\n", "logits", "--tokens",
        "4294967296")
MISTAKE(abbreviated, "stoker: run: unknown option '--toke'; did you mean --tokens?\n", "run", "--toke", "1")
MISTAKE(abbreviated_to_a_letter, "stoker: replay: no option '-p' here; it belongs to `stoker run`\n", "replay", "-p", "lru", "x")
MISTAKE(operand_missing, "stoker: replay: which FILE? (stoker replay FILE)\n", "replay")
MISTAKE(operands_missing, "stoker: synth: which SHAPE TYPE? (stoker synth SHAPE TYPE)\n", "synth")
MISTAKE(second_operand_missing, "stoker: synth: which TYPE? (stoker synth SHAPE TYPE)\n", "synth", "a")
MISTAKE(third_operand, "stoker: synth: unexpected argument 'c' (stoker synth --help)\n", "synth", "a", "b", "c")
MISTAKE(operands_of_one_or_more, "stoker: trace: which TRACE...? (stoker trace info|cut TRACE...)\n", "trace", "info")
MISTAKE(operand_extra, "stoker: run: unexpected argument 'x' (stoker run --help)\n", "run", "x")

Test(options, nearest) {
    static const char *const names[] = {"run", "replay", NULL, "perplexity"};
    cr_assert_str_eq(cli_nearest("rnu", names, 4), "run");
    cr_assert_str_eq(cli_nearest("perpelxty", names, 4), "perplexity");
    cr_assert_null(cli_nearest("walk", names, 4));
}

/* ---- Policies ----------------------------------------------------------------------------------------------------------- */

/* Whether `name` stands in `text` as a word of its own. */
static bool has_word(const char *text, const char *name) {
    static const char within[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    for (const char *at = text; (at = strstr(at, name)); at++)
        if ((at == text || !strchr(within, at[-1])) && (!at[strlen(name)] || !strchr(within, at[strlen(name)]))) return true;
    return false;
}

Test(options, help_and_man_page_name_every_policy) {
    static char man[1 << 16];
    FILE *f = fopen(STK_TEST_DATA "/../../src/cli/stoker.1", "r");
    cr_assert_not_null(f);
    size_t n = fread(man, 1, sizeof man - 1, f);
    fclose(f);
    cr_assert(n > 0 && n < sizeof man - 1);
    for (const char *const *name = stk_policy_names(); *name; name++) {
        uint32_t verb = stk_policy_find(*name)->needs_future ? CLI_REPLAY : CLI_RUN;
        bool in_help = false;
        for (const cli_option *o = cli_options; o < cli_options + cli_n_option; o++)
            if (strcmp(o->name, "policy") == 0 && o->verbs & verb) in_help = has_word(o->help, *name);
        cr_assert(in_help, "--help of --policy does not name %s", *name);
        cr_assert(has_word(man, *name), "the man page does not name %s", *name);
    }
}
