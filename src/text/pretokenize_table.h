/*
 * pretokenize_table: how each `tokenizer.ggml.pre` cuts text before merging, as PCRE2 patterns. Included by pretokenize.c alone.
 *
 * The patterns are those of the models' own tokenizer.json where known. White space is spelled out, because PCRE2's \s also takes
 * U+180E; Han is the script alone, not its extensions; sets that another engine intersects are written as complements of
 * categories. Groups whose rule is not a pattern of this kind are absent: afmoe, tiny_aya, cohere2moe, superbpe, youtu.
 */
#define SPACE    "\\t-\\r\\x85\\p{Z}" /* body of a class */
#define WORDY    SPACE "\\p{L}\\p{N}"
#define LAST     "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"
#define NEWLINES "[" SPACE "]*[\\r\\n]+|"

#define ANY_CASE   "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define ASCII_CASE "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WORDY "]+|" LAST

/* Contractions, words with one leading character, digits, punctuation with the newlines after it, white space. */
#define LLAMA3(contractions, digits)                                                                                             \
    contractions "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" WORDY "]+[\\r\\n]*|" NEWLINES LAST

/* Words are cut where upper case follows lower case; letters without case and marks count as both. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(upper, lower, contractions)                                                                                        \
    "[^\\r\\n\\p{L}\\p{N}]?" upper "*" lower "+" contractions "|[^\\r\\n\\p{L}\\p{N}]?" upper "+" lower "*" contractions "|"
#define UPPER_NOT_HAN "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define LOWER_NOT_HAN "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"

/* White space at the end of a piece, looked for at the first of a run only: else each long run costs its square. */
#define TRAILING_SPACE "(?<![" SPACE "])[" SPACE "]++\\z"
/* clang-format off */
#define CASED_SCRIPTS_OF_DEEPSEEK \
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ" \
    "ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ" \
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
/* clang-format on */
#define PUNCTUATION_OF_DEEPSEEK "!-/:-~！-／：-～‘-‟　-。"
#define CJK_OF_DEEPSEEK         "一-龥ࠀ-一가-퟿"

enum { IGNORE_MERGES = 1, ADD_BOS = 2, MAX_STAGES = 6 };

static const struct group {
    const char *names;             /* separated by spaces */
    const char *stage[MAX_STAGES]; /* each cuts the pieces of the one before into its matches and the gaps between them */
    unsigned flags;
} groups[] = {
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, 0},
    {"gpt-2 gpt2 olmo phi-2 mpt jais gigachat mellum modern-bert jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code "
     "a.x-4.0 exaone4 trillion granite-docling",
     {GPT2},
     0},
    {"starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", {"\\p{N}", GPT2}, 0},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     {LLAMA3(ANY_CASE, "\\p{N}{1,3}")},
     IGNORE_MERGES | ADD_BOS},
    {"dbrx smaug-bpe glm4 chatglm-bpe", {LLAMA3(ANY_CASE, "\\p{N}{1,3}")}, 0},
    {"qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", {LLAMA3(ANY_CASE, "\\p{N}")}, 0},
    {"qwen35", {ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WORDY "\\p{M}]+[\\r\\n]*|" NEWLINES LAST}, 0},
    {"deepseek-llm",
     {"[\\r\\n]", "[" SPACE "]?[" CASED_SCRIPTS_OF_DEEPSEEK "]+", "[" SPACE "]?[" PUNCTUATION_OF_DEEPSEEK "]+", TRAILING_SPACE,
      "[" CJK_OF_DEEPSEEK "]+", "\\p{N}+"},
     0},
    {"deepseek-coder", {"[\\r\\n]", "[" SPACE "]?\\p{L}+", "[" SPACE "]?\\p{P}+", "[" CJK_OF_DEEPSEEK "]+", "\\p{N}"}, 0},
    {"deepseek-v3 hunyuan-dense joyai-llm",
     {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\\r\\n]*|" NEWLINES LAST},
     0},
    {"gpt-4o llama4 kanana2 talkie minimax-m2",
     {CASED(UPPER, LOWER, ANY_CASE "?") "\\p{N}{1,3}| ?[^" WORDY "]+[\\r\\n/]*|" NEWLINES LAST},
     0},
    {"tekken", {CASED(UPPER, LOWER, "") "\\p{N}| ?[^" WORDY "]+[\\r\\n/]*|" NEWLINES LAST}, IGNORE_MERGES | ADD_BOS},
    {"kimi-k2",
     {"[\\p{sc:Han}]+|" CASED(UPPER_NOT_HAN, LOWER_NOT_HAN, ANY_CASE "?") "\\p{N}{1,3}| ?[^" WORDY "]+[\\r\\n]*|" NEWLINES LAST},
     0},
    {"bailingmoe bailingmoe2 llada-moe",
     {"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WORDY "]+[\\r\\n]*|[" SPACE
      "]*[\\r\\n]|" LAST},
     0},
    {"seed-coder", {ASCII_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^" WORDY "\\r\\n]+|" NEWLINES LAST}, 0},
    {"falcon", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}, 0},
    {"exaone-moe", /* possessive, which changes no match and needs no stack */
     {ASCII_CASE "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*+(?: \\p{L}\\p{M}*+)*+)++|\\p{N}| ?[^" WORDY "]+[\\r\\n/]?|[" SPACE
                 "]*[\\r\\n]|" LAST},
     0},
    {"laguna", {"[^\\n]+|[\\n]+", LLAMA3(ASCII_CASE, "\\p{N}")}, 0},
    {"minicpm5", {"\\p{N}{1,3}", LLAMA3(ASCII_CASE, "\\p{N}+")}, IGNORE_MERGES},
};
