#!/usr/bin/env python3
"""Is what is worth reading ahead chosen well? Predicted tokens a second by value and by HybriMoE's impact-driven choice, of the same predictions, on modelled queues.

usage: prefetch.py BUILD_DIR [MODEL.gguf] [--cost FILE] [--traces LIST] [--drives LIST] [--fractions LIST] [--gen N]

A run of the model (the bundled one) is recorded with what the routers of three layers ahead said; the sample traces are predicted by `mix`. Every trace, drive and budget is
replayed on the virtual clock four times: nothing read ahead, what is as likely used as not (`likely`), what makes the most difference to the next layers simulated with and without
it (`impact`), and what saves more than it costs (`value`). The replays are the same on every machine: computing takes what the tables say, for the samples that of a plain desktop,
for the model the built-in one or that of --cost (a file of `stoker doctor --calibrate`).

Exits with 1 where the value rule is more than 1 % behind impact in any configuration, or behind it in the mean.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from math import exp, log
from pathlib import Path

from bench_lib import stoker

ROOT = Path(__file__).resolve().parents[2]
PROMPT = 'Once upon a time there was a small boat on the river'
RULES = ('none', 'likely', 'impact', 'value')
NOISE = 0.01


def record(a, path):
    command = [Path(a.build) / 'stoker', 'run', '-m', a.model, '-p', PROMPT, '-n', a.gen, '--ignore-eos', '--seed', 7, '-c', a.gen + 64]
    ram = int(stoker(a.build, 'inspect', a.model)['expert_bytes'] / 4)
    command += ['--ram', ram, '--lookahead', 3, '--watch', 'off', '--trace', path, '-q']
    subprocess.run([str(x) for x in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def predict(a, trace, sample, drive, fraction, rule):
    options = ['--io', drive, '--fraction', fraction, '--reset', 'none', '-q']
    options += ['--cost', a.cost] if a.cost and not sample else []
    if rule == 'none':
        options += ['--predictor', 'none']
    else:
        options += ['--ahead', rule] + (['--predictor', 'mix', '--lookahead', 2] if sample else [])
    command = [Path(a.build) / 'stoker', 'replay', trace, *options, '--json']  # which warns of costs that nobody measured
    return json.loads(subprocess.run([str(x) for x in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True).stdout)


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument('build')
    p.add_argument('model', nargs='?', default=ROOT / 'tests/data/ember-q4_k_m.gguf')
    p.add_argument('--cost')
    p.add_argument('--traces', default='model qwen gemma gptoss')
    p.add_argument('--drives', default='emu:150M,100us emu:500M,100us emu:1.7G,100us')
    p.add_argument('--fractions', default='0.25 0.5')
    p.add_argument('--gen', type=int, default=500)
    a = p.parse_args()
    gains, worst = [], 0.0
    print('trace,drive,fraction,' + ','.join(f'{r}_tok_s' for r in RULES) + ',value_over_impact,value_over_none,impact_asked,impact_used,value_asked,value_used')
    with tempfile.TemporaryDirectory() as folder:
        for name in a.traces.split():
            sample = name != 'model'
            trace = ROOT / f'traces/samples/{name}.route.csv.zst' if sample else Path(folder) / 'model.trace'
            if not sample:
                record(a, trace)
            for drive in a.drives.split():
                for fraction in a.fractions.split():
                    r = {rule: predict(a, trace, sample, drive, fraction, rule) for rule in RULES}
                    speed = {rule: r[rule]['tok_s'] for rule in RULES}
                    over = speed['value'] / speed['impact']
                    gains.append(log(over))
                    worst = min(worst, over - 1)
                    counts = [r[rule]['stats'][k] for rule in ('impact', 'value') for k in ('n_prefetch', 'n_prefetch_used')]
                    print(f'{name},"{drive}",{fraction},' + ','.join(f'{speed[x]:.2f}' for x in RULES)
                          + f',{over:.4f},{speed["value"] / speed["none"]:.4f},' + ','.join(map(str, counts)), flush=True)
    mean = exp(sum(gains) / len(gains)) - 1
    print(f'value over impact: {mean:+.2%} in the mean, {worst:+.2%} at worst, {len(gains)} configurations')
    return worst < -NOISE or mean < 0


if __name__ == '__main__':
    sys.exit(main())
