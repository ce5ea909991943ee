#!/usr/bin/env python3
"""Writes the tokenizer's golden data with Hugging Face tokenizers: tests/data/tokenizer-mini.gguf and tests/data/tokenizer-golden.zst.

tokenizer-mini.gguf holds a vocabulary alone: byte-level BPE trained here on the strings below, with control, user-defined and unused
tokens, and with whole words that no merge makes. tokenizer-golden.zst is read by tests/unit/test_tokenizer_golden.c:

    "STKTOK01"
    u32 n_string, then each: u32 bytes, bytes
    u32 n_set, then each: u8 vocabulary (0 ember, 1 mini), u8 special, u8 hashed, u8 0, char pre[20], then for each string
        hashed: u32 FNV-1a of the ids as u32
        else:   u16 number of ids and the ids as u16; 0xffff: the same ids as in the set before
    u32 n_decode, then each: u8 vocabulary, u8 special, u16 n_id, u32 bytes, n_id u16, the decoded bytes

Usage: make_tokenizer.py EMBER.gguf     (PyPI: tokenizers 0.23.3, gguf 0.19.0, zstandard 0.25.0)
"""
import random
import struct
import sys
from pathlib import Path

import gguf
import zstandard
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

DATA = Path(__file__).resolve().parents[1] / "data"
REFERENCE = {  # patterns as the models' tokenizer.json has them, in Oniguruma's syntax
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cased": r"[^\r\n\p{L}\p{N}]?UPPER*LOWER+TAIL|[^\r\n\p{L}\p{N}]?UPPER+LOWER*TAIL|",
}
ASCII_CASE = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
ANY_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"


def llama3(digits, contractions=ANY_CASE):
    return REFERENCE["llama3"].replace("DIGITS", digits).replace(ANY_CASE, contractions)


def cased(tail, but=""):
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%s]" % but, r"[\p{Ll}\p{Lm}\p{Lo}\p{M}%s]" % but
    return REFERENCE["cased"].replace("UPPER", upper).replace("LOWER", lower).replace("TAIL", tail)


def deepseek_letters():
    """The cased letters that DeepSeek V2 spells out, as in src/text/pretokenize_table.h: data, not a rule that could be wrong twice."""
    text = (Path(__file__).resolve().parents[2] / "src" / "pretokenize_table.h").read_text(encoding="utf-8")
    lines = text.split("#define CASED_SCRIPTS_OF_DEEPSEEK")[1].split("#define")[0]
    return "".join(part for part in lines.split('"')[1::2])


CJK = "[一-龥ࠀ-一가-\ud7ff]+".encode("utf-8", "surrogatepass").decode("utf-8")
PUNCT_ASCII = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
MAIN_V3 = PUNCT_ASCII + (r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GROUPS = {
    "qwen2": [llama3(r"\p{N}")],
    "gpt-2": None,  # the engine's own ByteLevel splitter
    "llama-bpe": [llama3(r"\p{N}{1,3}")],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", REFERENCE["gpt-2"], r"\p{N}+", r"[0-9][0-9][0-9]"],
    "starcoder": [r"\p{N}", REFERENCE["gpt-2"]],
    "glm4": [llama3(r"\p{N}{1,3}")],
    "qwen35": [ANY_CASE + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "deepseek-llm": [r"[\r\n]", r"\s?[" + deepseek_letters() + "]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", CJK, r"\p{N}+"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", MAIN_V3],
    "gpt-4o": [cased(ANY_CASE + "?") + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "tekken": [cased("") + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "kimi-k2": [r"[\p{Han}]+|" + cased(ANY_CASE + "?", r"&&[^\p{Han}]") +
                r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "bailingmoe2": [r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
                    r"\s*[\r\n]|\s+(?!\S)|\s+"],
    "seed-coder": [ASCII_CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", REFERENCE["gpt-2"], r"[0-9][0-9][0-9]"],
    "exaone-moe": [ASCII_CASE + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|"
                   r"\s*[\r\n]|\s+(?!\S)|\s+"],
    "laguna": [r"[^\n]+|[\n]+", llama3(r"\p{N}", ASCII_CASE)],
    "minicpm5": [r"\p{N}{1,3}", llama3(r"\p{N}+", ASCII_CASE)],
}
IGNORE_MERGES = {"llama-bpe", "tekken", "minicpm5"}
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>"]
USER = ["<think>", "</think>", "<tool", "tool_call>", "<tool_call>", "\t\t\t", "    ", "ein", "中文", "<|im_start|>user"]
N_MERGES = 1200


# ---- Strings --------------------------------------------------------------------------------------------------------------

WORDS = {
    "latin": "the river ran under an old stone bridge and nobody had ever counted its arches Straße über naïve café Ångström façade "
             "œuvre Łódź čeština İstanbul ığdır ﬁne ﬀ ǅ ǈ ŉ ſtill DON'T HTTPServer camelCase snake_case SCREAMING_CASE kebab-case x1y2z3",
    "greek": "η θάλασσα ήταν ήρεμη ΑΒΓΔ ς Ϗ ϵ ἄνθρωπος ᾠδή",
    "cyrillic": "река текла под старым мостом Ёлка Їжак ґанок Ӏ ҁ",
    "hebrew": "הנהר זרם מתחת לגשר שָׁלוֹם",
    "arabic": "كان النهر يجري تحت الجسر مُحَمَّد ٠١٢٣٤٥٦٧٨٩ ۱۲۳ لا",
    "devanagari": "नदी पुल के नीचे बहती थी क्षत्रिय १२३ हिन्दी",
    "bengali": "নদী সেতুর নিচে বইত ১২৩",
    "tamil": "ஆறு பாலத்தின் கீழ் ஓடியது கொ",
    "thai": "แม่น้ำไหลลอดใต้สะพาน ๑๒๓ น้ำ ก็",
    "khmer": "ទន្លេហូរក្រោមស្ពាន",
    "georgian": "მდინარე ხიდის ქვეშ მიედინებოდა ᲛᲓᲘᲜᲐᲠᲔ",
    "armenian": "գետը հոսում էր կամրջի տակ և",
    "ethiopic": "ወንዙ ከድልድዩ በታች ይፈስ ነበር ፩፪፫",
    "han": "河水从桥下流过 中文 一二三 龥 㐀 𠀀 𪜀 𰀀 々 〇 〡 ⺀ ⼀",
    "kana": "川は橋の下を流れた カタカナ ひらがな ー ゞ ｶﾅ",
    "hangul": "강물은 다리 아래로 흘렀다 ᄀᆞᆨ ㄱㄴㄷ 한글",
    "mongolian": "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ a\u180eb",
    "others": "ꓕꓵ ᎣᏏᏲ Ꮳꮳ ᚠᚢᚦ 𐐷𐑐 𐌰𐌱 𒀀𒀁 𓀀 ꠀ ꦏ ᐃᓄᒃ ʘǃ ˈa ªº",
}
EMOJI = ["😀", "👩‍👩‍👧‍👦", "👍🏽", "🏳️‍🌈", "🇩🇪🇯🇵", "❤️", "🧑‍🚀", "1️⃣", "☃", "🫠", "🫨", "♥︎"]
NUMBERS = ["0", "7", "42", "1234567", "3.14159", "1,000,000", "1e-9", "0x1F", "²³", "½", "Ⅳ", "①", "٣٤٥", "१२३४", "𝟙𝟚𝟛", "12三", "²2"]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'Re", "'RE", "'ve", "'VE", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D", "'ſ", "’s", "'x", "''s",
                "'", "'l", "'r", "'st", "'ŉ"]
PUNCT = list("!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "—", "–", "„", "“", "«", "»", "…", "。", "、", "！", "？", "「", "・", "‿", "§", "€",
                                                      "£", "¥", "₿", "±", "×", "÷", "→", "∑", "™", "°", "^^", "~~", "<=>", "|>", "//", "/*", "*/", "$$"]
SPACES = [" ", "  ", "   ", "     ", "\t", "\t\t", " \t ", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\r", " \n", "\n ", "  \n  ", "\x0b", "\x0c",
          "\x85", "\xa0", "\u1680", "\u2000", "\u2003", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", " \xa0 ", "\t\n\t", " \r\n \r\n"]
ODD = ["\0", "\x01", "\x1b[0m", "\x1f", "\x7f", "\x80", "\x9f", "\xad", "\u200b", "\u200c", "\u200d", "\u200e", "\u200f", "\u2060", "\ufeff", "\u180e",
       "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "\ue000", "\U000f0000", "\u0378", "\u0530", "\u2fe0", "\U000e0001", "\U000e0041", "\U0003ffff",
       "\u0301", "e\u0301", "a\u0308\u0304", "\u20dd", "\u0345", "\u093f", "\u302a", "\U0001d165", "\ufe0f", "\u034f", "\u061c"]
NEWER = ["\u0897", "\u1c89", "\u1c8a", "\u2427", "\u2ffc", "\u31e4", "\ua7cb", "\ua7da", "\U000105c0", "\U00010d40", "\U00010d4a", "\U00010d50",
         "\U00010d69", "\U00011f04", "\U00011f50", "\U00016d43", "\U0001ccf0", "\U0001cd00", "\U0001e030", "\U0001f6dc", "\U0002ebf0", "\U00031350",
         "\U000323af"]
CODE = [
    "int main(void) {\n\tprintf(\"%d\\n\", 1 << 10);\n\treturn 0;\n}\n",
    "def f(x, *args, **kw):\n    return {k: v for k, v in kw.items() if v is not None}\n",
    "for (size_t i = 0; i < n; ++i) sum += a[i] * b[i]; // dot\r\n",
    "SELECT name, COUNT(*) FROM t WHERE id >= 100 GROUP BY name;\n",
    "<a href=\"https://example.org/?q=1&r=2#top\">link</a><br/>\n",
    "let v: Vec<&'a str> = s.split_whitespace().collect();\n",
    "#!/bin/sh\nset -eu\nexport PATH=\"$HOME/bin:$PATH\"\n",
    "{\"key\": [1, 2.5e-3, null, true], \"nested\": {\"a\": \"b\\u00e9\"}}",
    "x^2 + y^2 = r^2 \\implies \\frac{a}{b} \\neq 0 % TeX\n",
    "-----\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n\n* item\n  * item's\n",
]
SPECIALS = CONTROL + USER + ["<|im_start|", "<|unknown|>", "|im_end|>", "<<think>>", "<tool_call", "<|im_start|>use"]


def class_pool(rng):
    """One character of each property that the patterns tell apart, old and new."""
    return rng.choice([
        lambda: rng.choice("aZſKéßǅʰºʼ"), lambda: rng.choice("中々〇ㇰ가あ𠀀א"), lambda: rng.choice("09²½Ⅷ٣𝟙"), lambda: rng.choice(SPACES),
        lambda: rng.choice(PUNCT), lambda: rng.choice(ODD), lambda: rng.choice(NEWER), lambda: rng.choice(CONTRACTIONS),
        lambda: rng.choice(" \n\r\t'"), lambda: rng.choice(EMOJI)])()


def any_code_point(rng):
    while True:
        c = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x3400), rng.randrange(0x10000), rng.randrange(0x110000)])
        if not 0xD800 <= c <= 0xDFFF:
            return chr(c)


def sentence(rng, words, n):
    return "".join(rng.choice(words) + rng.choice([" "] * 8 + SPACES + PUNCT[:4]) for _ in range(n))


def make_strings():
    rng = random.Random(20240229)
    out = ["", " ", "  ", "\n", "a", "\0"]
    out += SPACES + ODD + NEWER + EMOJI + NUMBERS + CONTRACTIONS + CODE + SPECIALS
    out += ["x" + s + "y" for s in SPACES + ODD + NEWER + SPECIALS] + [" " + s + "  " for s in CONTRACTIONS + NUMBERS + NEWER]
    out += ["I" + c + " you" + c.upper() for c in CONTRACTIONS]
    pools = {name: text.split() for name, text in WORDS.items()}
    every = [w for words in pools.values() for w in words]
    for words in pools.values():
        out += [sentence(rng, words, rng.randrange(2, 8)) for _ in range(24)]
    out += [sentence(rng, every, rng.randrange(2, 6)) for _ in range(150)]
    out += [sentence(rng, every + NUMBERS + EMOJI + PUNCT, rng.randrange(2, 8)) for _ in range(150)]
    out += ["".join(class_pool(rng) for _ in range(rng.randrange(2, 20))) for _ in range(420)]
    out += ["".join(any_code_point(rng) for _ in range(rng.randrange(1, 14))) for _ in range(200)]
    out += ["".join(rng.choice([rng.choice(SPECIALS), rng.choice(every), class_pool(rng)]) for _ in range(rng.randrange(2, 8))) for _ in range(160)]
    out += [chr(rng.randrange(0x21, 0x7F)) * rng.randrange(3, 300) for _ in range(30)]
    out += [rng.choice(SPACES) * rng.randrange(3, 40) + rng.choice(every) for _ in range(40)]
    out += ["".join(rng.choice("abcdefgh") for _ in range(rng.randrange(20, 200))) for _ in range(30)]
    out += ["".join(rng.choice("aeinrst") for _ in range(2000)), "ab" * 1500, "".join(rng.choice(every) for _ in range(300))]
    out += [a + b for a in CODE for b in rng.sample(CODE + SPECIALS, 6)]
    return list(dict.fromkeys(out))


# ---- Vocabularies ---------------------------------------------------------------------------------------------------------


def byte_alphabet():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(0x100 + i) for i, b in enumerate(rest)}


def pieces(strings, pre):
    splitter = splitter_of(pre)
    for s in strings:
        for text, _ in splitter.pre_tokenize_str(s):
            yield text


def train(strings):
    """Plain BPE: the most frequent pair first, ties to the lesser pair, so that every run gives the same merges."""
    words = {}
    for text in pieces(strings, "qwen2"):
        if len(text) <= 60:
            words[text] = words.get(text, 0) + 1
    words = [(list(w), n) for w, n in sorted(words.items())]
    merges = []
    while len(merges) < N_MERGES:
        pairs = {}
        for w, n in words:
            for pair in zip(w, w[1:]):
                pairs[pair] = pairs.get(pair, 0) + n
        best = max(pairs, key=lambda p: (pairs[p], [-ord(c) for c in p[0] + " " + p[1]]))
        merges.append(best)
        for w, _ in words:
            i = 0
            while i + 1 < len(w):
                if (w[i], w[i + 1]) == best:
                    w[i:i + 2] = [w[i] + w[i + 1]]
                i += 1
    return merges


def make_mini(strings):
    merges = train(strings)
    normal = list(byte_alphabet().values())
    for a, b in merges:
        if a + b not in normal:
            normal.append(a + b)
    known = set(normal)
    whole = sorted({t for t in pieces(strings, "llama-bpe") if 6 <= len(t) <= 24 and t not in known})[::25]
    tokens = [(t, gguf.TokenType.USER_DEFINED if t in USER else gguf.TokenType.NORMAL) for t in normal + whole]
    tokens += [(t, gguf.TokenType.CONTROL) for t in CONTROL]
    tokens += [(t, gguf.TokenType.USER_DEFINED) for t in USER if t not in normal + whole]
    tokens += [("[PAD%d]" % i, gguf.TokenType.UNUSED) for i in range(3)]
    path = DATA / "tokenizer-mini.gguf"
    w = gguf.GGUFWriter(path, "qwen3moe")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list([t for t, _ in tokens])
    w.add_token_types([k for _, k in tokens])
    w.add_token_merges([a + " " + b for a, b in merges])
    ids = {t: i for i, (t, _) in enumerate(tokens)}
    w.add_eos_token_id(ids["<|im_end|>"])
    w.add_bos_token_id(ids["<|endoftext|>"])
    w.add_add_bos_token(False)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    return path


def read_vocabulary(path):
    fields = gguf.GGUFReader(path).fields
    get = lambda key: fields["tokenizer.ggml." + key].contents()
    return get("tokens"), get("token_type"), [tuple(m.split(" ", 1)) for m in get("merges")]


def splitter_of(pre):
    if GROUPS[pre] is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    stages = [pre_tokenizers.Split(Regex(p), "isolated") for p in GROUPS[pre]]
    return pre_tokenizers.Sequence(stages + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def make_tokenizer(vocabulary, pre, special):
    tokens, kinds, merges = vocabulary
    ids = {t: i for i, t in enumerate(tokens)}  # added tokens take the ids that the model has for their texts
    assert len(ids) == len(tokens)
    t = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=pre in IGNORE_MERGES))
    t.pre_tokenizer = splitter_of(pre)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(x, special=True, normalized=False) for x, k in zip(tokens, kinds) if k == gguf.TokenType.CONTROL])
    t.add_tokens([AddedToken(x, normalized=False) for x, k in zip(tokens, kinds) if k == gguf.TokenType.USER_DEFINED])
    t.encode_special_tokens = not special
    assert all(t.token_to_id(x) == i for x, i in ids.items())
    return t


# ---- Golden file ----------------------------------------------------------------------------------------------------------


def fnv(ids):
    h = 0x811C9DC5
    for b in b"".join(struct.pack("<I", i) for i in ids):
        h = (h ^ b) * 0x01000193 & 0xFFFFFFFF
    return h


def pack_set(index, special, hashed, pre, encoded, before):
    out = struct.pack("<BBBB20s", index, special, hashed, 0, pre.encode())
    for i, ids in enumerate(encoded):
        if hashed:
            out += struct.pack("<I", fnv(ids))
        elif before is not None and before[i] == ids:
            out += struct.pack("<H", 0xFFFF)
        else:
            out += struct.pack("<H%dH" % len(ids), len(ids), *ids)
    return out


def pack_decodes(vocabularies):
    rng = random.Random(7)
    out = []
    for index, vocabulary in enumerate(vocabularies):
        tokens, kinds, _ = vocabulary
        bytewise = [i for i, t in enumerate(tokens) if len(t) == 1]
        # tokenizers reads added tokens through the byte alphabet, and prints unused ones: leave out what GGUF defines otherwise.
        usable = [i for i, (t, k) in enumerate(zip(tokens, kinds)) if k != gguf.TokenType.UNUSED and t.isascii() or k == gguf.TokenType.NORMAL]
        hf = make_tokenizer(vocabulary, "qwen2", True)
        for n in range(120):
            ids = [rng.choice(rng.choice([usable, bytewise])) for _ in range(rng.randrange(1, 40))]
            special = n % 2
            text = hf.decode(ids, skip_special_tokens=not special).encode()
            out.append(struct.pack("<BBHI%dH" % len(ids), index, special, len(ids), len(text), *ids) + text)
    return struct.pack("<I", len(out)) + b"".join(out)


def main():
    strings = make_strings()
    vocabularies = [read_vocabulary(sys.argv[1]), read_vocabulary(make_mini(strings))]
    texts = [s.encode() for s in strings]
    golden = b"STKTOK01" + struct.pack("<I", len(texts)) + b"".join(struct.pack("<I", len(t)) + t for t in texts)
    sets = [(v, pre, True, False) for v in (0, 1) for pre in ("qwen2", "gpt-2", "llama-bpe")]
    sets += [(1, pre, False, False) for pre in ("llama-bpe", "qwen2")]
    sets += [(1, pre, True, True) for pre in GROUPS if pre not in ("qwen2", "gpt-2", "llama-bpe")]
    golden += struct.pack("<I", len(sets))
    before = None
    for i, (v, pre, special, hashed) in enumerate(sets):
        hf = make_tokenizer(vocabularies[v], pre, special)
        encoded = [hf.encode(s, add_special_tokens=False).ids for s in strings]
        golden += pack_set(v, special, hashed, pre, encoded, before if i and sets[i - 1][0] == v else None)
        before = encoded
    golden += pack_decodes(vocabularies)
    packed = zstandard.ZstdCompressor(level=22, write_checksum=True, write_content_size=True).compress(golden)
    (DATA / "tokenizer-golden.zst").write_bytes(packed)
    print(len(strings), "strings,", len(sets), "sets,", len(golden), "bytes,", len(packed), "compressed")


main()
