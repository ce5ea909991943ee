#!/usr/bin/env python3
"""Does reading hide behind computing? Compares the median time of a token with what the parts alone would take.

usage: streaming.py BUILD_DIR MODEL.gguf [--rounds N] [--threads N] [--gen N] [--ram PERCENT] [--io SPEC] [--modelled] [--predictor NAME]

First without misses (all experts in RAM): the dense and the expert time of a token. Then with RAM for --ram percent of the experts, on the real drive, whose
speed is measured just before and after with the engine's own pattern of reads: a token should take at most dense + 1.25 x max(bytes missed / read speed,
expert compute). --modelled: on a modelled drive whose time for the missed bytes equals the expert compute time: at most dense + 1.2 x that.
Arrivals (bringing read experts into their layout) count as what they are, part of the overhead that the factor allows. Exits with 1 above the bound.
"""
import argparse
import sys
from statistics import median

from bench_lib import bench_model, middle


def part(rows, name):
    return middle(rows, 'gen', name)


def one_round(a, warm, bandwidth):
    io = f'emu:{int(bandwidth)},20us' if bandwidth else a.io
    rows = bench_model(a.build, a.model, prompt=64, gen=a.gen, reps=3, t=a.threads, ram=f'{a.ram}%', io=io, drive=None if bandwidth else a.drive, predictor=a.predictor)
    read_s = bandwidth or median(r['tok_s'] for r in rows if r['test'] == 'drive')
    ahead, used = part(rows, 'prefetches'), part(rows, 'prefetches_used')
    read_ns = part(rows, 'read_bytes') / read_s * 1e9
    dense, expert = part(warm, 'dense_ns'), part(warm, 'expert_ns')
    bound = dense + a.factor * max(read_ns, expert)
    took = part(rows, 'median_ns')
    print(f'token {took / 1e6:7.2f} ms, bound {bound / 1e6:7.2f} ms = dense {dense / 1e6:.2f} + {a.factor} x max(read {read_ns / 1e6:.2f}, expert {expert / 1e6:.2f}); '
          f'{part(rows, "misses"):.1f} misses, {ahead:.1f} read ahead ({used:.1f} used), {part(rows, "bytes") / 1e6:.1f} MB a token, drive {read_s / 1e9:.2f} GB/s, waited {part(rows, "wait_ns") / 1e6:.2f} ms, '
          f'arrivals {part(rows, "arrive_ns") / 1e6:.2f} ms', flush=True)
    return took / bound


def main():
    p = argparse.ArgumentParser()
    p.add_argument('build')
    p.add_argument('model')
    for name, default in (('rounds', 3), ('threads', 2), ('gen', 64), ('ram', 50), ('drive', 4)):
        p.add_argument('--' + name, type=int, default=default)
    p.add_argument('--io')
    p.add_argument('--predictor')
    p.add_argument('--modelled', action='store_true')
    a = p.parse_args()
    a.factor = 1.2 if a.modelled else 1.25
    ratios = []
    for _ in range(a.rounds):
        warm = bench_model(a.build, a.model, prompt=512, gen=a.gen, reps=3, t=a.threads, ram='110%')
        bandwidth = None
        if a.modelled:
            rows = bench_model(a.build, a.model, prompt=64, gen=a.gen, reps=1, t=a.threads, ram=f'{a.ram}%')
            bandwidth = part(rows, 'read_bytes') / part(warm, 'expert_ns') * 1e9
        ratios.append(one_round(a, warm, bandwidth))
    print(f'token time / bound: {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} rounds)')
    sys.exit(median(ratios) > 1.0)


if __name__ == '__main__':
    main()
