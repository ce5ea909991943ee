#!/usr/bin/env python3
"""A verifying replay repeats a live run: hits, misses, evictions, bytes and read_bytes are equal, also after an injected EIO and cancelled steps, with and
without reads ahead; a trace that was cut off is readable up to the cut."""
import json
import subprocess
import time

from harness import EMBER, PROBE, WORK, check, expect, finish, least_ram, made_model, numbers, probe, stoker

FIELDS = ('n_event', 'n_lookup', 'n_pair', 'n_hit', 'n_miss', 'n_evict', 'n_wave', 'bytes', 'read_bytes')


def live(verb, model, trace, **keys):
    """The probe verifies its own trace through the API; here the command line does it once more."""
    s = numbers(probe(verb, model, trace=trace, **keys))
    r = stoker('replay', trace, '--verify', '--json').expect_success()
    replayed = json.loads(r.out)['stats']
    for f in FIELDS:
        if f in s:
            expect(replayed[f] == s[f], f'{f} is {replayed[f]}, the live run had {s[f]}')
    return s


def plain(model, trace, **keys):
    s = live('stats', model, trace, **keys)
    expect(s['n_miss'] > 0 and s['n_evict'] > 0, f'{s["n_miss"]} misses, {s["n_evict"]} evictions: nothing to verify')
    return f'{s["n_event"]} events, {s["n_miss"]} misses'


def ahead(verb, model, trace, **keys):
    """A run that reads ahead; a failed read of that kind fails no step."""
    s = live(verb, model, trace, **keys)
    if verb != 'stats':
        return f'{s["failed"]} failed steps'
    expect(s['n_prefetch'] > 0, 'nothing was read ahead')
    return f'{s["n_prefetch_used"]} of {s["n_prefetch"]} experts read ahead were used'


def disturbed(verb, model, trace, **keys):
    s = live(verb, model, trace, **keys)
    expect(s['failed'] > 0, 'no step failed')
    return f'{s["failed"]} failed steps'


def same_without_trace(model, trace, **keys):
    a, b = (numbers(probe('stats', model, **keys, **t)) for t in ({}, {'trace': trace}))
    for f in FIELDS:
        expect(a[f] == b[f], f'{f} is {b[f]} with a trace and {a[f]} without')


def cut(trace, short):
    whole = trace.read_bytes()
    full = json.loads(stoker('replay', trace, '--json').expect_success().out)
    expect(full['complete'], 'the whole trace is said to be cut off')
    last = -1
    for part in (3, 5, 8, 9.5, 10):
        short.write_bytes(whole[:int(len(whole) * part / 10) - (part == 10)])
        r = stoker('replay', short, '--json')
        if r.rc == 0:
            got = json.loads(r.out)
            expect(not got['complete'], f'cut at {part}/10, but complete')
            expect(last <= got['stats']['n_event'] <= full['stats']['n_event'], f'{got["stats"]["n_event"]} events at {part}/10, {last} before')
            last = got['stats']['n_event']
        else:
            expect(last < 0, f'cut at {part}/10: {r.last()}')
    expect(last > 0, 'no cut trace gave any events')
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        short.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1:])
        r = stoker('replay', short, '--verify')
        expect(r.rc in (0, 1), f'byte {at} changed: ended with {r.rc}')
        expect(r.rc == 1, f'byte {at} changed: not noticed')


def killed(trace):
    """What a run had recorded some seconds before SIGKILL is there."""
    p = subprocess.Popen([PROBE, 'stats', EMBER, 'tokens=100', 'n=100000', 'ctx=100200', 'io=emu:500M,200us', f'ram={least_ram(EMBER)}', f'trace={trace}'],
                         stdout=subprocess.DEVNULL)
    time.sleep(4)
    p.kill()
    p.wait()
    r = json.loads(stoker('replay', trace, '--json').expect_success().out)
    expect(not r['complete'] and r['stats']['n_event'] > 0, f'complete: {r["complete"]}, {r["stats"]["n_event"]} events')
    return f'{r["stats"]["n_event"]} events'


def what_if(model, trace):
    """More slots miss less; the trace's own slots miss what the run missed."""
    own = json.loads(stoker('replay', trace, '--json').expect_success().out)
    more = json.loads(stoker('replay', trace, '--slots', own['n_slot'] * 4, '--json').expect_success().out)
    expect(more['stats']['n_miss'] < own['stats']['n_miss'], f'{more["stats"]["n_miss"]} misses with 4 times the slots, {own["stats"]["n_miss"]} before')
    expect(more['stats']['n_lookup'] == own['stats']['n_lookup'], 'another number of lookups')
    timed = json.loads(stoker('replay', trace, '--io', 'emu:1G,100us', '--predictor', 'none', '--json').expect_success().out)
    expect(timed['virtual_ns'] >= 0.9 * timed['stats']['bytes'], f'{timed["virtual_ns"]} ns for {timed["stats"]["bytes"]} bytes at 1 G a second')


def main():
    WORK.mkdir(exist_ok=True)
    trace = WORK / 'gate.trace'
    for name, model in {'ember': EMBER, 'r768': made_model('r768', 'r768')}.items():
        least = least_ram(model)
        some = least * 3
        run = dict(tokens=100, n=40, ctx=512, batch=48)
        for what, keys in {'the least RAM': dict(ram=least), 'some RAM': dict(ram=some), 'pread': dict(ram=some, io='pread'),
                           'a modelled drive': dict(ram=some, io='emu:2G,50us,reorder,seed=9'), 'prompt in one step': dict(ram=least, batch=128)}.items():
            check(f'replay {name}: {what}', plain, model, trace, **{**run, **keys})
        for depth in (1, 3):
            for io in ('auto', 'emu:2G,50us,reorder,seed=9', 'emu:200M,100us'):
                keys = dict(predictor='gate', lookahead=depth, ram=some, ctx=512, io=io)
                check(f'replay {name}: gate {depth} layers ahead, {io}', ahead, 'stats', model, trace, tokens=20, n=80, **keys)
                check(f'replay {name}: gate {depth} layers ahead, cancelled steps, {io}', disturbed, 'cancel', model, trace, tokens=60, **keys)
        check(f'replay {name}: nothing read ahead', plain, model, trace, **{**run, 'ram': some, 'predictor': 'none'})
        for n in range(400, 1300, 100):
            io = f'emu:200M,100us,reorder,eio={n}'
            check(f'replay {name}: EIO of read {n}, 3 layers ahead', ahead, 'eio', model, trace, predictor='gate', lookahead=3, tokens=60, ram=some, ctx=512, io=io)
        check(f'replay {name}: what if', what_if, model, trace)
        # What is worth reading ahead depends on the clock.
        check(f'replay {name}: a trace changes no counter', same_without_trace, model, trace, ram=some, predictor='none', **run)
        for n in (90, 120, 200):  # the first reads are those of dense weights
            check(f'replay {name}: after EIO of read {n}', disturbed, 'eio', model, trace, predictor='none', tokens=30, ram=some, ctx=512,
                  io=f'emu:2G,50us,reorder,eio={n}')
        for io in ('auto', 'pread', 'emu:500M,300us,reorder'):
            check(f'replay {name}: after cancelled steps, {io}', disturbed, 'cancel', model, trace, tokens=60, ram=some, ctx=512, io=io)
    check('replay: a run that was killed', killed, trace)
    probe('stats', EMBER, tokens=100, n=600, ctx=1024, batch=48, ram=least_ram(EMBER), trace=trace)  # several frames
    check('replay: a trace that was cut off or changed', cut, trace, WORK / 'cut.trace')
    finish()


main()
