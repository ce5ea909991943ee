#!/usr/bin/env python3
"""Tiny random models of both families, odd sizes, F32 and BF16: logits within 2e-3 of Hugging Face transformers, 64 greedy tokens equal."""
from harness import DATA, check, expect, finish, floats, load_json, logits, need, probe, sha256

MAX_DIFFERENCE = 2e-3


def near(name, golden, **flags):
    want = floats((DATA / 'tiny' / f'{name}.logits').read_bytes())
    got = floats(logits(DATA / 'tiny' / f'{name}.gguf', golden['prompt'], **flags))
    expect(len(got) == len(want), f'{len(got)} logits, not {len(want)}')
    worst = max(range(len(want)), key=lambda i: abs(got[i] - want[i]) if got[i] == got[i] else float('inf'))
    row, token = divmod(worst, golden['n_vocab'])
    expect(abs(got[worst] - want[worst]) <= MAX_DIFFERENCE, f'position {row}, token {token}: {got[worst]}, not {want[worst]}')
    return f'max difference {abs(got[worst] - want[worst]):.1e}'


def greedy(name, golden):
    lines = probe('greedy', DATA / 'tiny' / f'{name}.gguf', kv='f32', ctx=128, n=len(golden['greedy']), tokens=','.join(map(str, golden['prompt'])))
    got = [int(x) for x in lines[''].split(',')]
    for i, (g, w) in enumerate(zip(got, golden['greedy'])):
        expect(g == w, f'token {i} is {g}, not {w}')
    expect(len(got) == len(golden['greedy']), f'{len(got)} tokens')


def main():
    for name, golden in load_json(DATA / 'tiny' / 'golden.json').items():
        path = need(DATA / 'tiny' / f'{name}.gguf')
        check(f'tiny {name}: the file is the one measured', lambda: expect(sha256(path) == golden['sha256'], 'another SHA-256 than in golden.json'))
        check(f'tiny {name}: logits in one chunk', near, name, golden)
        check(f'tiny {name}: logits token by token', near, name, golden, chunk='1')
        check(f'tiny {name}: 64 greedy tokens', greedy, name, golden)
    finish()


main()
