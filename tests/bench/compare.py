#!/usr/bin/env python3
"""Compares prefill and decode speed with other engines on one model, in interleaved runs; prints medians and their ratios.

usage: compare.py BUILD_DIR MODEL.gguf --peer 'NAME=LLAMA_BENCH [FLAG...]'... [--own 'NAME=BUILD_DIR'...] [--rounds N] [--threads N] [--prompt N] [--gen N] [--reps N] [--depth N]

    --peer 'llama.cpp=llama.cpp/build/bin/llama-bench -mmp 0' --peer 'ik -rtr 1=ik_llama.cpp/build/bin/llama-bench -rtr 1 -mmp 0'

A peer is a llama-bench, or a fork's, with the flags that are best for it; the best of all peers counts for the ratio of each test. --own is another build of
stoker, measured as the peers are. Every round runs each engine once, in an order that moves on by one, so that what else the machine does meets all. All warm
up before they measure and use f16 KV and random tokens. Exits with 1 below the goals: decode 1.0 times, prefill 0.8 times the best peer.
"""
import argparse
import json
import shlex
import subprocess
import sys
from statistics import median

from bench_lib import bench, spread

GOALS = {'gen': 1.0, 'prompt': 0.8}


def peer(command, a):
    depth = ['-d', a.depth] if a.depth else []
    args = [*command, '-m', a.model, '-p', a.prompt, '-n', a.gen, '-t', a.threads, '-r', a.reps, '-o', 'json', *depth]
    out = subprocess.run([str(x) for x in args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True).stdout
    return {('prompt' if t['n_prompt'] else 'gen'): t['samples_ts'] for t in json.loads(out[out.index('['):])}


def ours(build, a):
    tests = bench(build, a.model, p=a.prompt, n=a.gen, t=a.threads, r=a.reps, d=a.depth or None)
    return {name: tests[test]['samples'] for name, test in (('prompt', 'pp'), ('gen', 'tg')) if test in tests}


def named(text):
    name, equals, command = text.partition('=')
    if not equals or not command:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=COMMAND")
    return name, shlex.split(command)


def main():
    p = argparse.ArgumentParser()
    p.add_argument('build')
    p.add_argument('model')
    p.add_argument('--peer', type=named, action='append', default=[])
    p.add_argument('--own', type=named, action='append', default=[])
    for name, default in (('rounds', 5), ('threads', 2), ('prompt', 512), ('gen', 64), ('reps', 3), ('depth', 0)):
        p.add_argument('--' + name, type=int, default=default)
    a = p.parse_args()
    engines = {'stoker': lambda: ours(a.build, a)}
    engines |= {name: lambda build=command[0]: ours(build, a) for name, command in a.own}
    engines |= {name: lambda command=command: peer(command, a) for name, command in a.peer}
    if len(engines) != 1 + len(a.own) + len(a.peer) or len(engines) < 2:
        p.error('give at least one --peer or --own, each with a name of its own')
    tests = [t for t, n in (('prompt', a.prompt), ('gen', a.gen)) if n]
    speed = {t: {name: [] for name in engines} for t in tests}
    for i in range(a.rounds):
        for name in (list(engines) * 2)[i % len(engines):][:len(engines)]:
            for t, values in engines[name]().items():
                speed[t][name] += values
            print(f'round {i + 1}: {name}: ' + ', '.join(f'{t} {median(speed[t][name][-a.reps:]):.2f} tok/s' for t in tests), flush=True)
    missed = False
    for t in tests:
        print(f'\n{t} ({a.prompt if t == "prompt" else a.gen} tokens), tok/s')
        for name in engines:
            print(f'  {name:16}{spread(speed[t][name])}   stoker over it {median(speed[t]["stoker"]) / median(speed[t][name]):.3f}')
        best = max((median(speed[t][name]) for name, _ in a.peer), default=0)
        if best:
            ratio = median(speed[t]['stoker']) / best
            missed |= ratio < GOALS[t]
            print(f'  over the best peer {ratio:.3f} (goal {GOALS[t]})')
    sys.exit(missed)


if __name__ == '__main__':
    main()
