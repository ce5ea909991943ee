#!/usr/bin/env python3
"""Does a replay predict time? Compares the tokens a second that `stoker replay --cost` predicts with those that the engine then reaches.

usage: predicted.py BUILD_DIR MODEL.gguf [--cost FILE] [--keep DIR] [--threads N] [--prompt N] [--gen N] [--rounds N] [--ram LIST] [--policies LIST] [--drives LIST]

1. `stoker doctor --calibrate` measures the machine and the model, once, without any of the drives below (--cost FILE: a file of an earlier one).
2. One run is recorded, with the first budget and policy and the machine's own drive. From this trace alone come all predictions: every budget, policy and drive is a
   what-if replay on the file of step 1. Nothing is fitted to what was measured; that the engine corrects its own table as it goes changes no prediction.
3. The engine runs each configuration, --rounds times (the median counts), and so the same tokens, since what is cached never changes the output.

Drives are what --io takes: modelled ones (emu:BANDWIDTH,LATENCY), which must be slower than the real one, and `raw`, the machine's own: predicted with the drive of the
calibration and counted apart. For each configuration: tokens a second of decoding, predicted, measured, and the error; then where the error comes from, by
stage, in milliseconds a token predicted/measured. Exits with 1 where the prediction of a modelled drive is off by more than 10 %, or where recording took more than 1 % of the time of the recorded steps.

With --keep DIR the cost file, the trace and what was measured stay there, and what is there is not done again.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench_lib import stoker

STAGES = ('dense', 'expert', 'arrive', 'wait')
MOST_ERROR = 0.10
MOST_RECORDING = 0.01


class Bench:
    def __init__(self, a, folder):
        self.a = a
        self.folder = Path(folder)
        self.cost = a.cost or self.folder / 'cost.json'
        self.trace = self.folder / 'recorded.trace'
        self.expert_bytes = stoker(a.build, 'inspect', a.model)['expert_bytes']

    def calibrate(self):
        if not Path(self.cost).exists():
            subprocess.run([self.a.build / 'stoker', 'doctor', '-m', self.a.model, '--calibrate', '-q', '-t', str(self.a.threads), '-o', self.cost],
                           check=True, stdout=subprocess.DEVNULL)

    def ram(self, percent):
        return str(int(self.expert_bytes * percent / 100))

    def run(self, percent, policy, drive, *args):
        """Runs the engine from a cold start."""
        tokens = ','.join(str(i * 37 % 1000 + 5) for i in range(self.a.prompt))
        return stoker(self.a.build, 'run', '-m', self.a.model, '--tokens', tokens, '-n', self.a.gen, '--ignore-eos', '--temp', 0, '-s', 1, '-q', '-t',
                      self.a.threads, '--cost', self.cost, '-c', self.a.prompt + self.a.gen + 1, '--ram', self.ram(percent), '--policy', policy,
                      *(() if drive == 'raw' else ('--io', drive)), *args)

    def record(self):
        """Returns what part of its steps' time the run spent on recording."""
        path = self.folder / 'recorded.json'
        if not self.trace.exists() or not path.exists():
            path.write_text(json.dumps(self.run(self.a.ram[0], self.a.policies[0], 'raw', '--trace', self.trace)['stats']))
        stats = json.loads(path.read_text())
        return stats['trace_ns'] / stats['step_ns']

    def measured(self, percent, policy, drive):
        """Nanoseconds a decoded token, by stage, of the round of median length."""
        path = self.folder / f'live-{percent}-{policy}-{drive.replace(":", "-")}.json'
        if path.exists():
            rounds = json.loads(path.read_text())
        else:
            rounds = [self.run(percent, policy, drive)['stats_decode'] for _ in range(self.a.rounds)]
            path.write_text(json.dumps(rounds))
        rounds.sort(key=lambda s: s['step_ns'])
        return by_stage(rounds[len(rounds) // 2])

    def predicted(self, percent, policy, drive):
        r = stoker(self.a.build, 'replay', self.trace, '--cost', self.cost, '--ram', self.ram(percent), '--policy', policy,
                   *(() if drive == 'raw' else ('--io', drive)))
        return by_stage(r['decode'])


def by_stage(stats):
    n = stats.get('n_token') or stats['tokens']
    ns = {stage: stats[stage + '_ns'] / n for stage in STAGES}
    ns['token'] = stats['step_ns'] / n
    ns['other'] = ns['token'] - sum(ns[stage] for stage in STAGES)
    ns['read_bytes'] = stats['read_bytes'] / n
    return ns


def show(name, errors):
    if errors:
        worst = max(errors, key=abs)
        print(f'{name}: {len(errors)} configurations, error {median(abs(e) for e in errors):.1%} in the median, {worst:+.1%} at worst')


def main():
    p = argparse.ArgumentParser()
    p.add_argument('build', type=Path)
    p.add_argument('model')
    p.add_argument('--cost', type=Path)
    p.add_argument('--keep', type=Path)
    for name, default in (('threads', 2), ('prompt', 8), ('gen', 32), ('rounds', 3)):
        p.add_argument('--' + name, type=int, default=default)
    p.add_argument('--ram', type=lambda s: [float(x) for x in s.split(',')], default=[25, 50, 75], help='percent of the experts')
    p.add_argument('--policies', type=lambda s: s.split(','), default=['lru', 'lfu'])
    p.add_argument('--drives', type=str.split, default=['emu:300M,100us', 'emu:700M,100us', 'raw'], help='separated by blanks')
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if a.keep:
            a.keep.mkdir(parents=True, exist_ok=True)
        b = Bench(a, a.keep or scratch)
        b.calibrate()
        recording = b.record()
        print(f'recording the trace took {recording:.2%} of the time of its steps')
        print('  ram  policy   drive               tok/s predicted  measured    error     ms a token, predicted/measured: ' + ', '.join((*STAGES, 'other')) + '; MB read')
        errors = {True: [], False: []}
        for drive in a.drives:
            for policy in a.policies:
                for percent in a.ram:
                    said, took = b.predicted(percent, policy, drive), b.measured(percent, policy, drive)
                    error = took['token'] / said['token'] - 1
                    errors[drive != 'raw'].append(error)
                    stages = '  '.join(f'{said[s] / 1e6:6.2f}/{took[s] / 1e6:6.2f}' for s in (*STAGES, 'other'))
                    print(f'{percent:4g}%  {policy:8} {drive:20}{1e9 / said["token"]:14.2f}{1e9 / took["token"]:10.2f}{error:+9.1%}     {stages}  '
                          f'{said["read_bytes"] / 1e6:.2f}/{took["read_bytes"] / 1e6:.2f}', flush=True)
    show('modelled drives', errors[True])
    show('the raw drive', errors[False])
    sys.exit(recording > MOST_RECORDING or any(abs(e) > MOST_ERROR for e in errors[True]))


if __name__ == '__main__':
    main()
