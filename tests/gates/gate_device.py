#!/usr/bin/env python3
"""The same bits of logits with a device, emulated on the CPU, as without one: for any part of the layers there, any split of the experts between VRAM
and RAM, every policy, any place an expert is computed, and any way to cut a prompt. Each run is recorded, and a verifying replay repeats it.

usage: gate_device.py [BUILD_DIR]
"""
import json
import sys

from harness import DATA, EMBER, PROBE, WORK, Failed, Run, Skipped, check, expect, finish, least_ram, numbers, probe, stoker

TINY = {name: DATA / 'tiny' / f'{name}.gguf' for name in ('qwen3moe-f32', 'qwen3moe-bf16', 'llama-f32')}
AUTO, CPU, DEVICE, RANDOM = range(4)
total = {'n_host': 0}


def bits(model, **keys):
    WORK.mkdir(exist_ok=True)
    trace = WORK / 'device.trace'
    return probe('bits', model, trace=trace, **keys)


def same(want, model, wanted=(), **keys):
    """wanted: counters that must not be 0, lest the case shows nothing."""
    lines = bits(model, device='emu', **keys)
    if lines['hash'] != want:
        raise Failed(f'logits {lines["hash"]}, not {want}')
    for name in wanted:
        expect(int(lines[name]) > 0, f'{name} is 0')
    total['n_host'] += int(lines['n_host'])
    return ', '.join(f'{k} {lines[k]}' for k in ('n_vram_hit', 'n_fetch', 'n_return', 'n_host'))


def splits(name, model, n, slot, n_expert):
    """slot: bytes of an expert's slot; n_expert: of all layers."""
    least, tokens = least_ram(model), n
    want = bits(model, device='none', tokens=tokens, batch=4)['hash']

    def case(what, wanted=('n_fetch',), **keys):
        check(f'device {name}: {what}', same, want, model, wanted, **({'tokens': tokens, 'batch': 1} | keys))

    case('no experts in VRAM', (), vram=0)
    case('a prompt at once, no experts in VRAM', (), vram=0, batch=n)
    case('every expert fits', ('n_fetch', 'n_vram_hit'), vram=slot * n_expert)
    case('two slots', ('n_fetch', 'n_return'), vram=2 * slot, vram_policy='lru')
    case('two slots, the least RAM', (), vram=2 * slot, ram=least)
    for cpu_layers in (1, 99):
        case(f'{cpu_layers} layers on the CPU', vram=3 * slot, cpu_layers=cpu_layers)
    case('RAM slots pinned', vram=3 * slot, pin=1 << 30)
    case('steps of 3', vram=4 * slot, batch=3)
    case('a prompt at once', (), vram=4 * slot, batch=n)
    case('a prompt at once, everything on the device', (), vram=slot * n_expert, batch=n, place=DEVICE)
    for policy in ('lru', 'lru2', 'slru', 'lfu', 'lrfu', 's3fifo', 'mrs', 'learned', 'random'):
        case(f'policy {policy} in VRAM', (), vram=3 * slot, vram_policy=policy)
        case(f'policy {policy} in RAM', (), vram=3 * slot, policy=policy, ram=2 * least)
    case('everything that can be on the device', ('n_fetch', 'n_return'), vram=3 * slot, place=DEVICE)
    for seed in range(4):
        case(f'drawn places, seed {seed}', ('n_fetch',), vram=4 * slot, place=RANDOM, seed=seed, batch=1 + seed)
    case('drawn places, the least RAM, one layer on the CPU', (), vram=4 * slot, place=RANDOM, seed=9, ram=least, cpu_layers=1)
    case('drawn places, nothing read ahead', (), vram=4 * slot, place=RANDOM, seed=5, predictor='none', ram=2 * least)
    case('a slow drive that reorders', (), vram=4 * slot, place=RANDOM, seed=6, ram=least, io='emu:300M,100us,reorder,seed=4')


def refusals():
    model = TINY['qwen3moe-f32']
    tokens = ('--tokens', '1,2,3', '-o', WORK / 'device.bin')
    stoker('logits', '-m', model, *tokens, '--device', 'emu', '--vram-cap', '1M').expect_failure('need at least', '-ngl')
    stoker('logits', '-m', model, *tokens, '--device', 'emu', '--vram-cap', '4M', '--vram', '1M', '-b', '4096').expect_failure('need at least|does not fit')
    stoker('logits', '-m', model, *tokens, '--device', 'emu', '--staging', '64K').expect_failure('staging', 'least')
    stoker('logits', '-m', model, *tokens, '--device', 'emu', '--vram', 'much').expect_failure('--vram', rc=2)
    stoker('logits', '-m', model, *tokens, '--device', 'emu', '--vram-policy', 'none-such').expect_failure('policy', rc=2)


def sequences():
    keys = {'n': 40, 'ctx': 256, 'batch': 16, 'kv': 'f32', 'device': 'emu', 'vram': 1 << 20}
    return f'{probe("seqs", TINY["qwen3moe-f32"], **keys)["steps"]} steps'


def modes():
    """Every mode writes the text of the CPU alone, uses VRAM in its own way, and a verifying replay repeats it."""
    trace, uses = WORK / 'device-mode.trace', WORK / 'device-uses.trace'
    run = ('run', '-m', EMBER, '--tokens', '1,2,3,4,5', '-n', 40, '--temp', 0, '--ignore-eos', '--ram', '12M', '--json', '-q')
    want = json.loads(stoker(*run, '--device', 'none', '--trace', uses).expect_success().out)['tokens']
    stats = {}
    for mode in ('hybrid', 'static', 'lru-upload', 'kt', 'kt-profiled'):
        more = ('--uses-from', uses) if mode == 'kt-profiled' else ()
        out = json.loads(stoker(*run, '--device', 'emu', '--vram', '9M', '--mode', mode, '--trace', trace, *more).expect_success().out)
        expect(out['tokens'] == want, f'{mode}: other text')
        stats[mode] = s = out['stats']
        expect(s['n_vram_hit'] > 0 and s['n_fetch'] > 0, f'{mode}: no expert was in VRAM')
        stoker('replay', trace, '--verify').expect_success()
    for mode in ('static', 'kt', 'kt-profiled'):
        expect(stats[mode]['n_return'] == 0 and stats[mode]['n_fetch'] <= 72, f'{mode}: {stats[mode]["n_fetch"]} fetches: what is there for good left')
    expect(stats['lru-upload']['n_fetch'] > stats['hybrid']['n_fetch'], 'lru-upload fetched no more than hybrid')
    expect(stats['kt-profiled']['n_vram_hit'] > stats['kt']['n_vram_hit'], 'profiled placement hit no more than uniform')
    stoker(*run, '--device', 'emu', '--mode', 'fiddler').expect_failure('fiddler', 'kt-profiled')
    stoker(*run, '--device', 'emu', '--mode', 'none-such').expect_failure('none-such', 'kt-profiled', rc=2)
    stoker(*run, '--device', 'emu', '--mode', 'kt-profiled').expect_failure('uses-from', rc=2)
    return ', '.join(f'{m} {s["n_vram_hit"]} hits, {s["n_fetch"]} fetches' for m, s in stats.items())


def main():
    r = Run([PROBE, 'bits', TINY['qwen3moe-f32'], 'tokens=1', 'device=emu'])
    if r.rc != 0 and b'this build has no device' in r.err:
        check('device', lambda: (_ for _ in ()).throw(Skipped('this build has no emulated device')))
        finish()
    for name, model in TINY.items():
        stats = numbers(probe('stats', model, tokens=1, batch=1, ram=1 << 40))
        splits(name, model, 24, stats['ram_bytes'] // stats['n_slot'], stats['n_expert'])
    check('device ember: some experts in VRAM', lambda: same(bits(EMBER, device='none', tokens=8, batch=4)['hash'], EMBER, ('n_fetch',), tokens=8, batch=1,
                                                            vram=8 << 20))
    check('device: some experts in VRAM were computed by the CPU', lambda: expect(total['n_host'] > 0, 'none was'))
    check('device: sequences alone and among others', sequences)
    check('device: what is refused', refusals)
    check('device: modes', modes)
    finish()


main()
