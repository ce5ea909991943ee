#!/usr/bin/env python3
"""Writes the tiny models of tests/data/tiny and what Hugging Face transformers says of them.

usage: make_tiny_models.py OUT_DIR

Random models of both families with odd sizes, in F32 and BF16. For each: NAME.gguf; NAME.logits, float32 [n_prompt, n_vocab] of the prompt; and in
golden.json the prompt, 64 greedy tokens and the smallest gap between the two best logits on the way, at least MIN_GAP by choice of
the seed (so that float32 rounding cannot change a token). The files differ in what a reader must cope with: tied and separate output, alignment,
a tokenizer that is missing, minimal or of another kind, head sizes that are given or follow from the embedding.
"""
import hashlib
import json
import sys
from pathlib import Path

import gguf
import numpy as np

from hf_reference import Model, interleave

MIN_GAP, MIN_ROUTER_GAP, N_PROMPT, N_GREEDY = 0.02, 1e-4, 20, 64
T = gguf.GGMLQuantizationType

SHAPES = {
    'qwen3moe-f32': dict(arch='qwen3moe', type=T.F32, embd=44, layers=3, heads=4, kv=2, head_dim=16, experts=5, used=2, ff=27, vocab=131, tied=False,
                         theta=1e4, eps=1e-6, align=32, tokenizer='gpt2'),
    'qwen3moe-bf16': dict(arch='qwen3moe', type=T.BF16, embd=74, layers=2, heads=6, kv=3, head_dim=24, experts=7, used=3, ff=35, vocab=139, tied=True,
                          theta=1e6, eps=1e-6, align=8, tokenizer=None),
    'llama-f32': dict(arch='llama', type=T.F32, embd=48, layers=3, heads=6, kv=2, head_dim=8, experts=6, used=2, ff=21, vocab=133, tied=True,
                      theta=1e6, eps=1e-5, align=64, tokenizer=None, implied_head_dim=True),
    'llama-bf16': dict(arch='llama', type=T.BF16, embd=90, layers=2, heads=4, kv=1, head_dim=40, experts=5, used=2, ff=33, vocab=137, tied=False,
                       theta=1e4, eps=1e-5, align=32, tokenizer='llama'),
}


def tensors(s, rng):
    """Name -> float32 array, in GGUF's layout (before interleaving)."""
    def matrix(rows, n_in, gain=1.0, lead=()):
        return (rng.standard_normal((*lead, rows, n_in)) * (gain / np.sqrt(n_in))).astype(np.float32)

    def norm(n):
        return (1.0 + 0.2 * rng.standard_normal(n)).astype(np.float32)

    d, q, kv = s['embd'], s['heads'] * s['head_dim'], s['kv'] * s['head_dim']
    out = {'token_embd.weight': matrix(s['vocab'], d, 4.0)}
    for i in range(s['layers']):
        b = f'blk.{i}.'
        out |= {b + 'attn_norm.weight': norm(d), b + 'attn_q.weight': matrix(q, d, 2.0), b + 'attn_k.weight': matrix(kv, d, 2.0),
                b + 'attn_v.weight': matrix(kv, d), b + 'attn_output.weight': matrix(d, q, 1.5)}
        if s['arch'] == 'qwen3moe':
            out |= {b + 'attn_q_norm.weight': norm(s['head_dim']), b + 'attn_k_norm.weight': norm(s['head_dim'])}
        out |= {b + 'ffn_norm.weight': norm(d), b + 'ffn_gate_inp.weight': matrix(s['experts'], d, 2.0),
                b + 'ffn_gate_exps.weight': matrix(s['ff'], d, 1.5, (s['experts'],)), b + 'ffn_up_exps.weight': matrix(s['ff'], d, 1.5, (s['experts'],)),
                b + 'ffn_down_exps.weight': matrix(d, s['ff'], 2.0, (s['experts'],))}
    out['output_norm.weight'] = norm(d)
    if not s['tied']:
        out['output.weight'] = matrix(s['vocab'], d, 4.0)
    return out


def add_tokenizer(w, s):
    if s['tokenizer'] is None:
        return
    n = s['vocab']
    w.add_tokenizer_model(s['tokenizer'])
    if s['tokenizer'] == 'gpt2':  # printable bytes alone, no merges
        w.add_tokenizer_pre('qwen2')
        w.add_token_list([chr(33 + i) if i < 94 else f'<|x{i}|>' for i in range(n)])
        w.add_token_types([1 if i < 94 else 3 for i in range(n)])
        w.add_token_merges([])
    else:  # SentencePiece, as Mixtral files carry it
        w.add_token_list([f'<0x{i:02X}>' for i in range(n)])
        w.add_token_scores([-float(i) for i in range(n)])
        w.add_token_types([6] * n)
    w.add_eos_token_id(n - 1)


def write(path, s, seed):
    w = gguf.GGUFWriter(path, s['arch'])
    if s['align'] != 32:
        w.add_custom_alignment(s['align'])
    w.add_name(f'tiny-{path.stem}')
    w.add_context_length(256)
    w.add_embedding_length(s['embd'])
    w.add_block_count(s['layers'])
    w.add_feed_forward_length(s['ff'])
    w.add_head_count(s['heads'])
    w.add_head_count_kv(s['kv'])
    if not s.get('implied_head_dim'):
        w.add_key_length(s['head_dim'])
        w.add_value_length(s['head_dim'])
        w.add_rope_dimension_count(s['head_dim'])
    w.add_layer_norm_rms_eps(s['eps'])
    w.add_rope_freq_base(s['theta'])
    w.add_expert_count(s['experts'])
    w.add_expert_used_count(s['used'])
    if s['arch'] == 'qwen3moe':
        w.add_expert_feed_forward_length(s['ff'])
    add_tokenizer(w, s)
    for name, x in tensors(s, np.random.Generator(np.random.PCG64(seed))).items():
        heads = {'attn_q': s['heads'], 'attn_k': s['kv']}.get(name.split('.')[-2])
        if s['arch'] == 'llama' and heads:
            x = interleave(x, heads)
        if x.ndim == 1 or 'ffn_gate_inp' in name or s['type'] == T.F32:
            w.add_tensor(name, np.ascontiguousarray(x))
        else:
            w.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(x), s['type']), raw_dtype=s['type'])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make(out, name, s):
    for seed in range(1, 500):
        path = out / f'{name}.gguf'
        write(path, s, seed)
        m = Model(path)
        prompt = [int(x) for x in np.random.Generator(np.random.PCG64(seed)).integers(0, s['vocab'], N_PROMPT)]
        greedy, gap = m.greedy(prompt, N_GREEDY)
        if gap >= MIN_GAP and len(set(greedy)) >= 16 and m.router_gap(prompt + greedy) >= MIN_ROUTER_GAP:
            break
    else:
        sys.exit(f'{name}: no seed has the gap')
    logits = m.logits(prompt).astype('<f4')
    (out / f'{name}.logits').write_bytes(logits.tobytes())
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    print(f'{name}: seed {seed}, gap {gap:.4f}, {len(set(greedy))} distinct greedy tokens, logits std {logits.std():.2f}, {path.stat().st_size} bytes', flush=True)
    return dict(seed=seed, sha256=sha, n_vocab=s['vocab'], prompt=prompt, greedy=greedy, smallest_gap=gap)


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    golden = {name: make(out, name, s) for name, s in SHAPES.items()}
    (out / 'golden.json').write_text(json.dumps(golden, indent=None).replace('}, ', '},\n') + '\n')


if __name__ == '__main__':
    main()
