#!/usr/bin/env python3
"""Random models with rows of several blocks and prompts longer than a span of attention, against Hugging Face transformers.

Float weights: within 2e-3. Quantized weights meet int8 activations, where one rounding that falls the other way changes all that follows: two correct
implementations agree to the size of the quantization error (`noise` of golden.json, about 2e-2 relative to the logits), a wrong layout gives 1.
"""
from harness import DATA, check, expect, finish, floats, load_json, logits, made_model, sha256

MAX_DIFFERENCE, MAX_NOISE = 2e-3, 3.0


def near(name, g, path):
    n, want = g['n_vocab'], floats((DATA / 'golden' / f'{name}.logits').read_bytes())
    got = floats(logits(path, g['prompt']))
    expect(len(got) == n * len(g['prompt']), f'{len(got)} logits')
    relative, worst = [], 0.0
    for i, row in enumerate(g['rows']):
        a, b = got[row * n:(row + 1) * n], want[i * n:(i + 1) * n]
        worst = max(worst, max(abs(x - y) if x == x else float('inf') for x, y in zip(a, b)))
        relative.append((sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b)) ** 0.5)
    if 'mixed' not in name:
        expect(worst <= MAX_DIFFERENCE, f'max difference {worst}; by row {dict(zip(g["rows"], (round(r, 6) for r in relative)))}')
        return f'max difference {worst:.1e}'
    median, bound = sorted(relative)[len(relative) // 2], MAX_NOISE * g['noise']['relative']
    expect(median <= bound, f'median relative difference {median:.4f} > {bound:.4f}; by row {dict(zip(g["rows"], (round(r, 4) for r in relative)))}')
    return f'median relative difference {median:.4f}, between float32 and float64 {g["noise"]["relative"]:.4f}'


def main():
    for name, g in load_json(DATA / 'golden' / 'golden.json').items():
        path = check(f'golden {name}: made', lambda: str(made_model(f'golden-{name}', g['preset'], *g['options'])))
        if path and check(f'golden {name}: the file is the one measured', lambda: expect(sha256(path) == g['sha256'], 'another SHA-256 than in golden.json')):
            check(f'golden {name}: logits', near, name, g, path)
    finish()


main()
