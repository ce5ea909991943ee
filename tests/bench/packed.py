#!/usr/bin/env python3
"""What packing a model brings: decode with RAM for a part of the experts, plain and packed in turns.

usage: packed.py BUILD_DIR MODEL.gguf PACKED.gguf [--rounds N] [--threads N] [--gen N] [--ram 30,50,75] [--io SPEC]

PACKED is what `stoker pack -m MODEL` wrote. --ram is in percent of the bytes of all experts, the same bytes for both. Prints each run, then medians: a token,
its parts, and the bytes that it reads.
"""
import argparse
from statistics import median

from bench_lib import bench


def main():
    p = argparse.ArgumentParser()
    p.add_argument('build')
    p.add_argument('model')
    p.add_argument('packed')
    for name, default in (('rounds', 3), ('threads', 2), ('gen', 32)):
        p.add_argument('--' + name, type=int, default=default)
    p.add_argument('--ram', default='50')
    p.add_argument('--io')
    a = p.parse_args()
    models = {'plain': a.model, 'packed': a.packed}
    for percent in map(int, a.ram.split(',')):
        runs = {name: [] for name in models}
        for r in range(a.rounds):
            for name in sorted(models, reverse=r % 2 == 0):
                test = bench(a.build, models[name], p=0, n=a.gen, r=2, t=a.threads, ram_percent=percent, io=a.io, watch='off')['tg']
                runs[name].append(test)
                print(f'--ram {percent} %, {name}: {test["median_ns"] / 1e6:.2f} ms a token', flush=True)
        for name, tests in runs.items():
            token = {key: median(t['token'][key] for t in tests) for key in ('dense_ns', 'expert_ns', 'arrive_ns', 'wait_ns', 'read_bytes', 'n_miss')}
            took = [t['median_ns'] / 1e6 for t in tests]
            print(f'--ram {percent} %, {name}: {median(took):.2f} ms ({min(took):.2f} to {max(took):.2f}): dense {token["dense_ns"] / 1e6:.2f}, experts '
                  f'{token["expert_ns"] / 1e6:.2f}, packing {token["arrive_ns"] / 1e6:.2f}, waiting {token["wait_ns"] / 1e6:.2f}; '
                  f'{token["n_miss"]:.1f} misses, {token["read_bytes"] / 1e6:.1f} MB read')


if __name__ == '__main__':
    main()
