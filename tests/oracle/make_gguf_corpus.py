#!/usr/bin/env python3
"""Writes tests/fuzz/corpus_gguf: small GGUF files by the `gguf` Python package (pip install gguf numpy), the reference writer.

usage: make_gguf_corpus.py OUT_DIR
"""
import os
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V
from gguf import GGUFWriter
from gguf.quants import quantize

OUT = sys.argv[1]
EMBD, HEADS, KV, DIM, EXPERTS, USED, FF, VOCAB = 32, 4, 2, 8, 3, 2, 32, 300
rng = np.random.default_rng(1)


def byte_chars():
    """The printable stand-in of each byte in byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def tokenizer(w):
    chars = byte_chars()
    merges = ['a b', 'c d', 'ab cd', 'e f', chars[32] + ' a']
    tokens = [chars[b] for b in range(256)] + [m.replace(' ', '') for m in merges]
    types = [1] * len(tokens)
    specials = ['<|endoftext|>', '<|im_start|>', '<|im_end|>']
    tokens += specials
    types += [3] * len(specials)
    while len(tokens) < VOCAB:
        types.append(5)
        tokens.append(f'[PAD{len(tokens)}]')
    w.add_tokenizer_model('gpt2')
    w.add_tokenizer_pre('qwen2')
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_eos_token_id(261)
    w.add_bos_token_id(261)
    w.add_add_bos_token(False)


def put(w, name, shape, kind=T.F32):
    x = rng.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[-1])
    w.add_tensor(name, x if kind == T.F32 else quantize(x, kind), raw_dtype=kind)


def model(path, arch, kind=T.F32, form='stacked', fused_qkv=False, with_tokenizer=False):
    w = GGUFWriter(path, arch)
    w.add_name(os.path.basename(path))
    w.add_block_count(1)
    w.add_context_length(64)
    w.add_embedding_length(EMBD)
    w.add_feed_forward_length(FF)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV)
    w.add_key_length(DIM)
    w.add_value_length(DIM)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_expert_count(EXPERTS)
    w.add_expert_used_count(USED)
    w.add_expert_feed_forward_length(FF)
    if with_tokenizer:
        tokenizer(w)
    put(w, 'token_embd.weight', (VOCAB if with_tokenizer else 20, EMBD), kind)
    put(w, 'output_norm.weight', (EMBD,))
    put(w, 'blk.0.attn_norm.weight', (EMBD,))
    put(w, 'blk.0.ffn_norm.weight', (EMBD,))
    rows = (HEADS * DIM, KV * DIM, KV * DIM)
    if fused_qkv:
        put(w, 'blk.0.attn_qkv.weight', (sum(rows), EMBD), kind)
        put(w, 'blk.0.attn_qkv.bias', (sum(rows),))
    else:
        for name, n in zip('qkv', rows):
            put(w, f'blk.0.attn_{name}.weight', (n, EMBD), kind)
    put(w, 'blk.0.attn_output.weight', (EMBD, HEADS * DIM), kind)
    if arch == 'qwen3moe':
        put(w, 'blk.0.attn_q_norm.weight', (DIM,))
        put(w, 'blk.0.attn_k_norm.weight', (DIM,))
    put(w, 'blk.0.ffn_gate_inp.weight', (EXPERTS, EMBD))
    if form == 'fused':
        put(w, 'blk.0.ffn_gate_up_exps.weight', (EXPERTS, 2 * FF, EMBD), kind)
        put(w, 'blk.0.ffn_down_exps.weight', (EXPERTS, EMBD, FF), kind)
    for part, shape in (('gate', (FF, EMBD)), ('up', (FF, EMBD)), ('down', (EMBD, FF))):
        if form == 'stacked':
            put(w, f'blk.0.ffn_{part}_exps.weight', (EXPERTS, *shape), kind)
        if form == 'single':
            for e in range(EXPERTS):
                put(w, f'blk.0.ffn_{part}.{e}.weight', shape, kind)
    finish(w)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def values(path):
    """Every type of value, and alignment 64."""
    w = GGUFWriter(path, 'none')
    w.add_custom_alignment(64)
    numbers = dict(u8=(200, V.UINT8), i8=(-3, V.INT8), u16=(60000, V.UINT16), i16=(-300, V.INT16), u32=(4000000000, V.UINT32),
                   i32=(-70000, V.INT32), u64=(5000000000, V.UINT64), i64=(-5000000000, V.INT64), f32=(0.5, V.FLOAT32),
                   f64=(1e300, V.FLOAT64), b=(True, V.BOOL), s=('text', V.STRING))
    for key, (value, kind) in numbers.items():
        w.add_key_value('x.' + key, value, kind)
    w.add_array('x.strings', ['', 'one', 'Zwölf'])
    w.add_array('x.ints', [1, 2, 3])
    w.add_array('x.floats', [0.5, 1.5])
    w.add_array('x.bools', [True, False])
    for kind in (T.F32, T.F16, T.BF16, T.Q8_0, T.Q4_0):
        put(w, 't.' + kind.name.lower(), (2, 32), kind)
    finish(w)


os.makedirs(OUT, exist_ok=True)
values(os.path.join(OUT, 'values.gguf'))
model(os.path.join(OUT, 'model_qwen3moe_q4_0_tokenizer.gguf'), 'qwen3moe', T.Q4_0, with_tokenizer=True)
model(os.path.join(OUT, 'model_qwen3moe_q8_0_fused.gguf'), 'qwen3moe', T.Q8_0, form='fused', fused_qkv=True)
model(os.path.join(OUT, 'model_llama_q4_0_single.gguf'), 'llama', T.Q4_0, form='single')
model(os.path.join(OUT, 'model_llama_bf16.gguf'), 'llama', T.BF16)
