#!/usr/bin/env python3
"""The trained model in three formats: perplexity of each held-out text, and greedy continuations in BF16, against Hugging Face transformers."""
import json

from harness import SHARED, check, expect, finish, fast_or_skipped, load_json, need, probe, stoker

TOLERANCE = {'ember-bf16.gguf': 0.0005, 'ember-q8_0.gguf': 0.003, 'ember-q4_k_m.gguf': 0.003}


def perplexity(model, text, want, tolerance, *options):
    r = stoker('perplexity', '-m', model, '-f', SHARED / 'model' / f'heldout_{text}.txt', '-c', '256', '--json', *options).expect_success()
    if options:
        fast_or_skipped(r)
    got = json.loads(r.out)
    off = got['perplexity'] / want['value'] - 1
    expect(abs(off) <= tolerance, f'{got["perplexity"]:.5f} is {100 * off:+.3f} % off {want["value"]}, more than {100 * tolerance} %')
    expect(got['n_tokens'] in (want['scored'], want['tokens']), f'{got["n_tokens"]} tokens; {want["scored"]} are scored of {want["tokens"]}')
    return f'{got["perplexity"]:.5f}, {100 * off:+.4f} %'


def greedy(model, want):
    got = probe('greedy', model, kv='f32', n=len(want['ids']), tokens=','.join(map(str, want['prompt_ids'])))['']
    for i, (g, w) in enumerate(zip(map(int, got.split(',')), want['ids'])):
        expect(g == w, f'token {i} is {g}, not {w}')


def text(model, want):
    r = stoker('run', '-m', model, '-p', want['prompt'], '-n', len(want['ids']), '--temp', '0', '--ignore-eos', '-ctk', 'f32', '-ctv', 'f32').expect_success()
    got = r.out.decode()
    expect(got.strip().removeprefix(want['prompt'].strip()).strip() == want['text'].strip(), f'printed {got!r}')


def reference():
    return load_json(need(SHARED / 'model' / 'reference.json'))


def main():
    r = None
    check('trained: the reference is here', lambda: reference() and None)
    if (SHARED / 'model' / 'reference.json').exists():
        r = reference()
    for name, tolerance in TOLERANCE.items() if r else ():
        model = SHARED / 'model' / name
        for t, want in r[name]['perplexity'].items():
            check(f'trained {name}: perplexity of {t}', perplexity, model, t, want, tolerance)
        for t, want in r[name]['perplexity'].items() if 'bf16' in name else ():
            check(f'trained {name}: perplexity of {t}, --float fast', perplexity, model, t, want, tolerance, '--float', 'fast')
        for i, want in enumerate(r[name]['greedy']) if 'bf16' in name else ():
            check(f'trained {name}: greedy continuation {i}', greedy, model, want)
            check(f'trained {name}: the same as text {i}', text, model, want)
    finish()


main()
