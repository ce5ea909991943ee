/* main: the table of verbs, and the way from argv to one of them and to an exit code. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

const cli_verb cli_verbs[] = {
    {CLI_RUN, "run", NULL, "generate text after a prompt",
     "The text streams to stdout; what was reserved, and a table of speeds and cache figures, go to stderr.", cli_run},
    {CLI_INSPECT, "inspect", "MODEL", "show what is in a GGUF model and how it would run", NULL, cli_inspect},
    {CLI_PERPLEXITY, "perplexity", NULL, "measure how well a model predicts a text",
     "The text is cut into chunks of -c tokens, without BOS, each run alone; a last partial chunk is dropped. All tokens of a "
     "chunk\n"
     "but the first are scored given those before.",
     cli_perplexity},
    {CLI_LOGITS, "logits", NULL, "write the raw logits of given tokens",
     "The file holds little-endian float32 [n_tokens, n_vocab], row by row, and appears whole or not at all.", cli_logits},
    {CLI_REPLAY, "replay", "TRACE...", "drive the cache with a recorded trace, without a model",
     "Without options the recorded run is repeated. --ram, --slots, --fraction, --scope and --policy ask what another cache "
     "would\n"
     "have done. Traces of other tools are read as they are; several traces of a model follow one another.",
     cli_replay},
    {CLI_TUNE, "tune", "TRACE...", "find the best expert cache for a model's traces, and write a profile for run",
     "Searches over policies, their parameters, slots of each layer, predictors and how far they look ahead. Predicted times "
     "decide, "
     "with\n"
     "--io or --cost; else hit rates. Every margin is of parts of the traces that did not choose. -o PROFILE goes to `stoker run "
     "--profile`.",
     cli_tune},
    {CLI_TRACE, "trace", "info|cut|merge|convert TRACE...", "look into traces, cut, merge and convert them",
     "info says what is in each trace; cut keeps --steps from --from on; merge puts traces of one model one after another;\n"
     "convert writes a trace of another tool in Stoker's own format, or any as CSV.",
     cli_trace},
    {CLI_BENCH, "bench", NULL, "measure the speed of prefill and decode, and where the time goes",
     "Each test runs on random tokens, -r times, after a warm-up: ppN, a prompt of N tokens; tgN, N tokens one by one; @ dN, "
     "behind\n"
     "N tokens of context. tok/s is the median. With --limits alone no model is needed.",
     cli_bench},
    {CLI_DOCTOR, "doctor", NULL, "look at the machine, and measure what things take on it",
     "Says what this machine has and what to do about what it lacks; with -m also where the model lies. With --calibrate it "
     "measures\n"
     "what computing and reading take; the engine starts from that, and `stoker replay --cost` predicts times by it.",
     cli_doctor},
    {CLI_PLAN, "plan", NULL, "say what would go where, and how fast, before anything is loaded",
     "With a cost table that has a GPU (--cost 4090) attention, dense weights and KV go there, and experts into VRAM over RAM "
     "over\n"
     "the drive. Refuses what cannot fit and names the least that would. Speeds are predictions: see `stoker replay --vram`.",
     cli_plan},
    {CLI_SYNTH, "synth", "SHAPE TYPE", "write a model of random weights, for measuring speed",
     "SHAPE is qwen3-30b-a3b, mixtral-8x7b, tiny, or, for other programs that read GGUF, deepseek-v2-lite or qwen2-57b-a14b;\n"
     "each also with -quarter behind it: a quarter of the layers. TYPE is Q4_K_M, Q5_K_M, Q8_0, Q4_0, BF16, F16 or F32. The\n"
     "file appears whole or not at all.",
     cli_synth},
    {CLI_PACK, "pack", NULL, "write a model in the form that it has in memory, one read an expert",
     "Experts read from such a file need no rearranging. It takes as much room as the model, runs with the same output, and is "
     "for\n"
     "Stoker alone: other programs refuse it. The file appears whole or not at all.",
     cli_pack},
    {CLI_VERSION, "version", NULL, "print the version", NULL, cli_version},
    {CLI_HELP, "help", "[TOPIC]", "print this help, that of a verb, or the policies or predictors",
     "TOPIC is a verb, policies or predictors.", cli_help},
};
const size_t cli_n_verb = sizeof cli_verbs / sizeof cli_verbs[0];

/* A process may be started without the standard files; the next file opened would then take their place. */
static void standard_files_open(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            _exit(CLI_FAILED);
}

static int unknown_verb(const char *name) {
    const char *names[sizeof cli_verbs / sizeof cli_verbs[0]];
    for (size_t i = 0; i < cli_n_verb; i++) names[i] = cli_verbs[i].name;
    const char *near = cli_nearest(name, names, cli_n_verb);
    if (near) return cli_fail(CLI_USAGE, "no such verb", "'%s'; did you mean '%s'?", name, near);
    return cli_fail(CLI_USAGE, "no such verb", "'%s' (stoker help lists them)", name);
}

static const cli_verb *verb_of_word(const char *word) {
    if (!strcmp(word, "--version") || !strcmp(word, "-V")) return cli_verb_find("version");
    if (!strcmp(word, "--help") || !strcmp(word, "-h")) return cli_verb_find("help");
    return cli_verb_find(word);
}

static int run_verb(const cli_verb *verb, int argc, char **argv) {
    cli_settings settings;
    int rc = cli_settings_parse(&settings, verb, argc, argv);
    if (rc == CLI_OK && settings.help) {
        cli_help_verb(stdout, verb);
    } else if (rc == CLI_OK) {
        cli_log_open(settings.verbose, settings.quiet);
        bool blank = settings.io && strstr(settings.io, ",blank=") && verb->bit != CLI_BENCH;
        rc = blank
                 ? cli_fail(CLI_USAGE, "--io", "reads that bring nothing (blank) are for `stoker bench`: outputs would be wrong")
                 : verb->run(&settings);
    }
    cli_settings_fini(&settings);
    return rc;
}

int main(int argc, char **argv) {
    standard_files_open();
    cli_signals_open();
    if (argc < 2) {
        fputs("usage: stoker VERB [options]; stoker help lists the verbs\n", stderr);
        return CLI_USAGE;
    }
    const cli_verb *verb = verb_of_word(argv[1]);
    int rc = verb ? run_verb(verb, argc - 1, argv + 1) : unknown_verb(argv[1]);
    int rc2 = cli_write("", 0); /* flushes; fails if an earlier write did */
    if (rc == cli_signal_exit() && rc) cli_say("stoker: interrupted by %s", cli_signal() == SIGINT ? "SIGINT" : "SIGTERM");
    return rc ? rc : rc2;
}
