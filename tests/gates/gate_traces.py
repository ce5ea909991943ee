#!/usr/bin/env python3
"""Traces of other tools, through the command line: published hit rates come out, and what a trace says survives converting, cutting and merging."""
import csv
import json
import subprocess

from harness import SHARED, TESTS, WORK, check, expect, finish, need, stoker

SAMPLES = TESTS.parent / 'traces' / 'samples'
DEEPSEEK = SHARED / 'traces' / 'dsv2lite_a.mrt8.xz'


def replay(*args):
    return json.loads(stoker('replay', *args, '--json').expect_success().out)


def near(got, want, margin):
    expect(abs(100 * got - want) <= margin, f'{100 * got:.2f} % hits, {want} +- {margin} wanted')
    return f'{100 * got:.2f} %, published {want}'


def engine(name, ram, slots, policy, want):
    """BigMoeOnEdge's own engine and replay: one cache for all layers, the prompt as one event a layer; its figure is that of decoding."""
    trace = SAMPLES / f'{name}.route.csv.zst'
    r = replay(trace, '--ram', ram, '--policy', policy)
    expect(abs(r['n_slot'] - slots) <= 1, f'{r["n_slot"]} slots, {slots} wanted')
    expect(r['prefill']['hits'] == 0, f'{r["prefill"]["hits"]} hits of a prompt that is read once')
    return near(r['decode']['hit_rate'], want, 1.2)


def deepseek(policy, fraction, want):
    """38 prompts, a cache a layer, each from an empty one."""
    r = replay(need(DEEPSEEK), '--fraction', fraction, '--scope', 'layer', '--reset', 'sequence', '--policy', policy)
    expect(r['sequences'] == 38 and r['events'] == 39851 * 26, f'{r["sequences"]} sequences, {r["events"]} events')
    return near(r['hit_rate'], want, 0.3)


def fields(trace):
    """What --json promises, and that a cold start and a carried one are both told of several sequences."""
    r = replay(trace, trace, '--fraction', 0.25)
    for f in ('policy', 'scope', 'events', 'hits', 'misses', 'hit_rate', 'bytes', 'tok_s'):
        expect(f in r, f'no "{f}"')
    expect(r['sequences'] == 2 and r['hits'] + r['misses'] == r['stats']['n_lookup'], 'the counters contradict each other')
    expect(r['hit_rate_cold'] <= r['hit_rate_carried'] == r['hit_rate'], f'{r["hit_rate_cold"]} cold, {r["hit_rate_carried"]} carried over')
    for reset, want in (('none', r['hit_rate_carried']), ('sequence', r['hit_rate_cold'])):
        expect(replay(trace, trace, '--fraction', 0.25, '--reset', reset)['hit_rate'] == want, f'--reset {reset} gives another hit rate')


def by_layer(trace, out):
    r = replay(trace, '--fraction', 0.3, '--csv', out)
    rows = list(csv.DictReader(out.open()))
    for column, whole in (('hits', r['hits']), ('misses', r['misses']), ('events', r['events']), ('bytes', r['bytes'])):
        expect(sum(int(x[column]) for x in rows) == whole, f'the {column} of layers do not add up')
    expect({x['phase'] for x in rows} == {'prefill', 'decode'}, 'phases')


def timed(trace):
    r = stoker('replay', trace, '--fraction', 0.25, '--io', 'emu:2G,80us', '--json').expect_success()
    expect(b'no measured costs' in r.err, 'no warning that costs are assumed')
    t, plain = json.loads(r.out), replay(trace, '--fraction', 0.25)
    expect(t['tok_s'] > 0 and plain['tok_s'] is None, f'{t["tok_s"]}, {plain["tok_s"]} tok/s')
    expect(all(t[f] == plain[f] for f in ('hits', 'misses', 'bytes')), 'decisions depend on times')
    expect(t['virtual_ns'] * 2 >= t['bytes'], 'faster than the drive')
    return f'{t["tok_s"]:.1f} tok/s'


def converted(trace, own, table):
    """Own format and CSV say the same as the original: same decisions, same sizes."""
    stoker('trace', 'convert', trace, '-o', own).expect_success()
    stoker('trace', 'convert', own, '-o', table).expect_success()
    want = replay(trace, '--slots', 700)
    for path in (own, table):
        got = replay(path, '--slots', 700)
        expect(all(got[f] == want[f] for f in ('hits', 'misses', 'bytes', 'prefill', 'decode', 'ram_bytes')), f'{path.suffix} differs')
    a, b = (json.loads(stoker('trace', 'info', p, '--json').expect_success().out) for p in (trace, table))
    expect(all(a[f] == b[f] for f in a if f not in ('trace', 'format')), f'{a} {b}')


def cut_and_merged(trace, parts, whole):
    """The two halves of a trace, put together again, decide what it decides."""
    steps = json.loads(stoker('trace', 'info', trace, '--json').expect_success().out)['steps']
    for part, args in zip(parts, (('--steps', steps // 2), ('--from', steps // 2))):
        stoker('trace', 'cut', trace, '-o', part, *args).expect_success()
    stoker('trace', 'merge', *parts, '-o', whole).expect_success()
    want, got, both = replay(trace, '--fraction', 0.2), replay(whole, '--fraction', 0.2), replay(*parts, '--fraction', 0.2)
    expect(want['hits'] == got['hits'] == both['hits'], f'{want["hits"]} hits whole, {got["hits"]} merged, {both["hits"]} one after another')
    stoker('replay', whole, '--verify').expect_failure('no recorded run')


def shaped(trace):
    """The sizes of a shape, without a file, are those that the trace of the real one's run tells."""
    own, shape = replay(trace, '--slots', 1500), replay(trace, '--slots', 1500, '--model-shape', 'qwen3-30b-a3b')
    expect(all(own[f] == shape[f] for f in ('hits', 'misses', 'bytes')), f'{shape["bytes"]} bytes by the shape, {own["bytes"]} by the trace')
    expect(replay(trace, '--tier', 'ram=4G,nvme')['hits'] == replay(trace, '--ram', '4G')['hits'], '--tier is not --ram')
    more = replay(trace, '--slots', 1500, '--model-shape', 'qwen3-30b-a3b:Q8_0')['bytes']
    expect(1.4 * own['bytes'] < more < 2 * own['bytes'], f'{more} bytes as Q8_0')
    stoker('replay', trace, '--slots', 1500, '--gguf', TESTS / 'data' / 'ember-q4_k_m.gguf').expect_failure('6 of 32', rc=2)
    stoker('replay', trace, '--slots', 1500, '--model-shape', 'nosuch').expect_failure('qwen3-30b-a3b', rc=2)
    gpu = ('--cost', '4090', '--model-shape', 'qwen3-30b-a3b')
    tiers, apart = replay(trace, *gpu, '--tier', 'vram=2G,ram=4G,nvme'), replay(trace, *gpu, '--vram', '2G', '--ram', '4G')
    expect(tiers['decode_tiers'] == apart['decode_tiers'] and tiers['tok_s'] > 0, '--tier is not --vram and --ram')
    for tiers in ('ram=4G', 'nvme', 'ram=,nvme', 'ram=4X,nvme', 'ram=0,nvme', 'vram=4G,nvme', 'ram=4G,vram=1G,nvme', 'vram=,ram=4G,nvme'):
        stoker('replay', trace, '--tier', tiers).expect_failure('--tier', rc=2)
    return f'{own["bytes"]} bytes read'


def refused(trace):
    stoker('replay', trace).expect_failure('names no budget', rc=2)
    stoker('replay', trace, '--ram', '1G', '--slots', '9').expect_failure('exclude', rc=2)
    stoker('replay', trace, '--verify').expect_failure('no recorded run')
    stoker('trace', 'look', trace).expect_failure('info, cut, merge or convert', rc=2)
    stoker('trace', 'cut', trace).expect_failure('needs -o', rc=2)
    stoker('trace', 'convert', trace, trace, '-o', '/dev/null').expect_failure('one trace', rc=2)
    stoker('trace', 'info', TESTS / 'README.md').expect_failure('README.md')
    r = stoker('replay', trace, '--slots', 40).expect_success()
    expect(b'experts that one token uses' in r.err, 'no warning of a budget below one token')


def memory(trace, big):
    """The peak does not grow with the trace: 40 copies of it take what one takes."""
    peaks = []
    for n in (1, 40):
        stoker('trace', 'merge', *[trace] * n, '-o', big).expect_success()
        script = 'import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); ' \
                 'print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)'
        args = ['python3', '-c', script, stoker('version').args[0], 'replay', str(big), '--fraction', '0.25', '--reset', 'none']
        peaks.append(int(subprocess.run(args, stdout=subprocess.PIPE, check=True, timeout=600).stdout))
    expect(peaks[1] < peaks[0] * 1.2 + 2048, f'{peaks[0]} KiB for one, {peaks[1]} KiB for 40')
    return f'{peaks[0]} and {peaks[1]} KiB'


def main():
    WORK.mkdir(exist_ok=True)
    for name, ram, slots, lru, belady in (('qwen', '4000M', 1468, 80.3, 92.7), ('gemma', '4000M', 1064, 81.9, 92.9), ('gptoss', '3000M', 237, 44.8, 67.8)):
        check(f'traces: {name} hits as its engine did', engine, name, ram, slots, 'lru', lru)
        check(f'traces: {name}, Belady', engine, name, ram, slots, 'belady', belady)
    for policy, quarter, half in (('lru', 47.9, 71.7), ('lru2', 48.9, 73.1), ('lfu', 31.6, 57.6), ('belady', 66.9, 86.8), ('belady-bypass', 70.2, 87.5)):
        check(f'traces: DeepSeek-V2-Lite, {policy} with a quarter of the experts', deepseek, policy, 0.25, quarter)
        check(f'traces: DeepSeek-V2-Lite, {policy} with half of the experts', deepseek, policy, 0.5, half)
    qwen, switch = SAMPLES / 'qwen.route.csv.zst', SAMPLES / 'switch_base8.router-trace.json.zst'
    check('traces: fields of --json', fields, switch)
    check('traces: figures of layers', by_layer, qwen, WORK / 'layers.csv')
    check('traces: sizes of a model', shaped, qwen)
    check('traces: times of an imported trace', timed, qwen)
    for name in ('qwen', 'gemma', 'gptoss'):
        check(f'traces: {name} converted', converted, SAMPLES / f'{name}.route.csv.zst', WORK / 'converted.trace', WORK / 'converted.csv')
    check('traces: cut and merged', cut_and_merged, switch, (WORK / 'part1.trace', WORK / 'part2.trace'), WORK / 'whole.trace')
    check('traces: mistakes', refused, qwen)
    check('traces: memory', memory, switch, WORK / 'big.trace')
    finish()


main()
