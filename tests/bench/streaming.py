#!/usr/bin/env python3
"""Does reading hide behind computing? Compares the median time of a token with what the parts alone would take.

usage: streaming.py BUILD_DIR MODEL.gguf [--rounds N] [--threads N] [--gen N] [--ram PERCENT] [--io SPEC] [--modelled] [--predictor NAME] [--cpu NAME] [--blank]

First without misses (all experts in RAM): the dense and the expert time of a token. Then with RAM for --ram percent of the experts, on the real drive, whose
speed is measured just before and after with the engine's own pattern of reads: a token should take at most dense + 1.25 x max(bytes missed / read speed,
expert compute). --modelled: on a modelled drive whose time for the missed bytes equals the expert compute time: at most dense + 1.2 x that.

--blank: the modelled drive moves no bytes once RAM is full: a drive that costs the CPU and its memory nothing, which shows the schedule alone.

Bytes missed are those of misses and of what was read ahead and then used; wrong guesses are overhead, like arrivals (bringing what was read into its layout).
Two ratios are printed: with the dense and expert times of the run without misses, and with those of the run itself: a drive at work takes memory bandwidth
from the CPU, which no schedule can give back. Exits with 1 where the first is above 1.
"""
import argparse
import sys
from statistics import median

from bench_lib import bench


def drive(test):
    """What the engine's own reads reached, in the middle of before and after the test."""
    return (test['limits']['drive_bytes_per_s'] + test['limits']['drive_after_bytes_per_s']) / 2


def missed_bytes(token):
    """Bytes a token read because they were not there: misses, and what was read ahead and then used."""
    return token['read_bytes'] * (token['n_miss'] + token['n_prefetch_used']) / (token['n_miss'] + token['n_prefetch'])


def one_round(a, warm, bandwidth):
    io = f'emu:{int(bandwidth)},20us' + (f',blank={7 * a.n_slot}' if a.blank else '') if bandwidth else a.io
    options = dict(t=a.threads, ram_percent=a.ram, io=io, p=0, predictor=a.predictor, cpu=a.cpu, watch='off')
    test = bench(a.build, a.model, '--limits', n=a.gen, r=3, **options)['tg']
    read_s = bandwidth or drive(test)
    token, dense, expert = test['token'], warm['token']['dense_ns'], warm['token']['expert_ns']
    missed = missed_bytes(token)
    read_ns = missed / read_s * 1e9
    bound = dense + a.factor * max(read_ns, expert)
    loaded = token['dense_ns'] + a.factor * max(read_ns, token['expert_ns'])
    took = test['median_ns']
    print(f'token {took / 1e6:7.2f} ms, bound {bound / 1e6:7.2f} ms = dense {dense / 1e6:.2f} + {a.factor} x max(read {read_ns / 1e6:.2f}, expert {expert / 1e6:.2f}); '
          f'{token["n_miss"]:.1f} misses, {token["n_prefetch"]:.1f} read ahead ({token["n_prefetch_used"]:.1f} used), {missed / 1e6:.1f} MB missed, '
          f'{token["read_bytes"] / 1e6:.1f} MB read, '
          f'drive {read_s / 1e9:.2f} GB/s, waited {token["wait_ns"] / 1e6:.2f} ms, arrivals {token["arrive_ns"] / 1e6:.2f} ms; '
          f'while reading dense {token["dense_ns"] / 1e6:.2f}, expert {token["expert_ns"] / 1e6:.2f}', flush=True)
    return took / bound, took / loaded


def main():
    p = argparse.ArgumentParser()
    p.add_argument('build')
    p.add_argument('model')
    for name, default in (('rounds', 3), ('threads', 2), ('gen', 64), ('ram', 50)):
        p.add_argument('--' + name, type=int, default=default)
    p.add_argument('--io')
    p.add_argument('--predictor')
    p.add_argument('--cpu')
    p.add_argument('--modelled', action='store_true')
    p.add_argument('--blank', action='store_true')
    a = p.parse_args()
    a.factor = 1.2 if a.modelled else 1.25
    ratios = []
    for _ in range(a.rounds):
        warm = bench(a.build, a.model, p=0, n=a.gen, r=3, t=a.threads, ram_percent=110, cpu=a.cpu)['tg']
        bandwidth = None
        if a.modelled:
            test = bench(a.build, a.model, '--limits', p=0, n=a.gen, r=3, t=a.threads, ram_percent=a.ram, predictor=a.predictor, cpu=a.cpu,
                         watch='off')['tg']
            a.n_slot = test['memory']['n_slot']
            bandwidth = missed_bytes(test['token']) / warm['token']['expert_ns'] * 1e9
            print(f'modelled drive of {bandwidth / 1e9:.2f} GB/s, the real one {drive(test) / 1e9:.2f}', flush=True)
        ratios.append(one_round(a, warm, bandwidth))
    for name, values in zip(('of a CPU that has the memory to itself', 'of the CPU beside this drive'), zip(*ratios)):
        print(f'token time / bound, {name}: {median(values):.3f} ({min(values):.3f} to {max(values):.3f}, {len(values)} rounds)')
    sys.exit(median(r[0] for r in ratios) > 1.0)


if __name__ == '__main__':
    main()
