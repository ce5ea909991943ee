#!/usr/bin/env python3
"""--timeline: the tokens asked for are there, no two intervals of a lane overlap, reads are what the counters say, and files appear whole or not at all."""
import json
from xml.etree import ElementTree

from harness import DATA, EMBER, WORK, check, expect, finish, stoker

JSON, SVG = WORK / 'queues.json', WORK / 'queues.svg'
SAMPLE = DATA.parent.parent / 'traces/samples/qwen.route.csv.zst'
RUN = ('run', '-m', EMBER, '--tokens', '1,2,3,4,5', '-n', 8, '--temp', 0, '--ignore-eos', '--ram', '6M', '--io', 'emu:200M,50us', '-q')


def timeline(*args):
    """The intervals by lane, after the checks that hold for every timeline."""
    out = json.loads(stoker(*args, '--timeline', JSON, '--json').expect_success().out)
    events = json.loads(JSON.read_text())['traceEvents']
    names = {e['tid']: e['args']['name'] for e in events if e['ph'] == 'M'}
    work = [e for e in events if e['ph'] == 'X']
    expect({e['tid'] for e in work} == set(names), 'a lane without a name, or a name without a lane')
    for tid, name in names.items():
        lane = sorted((e['ts'], e['ts'] + e['dur']) for e in work if e['tid'] == tid)
        expect(all(a[1] <= b[0] + 1e-3 for a, b in zip(lane, lane[1:])), f'intervals of {name} overlap')
        expect(all(e['cat'] == name.split()[0] for e in work if e['tid'] == tid), f'another queue\'s work is in {name}')
    drawing = ElementTree.fromstring(SVG.read_text())
    text = ''.join(drawing.itertext())
    return out, work, text


def steps_of(work):
    return sorted({e['args']['step'] for e in work})


def tokens():
    out, work, text = timeline(*RUN, '--timeline-tokens', '2-4', '-b', 2)
    expect(steps_of(work) == [4, 5, 6], f'steps {steps_of(work)}')  # the prompt took three
    expect('token 2,' in text and 'token 4,' in text and 'token 5,' not in text and 'prompt' not in text, text[:300])
    return f'{len(work)} intervals'


def prompt():
    out, work, text = timeline(*RUN, '--timeline-tokens', '0-7', '-b', 2, '--predictor', 'none')
    expect(steps_of(work) == list(range(10)) and text.count('prompt, ') == 3, f'steps {steps_of(work)}')
    read = sum(e['args'].get('bytes', 0) for e in work)
    expect(read == out['stats']['read_bytes'], f'{read} bytes on the timeline, {out["stats"]["read_bytes"]} counted')
    kinds = {e['name'] for e in work}
    expect({'dense part', 'experts', 'waiting for reads', 'reads'} <= kinds, f'{kinds}')
    seconds = sum(e['dur'] for e in work if e['cat'] == 'cpu') * 1e-6
    share = seconds / (out['stats']['step_ns'] * 1e-9)
    expect(0.5 < share <= 1.0001, f'the CPU\'s intervals are {100 * share:.0f} % of the steps\' time')
    return f'{100 * share:.0f} % of the steps\' time has a name'


def replay():
    out, work, text = timeline('replay', SAMPLE, '--fraction', 0.3, '--io', 'emu:3G,80us', '--cost', 'ddr5', '--timeline-tokens', '3-4', '-q')
    expect(steps_of(work) == [2, 3] and 'step 3,' in text, f'steps {steps_of(work)}')


def none_there():
    r = stoker(*RUN, '--timeline', JSON, '--timeline-tokens', '50-60').expect_success()
    expect('the timeline is empty' in r.text(), r.text())
    expect(not [e for e in json.loads(JSON.read_text())['traceEvents'] if e['ph'] == 'X'], 'there is something')


def refused():
    for tokens in ('x', '4-2', '-1', '1-', '1-100000'):
        stoker(*RUN, '--timeline', JSON, f'--timeline-tokens={tokens}').expect_failure('timeline-tokens', rc=2)
    stoker(*RUN, '--timeline', SVG).expect_failure('picture', rc=2)
    stoker(*RUN, '--timeline', WORK / 'no' / 'x.json').expect_failure('No such file')
    stoker(*RUN, '--timeline', EMBER).expect_failure('another file', rc=2)
    stoker(*RUN, '--timeline', WORK / 't.json', '--trace', WORK / 't.json').expect_failure('another file', rc=2)
    stoker('replay', SAMPLE, '--fraction', 0.3, '--timeline', JSON, '-q').expect_failure('without times', rc=2)


check('timeline: the tokens asked for', tokens)
check('timeline: the prompt, and all of a run', prompt)
check('timeline: of a replay', replay)
check('timeline: of tokens that the run does not have', none_there)
check('timeline: mistakes', refused)
finish()
