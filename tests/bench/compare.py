#!/usr/bin/env python3
"""Compares prefill and decode speed with llama.cpp on one model, in interleaved runs; prints medians and their ratio.

usage: compare.py LLAMA_BENCH BUILD_DIR MODEL.gguf [--rounds N] [--threads N] [--prompt N] [--gen N] [--reps N]

Every round runs one engine and then the other, the one that begins alternating, so that what else the machine does meets both. Both warm up before they
measure, use f16 KV and random tokens from an empty context. Exits with 1 below the project's goals: decode 1.0 times, prefill 0.8 times.
"""
import argparse
import json
import subprocess
import sys
from statistics import median

from bench_lib import bench, spread

GOALS = {'gen': 1.0, 'prompt': 0.8}


def peer(a):
    args = [a.llama_bench, '-m', a.model, '-p', a.prompt, '-n', a.gen, '-t', a.threads, '-r', a.reps, '-mmp', 0, '-o', 'json']
    out = subprocess.run([str(x) for x in args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True).stdout
    return {('prompt' if t['n_prompt'] else 'gen'): t['samples_ts'] for t in json.loads(out)}


def ours(a):
    tests = bench(a.build, a.model, p=a.prompt, n=a.gen, t=a.threads, r=a.reps)
    return {'prompt': tests['pp']['samples'], 'gen': tests['tg']['samples']}


def main():
    p = argparse.ArgumentParser()
    p.add_argument('llama_bench')
    p.add_argument('build')
    p.add_argument('model')
    for name, default in (('rounds', 3), ('threads', 2), ('prompt', 512), ('gen', 64), ('reps', 3)):
        p.add_argument('--' + name, type=int, default=default)
    a = p.parse_args()
    speed = {engine: {t: [] for t in GOALS} for engine in ('stoker', 'llama.cpp')}
    for i in range(a.rounds):
        for engine, run in (('stoker', ours), ('llama.cpp', peer))[::1 if i % 2 == 0 else -1]:
            for t, values in run(a).items():
                speed[engine][t] += values
            print(f'round {i + 1}: {engine}: ' + ', '.join(f'{t} {median(v[-a.reps:]):.2f} tok/s' for t, v in speed[engine].items()), flush=True)
    missed = False
    for t, goal in GOALS.items():
        ratio = median(speed['stoker'][t]) / median(speed['llama.cpp'][t])
        missed |= ratio < goal
        print(f'\n{t} ({a.prompt if t == "prompt" else a.gen} tokens), tok/s\n  stoker     {spread(speed["stoker"][t])}\n  llama.cpp  {spread(speed["llama.cpp"][t])}'
              f'\n  ratio      {ratio:9.3f}   (goal {goal})')
    sys.exit(missed)


if __name__ == '__main__':
    main()
