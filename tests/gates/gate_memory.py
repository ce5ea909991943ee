#!/usr/bin/env python3
"""Peak memory is at most dense + KV + --ram + buffers as printed at start + 64 MB, for small and large budgets, batches and contexts; and a steady decode
step allocates nothing.

The peak is the kernel's high-water mark of resident pages (it counts anonymous, locked and transparent huge pages, and files that are mapped), plus
pages of hugetlbfs, which it leaves out. GATE_LARGE=1 adds the quarter-depth shapes of 30B-A3B and Mixtral (4.6 and 5 GB of disk).
"""
import os
import time

from harness import EMBER, PROBE, SANITIZED, Failed, Skipped, all_ram, check, expect, finish, least_ram, made_model, numbers, probe, synth_model

MARGIN = 64 << 20


def peak(args):
    """(text on stdout, peak bytes) of a run: VmHWM and HugetlbPages as last seen, and the final word of wait4."""
    read, write = os.pipe()
    pid = os.posix_spawn(args[0], [str(a) for a in args], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_CLOSE, read)])
    os.close(write)
    os.set_blocking(read, False)
    text, hugetlb = b'', 0
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        try:
            text += os.read(read, 1 << 16)
        except BlockingIOError:
            pass
        if done:
            break
        try:
            with open(f'/proc/{pid}/status') as f:
                hugetlb = max([hugetlb, *(int(x.split()[1]) << 10 for x in f if x.startswith('HugetlbPages'))])
        except OSError:
            pass
        time.sleep(0.005)
    while piece := os.read(read, 1 << 16):
        text += piece
    os.close(read)
    expect(status == 0, f'status {status}')
    return text.decode(), (usage.ru_maxrss << 10) + hugetlb


def within(model, **keys):
    text, top = peak([PROBE, 'stats', model, *(f'{k}={v}' for k, v in keys.items())])
    s = numbers(dict(x.split(' ', 1) for x in text.strip().split('\n')))
    if 'ram' in keys:
        expect(s['ram_bytes'] <= keys['ram'], f'{s["ram_bytes"]} bytes of slots for --ram {keys["ram"]}')
    budget = s['dense_bytes'] + s['kv_bytes'] + s['ram_bytes'] + s['buffer_bytes']
    expect(top <= budget + MARGIN, f'peak {top >> 20} MiB > {budget >> 20} MiB (dense {s["dense_bytes"] >> 20}, KV {s["kv_bytes"] >> 20}, '
           f'RAM {s["ram_bytes"] >> 20}, buffers {s["buffer_bytes"] >> 20}) + {MARGIN >> 20} MiB')
    return f'peak {top >> 20} MiB, printed {budget >> 20} MiB'


def steady(model, **keys):
    s = numbers(probe('steady', model, tokens=5, n=100, ctx=512, **keys))
    expect(s['seen'] > 0, 'the hooks see no allocation at all')
    expect(s['allocations'] == 0, f'{s["allocations"]} allocations in 100 steps')
    return f'{s["n_miss"]} misses on the way'


def compare(name, model, large=False):
    least, everything = least_ram(model), all_ram(model)
    n = dict(tokens=64, n=8) if large else dict(tokens=300, n=32)
    check(f'memory {name}: the least RAM', within, model, ram=least, ctx=512, **n)
    if not large:
        check(f'memory {name}: all RAM', within, model, ram=everything, ctx=512, **n)
    check(f'memory {name}: half the RAM, mlock', within, model, ram=(least + everything) // 2, ctx=512, mlock=1, **n)
    check(f'memory {name}: steps of one token', within, model, ram=least, ctx=512, batch=1, **n)
    check(f'memory {name}: a context of 4,096 and steps of 2,048', within, model, ram=least, ctx=4096, batch=2048, kv='f32', **n)
    if not large:
        check(f'memory {name}: a modelled drive', within, model, ram=least, ctx=512, io='emu:4G,20us,reorder', **n)
        check(f'memory {name}: pread', within, model, ram=least, ctx=512, io='pread', **n)


def main():
    if SANITIZED:
        check('memory', lambda: (_ for _ in ()).throw(Skipped('a sanitizer has its own memory')))
        finish()
    compare('ember', EMBER)
    compare('r768', made_model('r768', 'r768'))
    compare('r2048', made_model('r2048', 'r2048'))
    for name, args in {'quarter-depth 30B-A3B': ('qwen3-30b-a3b-quarter',), 'Mixtral': ('mixtral-8x7b', '--layers', 4)}.items():
        if os.environ.get('GATE_LARGE'):
            compare(name, synth_model(args[0], 'Q4_K_M', *args[1:]), large=True)
        else:
            check(f'memory {name}', lambda: (_ for _ in ()).throw(Skipped('GATE_LARGE is not set')))
    for name, model in {'ember': EMBER, 'r768': made_model('r768', 'r768')}.items():
        least = least_ram(model)
        check(f'steady {name}: all RAM', steady, model, ram=all_ram(model))
        check(f'steady {name}: the least RAM', steady, model, ram=least)
        check(f'steady {name}: pread', steady, model, ram=least, io='pread')
        check(f'steady {name}: a modelled drive', steady, model, ram=least, io='emu:4G,20us,reorder')
        check(f'steady {name}: 3 layers read ahead', steady, model, ram=3 * least, predictor='gate', lookahead=3, io='emu:500M,50us', trace='/dev/null')
        check(f'steady {name}: with a trace', steady, model, ram=least, trace='/dev/null')
    finish()


main()
