#!/usr/bin/env python3
"""Is what `stoker tune` finds faster, and by as much as it says? Records runs of some prompts, tunes, and runs others with the profile and without, in turns.

usage: tuned.py BUILD_DIR MODEL.gguf [--ram PERCENT] [--io SPEC] [--gen N] [--rounds N] [--threads N] [--keep DIR]

The prompts that are measured are not those that were tuned with; routing and costs are recorded on the real drive. The modelled one reads for real, too, and holds
back what comes early, so it has to be the slower of the two. The default is what `stoker run` does without options: lru, one cache, the next layer's router
one layer ahead. Prints each round and the medians; exits with 1 where the profile is not faster, or where the speed-up is not within 10 % of what tune said:
|measured ratio / predicted ratio - 1| <= 0.1.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench_lib import stoker

TUNED = ('Once upon a time there was a king', 'The old captain looked at the sea', 'In the beginning', 'It was a dark night in the forest',
         'The nature of knowledge is', 'My dear friend, I have', 'She opened the door and', 'There are three kinds of')
MEASURED = ('A poor woodcutter lived with his daughter', 'He took his hat and went out', 'And the people said unto him', 'The first principle of reason')


def run(a, prompt, seed, *flags):
    """Tokens a second of decoding, and its counters."""
    out = stoker(a.build, 'run', '-m', a.model, '-p', prompt, '-n', a.gen, '--ignore-eos', '--temp', 0.8, '-s', seed, '-t', a.threads, '-q', *flags)
    return out['speed']['decode'], out['stats_decode']


def record(a, work, ram):
    traces = []
    for i, prompt in enumerate(TUNED):
        traces.append(work / f'{i}.trace')
        run(a, prompt, i + 1, '--ram', ram, '--lookahead', 3, '--trace', traces[-1])
    return traces


def tune(a, work, traces, ram):
    profile = work / 'tuned.profile'
    args = [Path(a.build) / 'stoker', 'tune', *traces, '-m', a.model, '--ram', ram, '--io', a.io, '-o', profile, '--report', work / 'tuned.html', '--json']
    if a.cost:
        args += ['--cost', a.cost]
    return json.loads(subprocess.run([str(x) for x in args], stdout=subprocess.PIPE, check=True, text=True).stdout), profile


def measure(a, profile, ram):
    """Ratios of speeds, one for each round and prompt, and the speeds."""
    plain, tuned = [], []
    for r in range(a.rounds):
        for i, prompt in enumerate(MEASURED):
            seed = 1000 + 10 * r + i
            one = (run(a, prompt, seed, '--io', a.io, '--ram', ram), run(a, prompt, seed, '--io', a.io, '--profile', profile))
            plain.append(one[0])
            tuned.append(one[1])
            hit = [s['n_hit'] / s['n_lookup'] for _, s in one]
            print(f'round {r} prompt {i}: default {one[0][0]:8.2f} tok/s, {100 * hit[0]:.1f} % hits; tuned {one[1][0]:8.2f} tok/s, {100 * hit[1]:.1f} % hits; '
                  f'ratio {one[1][0] / one[0][0]:.3f}', flush=True)
    return [t[0] / p[0] for t, p in zip(tuned, plain)], plain, tuned


def total_speed(runs):
    """Over all runs: tokens by time."""
    return sum(s['n_token'] for _, s in runs) * 1e9 / sum(s['step_ns'] for _, s in runs)


def main():
    p = argparse.ArgumentParser()
    p.add_argument('build')
    p.add_argument('model')
    for name, default in (('ram', 25), ('gen', 120), ('rounds', 3), ('threads', 1)):
        p.add_argument('--' + name, type=int, default=default)
    p.add_argument('--io', default='emu:40M,100us')
    p.add_argument('--cost')
    p.add_argument('--keep', help='a directory for traces, profile and report')
    a = p.parse_args()
    info = stoker(a.build, 'inspect', a.model)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(a.keep or scratch)
        work.mkdir(exist_ok=True)
        ram = int(info['expert_bytes'] * a.ram / 100)
        said, profile = tune(a, work, record(a, work, ram), ram)
        print(f'tune: {said["policy"]}, {said["scope"]}{" fitted" if said["fitted"] else ""}, {said["predictor"]} {said["lookahead"]} ahead; '
              f'predicted {said["tok_s"]:.2f} tok/s beside {said["default_tok_s"]:.2f}: {100 * said["margin"]:+.1f} % '
              f'({100 * said["margin_low"]:+.1f} to {100 * said["margin_high"]:+.1f}), {said["replays"]} replays', flush=True)
        ratios, plain, tuned = measure(a, profile, ram)
    ratio = total_speed(tuned) / total_speed(plain)
    off = ratio / (1 + said['margin']) - 1
    print(f'measured {total_speed(tuned):.2f} tok/s beside {total_speed(plain):.2f}: {100 * (ratio - 1):+.1f} % (median of runs {100 * (median(ratios) - 1):+.1f}, '
          f'{100 * (min(ratios) - 1):+.1f} to {100 * (max(ratios) - 1):+.1f}); predicted {100 * said["margin"]:+.1f} %; the ratio is {100 * off:+.1f} % off')
    sys.exit(not (ratio > 1 and median(ratios) > 1 and abs(off) <= 0.1))


if __name__ == '__main__':
    main()
