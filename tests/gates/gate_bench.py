#!/usr/bin/env python3
"""`stoker bench` and `stoker doctor`: what they measure comes out in every form, adds up, and what they write is whole or not there."""
import csv
import io
import json
import re
import resource
import shutil
import signal
import subprocess
from statistics import median
from xml.etree import ElementTree

from harness import EMBER, STOKER, WORK, check, expect, finish, stoker

USAGE, FAILED = 2, 1
STAGES = ['embed', 'norm', 'qkv', 'rope', 'attend', 'attn_out', 'router', 'cache', 'io', 'pack', 'gate_up', 'down', 'combine', 'output', 'barrier',
          'device']
BENCH = ('bench', '-m', EMBER, '-q')


def bench(*args, **kwargs):
    return json.loads(stoker(*BENCH, '--json', *args, **kwargs).expect_success().out)


def mistakes():
    copy = WORK / 'bench-copy.gguf'
    shutil.copy(EMBER, copy)
    for name, pattern, *args in (
            ('no model', 'which model', 'bench'),
            ('a picture of no model', 'which model', 'bench', '--limits', '--svg', WORK / 'none.svg'),
            ('no test', 'no test', *BENCH, '-p', '0', '-n', '0'),
            ('no list', 'takes a list of numbers', *BENCH, '-p', 'many'),
            ('a negative size', 'takes a list of numbers from 0', *BENCH, '-n', '8,-1'),
            ('no such form', r'takes md\|csv\|json', *BENCH, '-o', 'xml'),
            ('no repetitions', 'from 1 to', *BENCH, '-r', '0'),
            ('no such kernels', "takes ref", *BENCH, '--cpu', 'sse'),
            ('more positions than there can be', 'more positions', *BENCH, '-p', '2000000000', '-d', '2000000000'),
            ('a picture over the model', 'is a file of the model', 'bench', '-m', copy, '-q', '--svg', copy),
            ('an operand', 'unexpected argument', 'bench', 'model'),
            ('doctor: -o alone', '-o is for --calibrate', 'doctor', '-o', WORK / 'none'),
            ('doctor: the model as its file', 'is a file of the model', 'doctor', '-q', '--json', '-m', copy, '--calibrate', '-o', copy)):
        check(f'bench usage: {name}', lambda pattern=pattern, args=args: stoker(*args).expect_failure(pattern, rc=USAGE))
    expect(copy.read_bytes() == EMBER.read_bytes(), 'the model was written over')
    expect(not (WORK / 'none').exists() and not (WORK / 'none.svg').exists(), 'a refused run left a file')


def lists():
    tests = bench('-p', '8,16', '-n', '4', '-d', '0,32', '-r', '3')
    expect([t['test'] for t in tests] == ['pp8', 'pp16', 'tg4', 'pp8 @ d32', 'pp16 @ d32', 'tg4 @ d32'], f'{[t["test"] for t in tests]}')
    for t in tests:
        n = t['n_prompt'] + t['n_gen']
        expect(len(t['samples']) == 3 and min(t['samples']) > 0, f'{t["samples"]}')
        expect(abs(t['tok_s'] - median(t['samples'])) <= 1e-6 * t['tok_s'], f'{t["tok_s"]} is not the median of {t["samples"]}')
        expect(t['stats']['n_token'] == 3 * n, f'{t["test"]}: {t["stats"]["n_token"]} tokens, not {3 * n}')
        expect(t['stats']['n_step'] == (3 * n if t['n_gen'] else 3), f'{t["test"]}: {t["stats"]["n_step"]} steps')
        expect(list(t['stage_ns']) == STAGES, f'{list(t["stage_ns"])}')
        stages, step = sum(t['stage_ns'].values()), t['stats']['step_ns'] / t['stats']['n_token']
        expect(0.85 * step <= stages <= 1.01 * step, f'{t["test"]}: stages take {stages:.0f} ns a token, the step {step:.0f}')
        expect(t['touched_bytes'] > 0 and t['int8_ops'] > 0 and t['median_ns'] > 0, f'{t}')
    deep, flat = tests[5], tests[2]
    expect(deep['touched_bytes'] > flat['touched_bytes'], 'a context of 32 tokens is no bytes')
    expect(tests[1]['touched_bytes'] < tests[0]['touched_bytes'], 'more tokens a step share no weights')


def zeros():
    expect([t['test'] for t in bench('-p', '0,8', '-n', '0', '-r', '1')] == ['pp8'], 'a size of 0 is a test')


def batches():
    t, = bench('-p', '40', '-n', '0', '-r', '2', '-b', '16')
    expect(t['stats']['n_step'] == 6 and t['n_batch'] == 16, f'{t["stats"]["n_step"]} steps of at most {t["n_batch"]}')


def misses():
    t, = bench('-p', '0', '-n', '8', '-r', '2', '--ram', '2M', '--io', 'emu:200M,100us')
    expect(t['token']['n_miss'] > 0 and t['token']['read_bytes'] >= t['token']['bytes'] > 0, f'{t["token"]}')
    expect(t['stage_ns']['io'] > 0 and t['stage_ns']['pack'] > 0, f'{t["stage_ns"]}')
    expect(t['token']['n_prefetch'] >= t['token']['n_prefetch_used'] > 0, f'nothing was read ahead: {t["token"]}')
    none, = bench('-p', '0', '-n', '8', '-r', '1', '--ram', '2M', '--io', 'emu:200M,100us', '--predictor', 'none')
    expect(none['token']['n_prefetch'] == 0 and none['token']['n_miss'] > 0, f'{none["token"]}')
    expect(t['memory']['io'] == 'emu' and t['memory']['n_slot'] < t['memory']['n_expert'], f'{t["memory"]}')


def as_csv():
    rows = list(csv.DictReader(io.StringIO(stoker(*BENCH, '-p', '8', '-n', '4', '-r', '2', '-o', 'csv').expect_success().out.decode())))
    expect([r['test'] for r in rows] == ['pp8', 'tg4'], f'{rows}')
    for r in rows:
        expect(None not in r and None not in r.values(), 'a row has more or fewer fields than the head')
        expect(all(f'{s}_ns' in r for s in STAGES), f'{list(r)}')
        expect(float(r['tok_s']) > 0 and r['repetitions'] == '2' and r['model'] == 'ember 40M', f'{r}')


def as_table():
    out = stoker(*BENCH, '-p', '8', '-n', '4', '-r', '2').expect_success().out.decode()
    tables = [[line.strip('|').split('|') for line in table.splitlines()] for table in out.strip().split('\n\n')]
    expect(len(tables) == 2 and all(len({len(row) for row in table}) == 1 for table in tables), f'{out}')
    expect([row[5].strip() for row in tables[0][2:]] == ['pp8', 'tg4'], f'{out}')
    expect([row[0].strip() for row in tables[1][2:]] == STAGES, f'{out}')
    said = stoker('bench', '-m', EMBER, '-p', '8', '-n', '0', '-r', '1', '--stats').expect_success().text()
    expect('n_lookup' in said and 'pp8' in said, f'{said}')


def limits():
    alone, = json.loads(stoker('bench', '--limits', '--json', '-t', '2', '-q').expect_success().out)
    expect(alone['test'] == 'limits' and alone['samples'] == [] and alone['tok_s'] == 0, f'{alone}')
    of_model, = bench('-p', '0', '-n', '4', '-r', '1', '--limits', '-t', '2')
    for limit in (alone['limits'], of_model['limits']):
        for key, least, most in (('read_bytes_per_s', 1e8, 2e13), ('int8_ops_per_s', 1e7, 1e15), ('float_ops_per_s', 1e7, 1e15), ('run_ns', 1, 1e9),
                                 ('phase_ns', 1, 1e9), ('buffer_bytes', 1e7, 1e12)):
            expect(least <= limit[key] <= most, f'{key} is {limit[key]}')
        expect(limit['n_threads'] == 2, f'{limit}')
    for key, least, most in (('layer_ns', 10, 1e9), ('router_ns', 10, 1e9), ('drive_bytes_per_s', 1e4, 1e12), ('drive_after_bytes_per_s', 1e4, 1e12)):
        expect(least <= of_model['limits'][key] <= most, f'{key} is {of_model["limits"][key]}')
    share = of_model['bytes_per_s'] / of_model['limits']['read_bytes_per_s']
    expect(abs(of_model['read_share'] - share) < 1e-6 * share, f'{of_model["read_share"]} is not {share}')
    expect(0 < of_model['int8_share'] < 1, f'{of_model["int8_share"]}')
    out = stoker('bench', '--limits', '-q', '-o', 'csv', '--cpu', 'ref').expect_success().out.decode()
    row, = csv.DictReader(io.StringIO(out))
    expect(row['cpu'] == 'ref' and float(row['read_bytes_per_s']) > 0, f'{out}')
    expect('| a phase of a job |' in stoker('bench', '--limits', '-q').expect_success().out.decode(), 'no table')


def picture():
    path = WORK / 'token.svg'
    path.unlink(missing_ok=True)
    expect(bench('-p', '0', '-n', '0', '--svg', path) == [], 'no test is a test')
    root = ElementTree.parse(path).getroot()
    local = [e.tag.split('}')[1] for e in root.iter()]
    expect(local[0] == 'svg' and local.count('title') > 100, f'{local.count("title")} stretches')
    texts = [e.text for e in root.iter() if e.tag.endswith('}text')]
    expect('layer 0' in texts and '5' in texts and any(t.startswith('One token: ') for t in texts), f'{texts}')
    expect(all(s in texts for s in STAGES), f'{texts}')
    expect(not re.search(r'href|<image|<script|url\((?!#)|https?:(?!//www.w3.org/2000/svg)', path.read_text()), 'it needs something else')

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    before = path.read_bytes()
    p = subprocess.run([STOKER, *BENCH, '-p', '0', '-n', '0', '--json', '--svg', path], capture_output=True, preexec_fn=limit, check=False)
    expect(p.returncode == FAILED and b'File too large' in p.stderr, f'{p.returncode}, {p.stderr!r}')
    expect(path.read_bytes() == before and not list(WORK.glob('token.svg.*')), 'half a picture')
    stoker(*BENCH, '-p', '0', '-n', '0', '--svg', WORK / 'no' / 'x.svg').expect_failure('No such file')


def failures():
    stoker(*BENCH, '-p', '8', '-n', '0', '--ram', '64K').expect_failure('the least is')
    stoker('bench', '-m', WORK / 'nowhere.gguf').expect_failure('No such file')
    p = subprocess.Popen([STOKER, 'bench', '-m', EMBER, '-n', '200', '-r', '10000'], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stderr.readline()
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=120)
    expect(p.returncode == 130 and out == b'' and err.decode().strip().endswith('interrupted by SIGINT'), f'{p.returncode}, {out!r}, {err[-200:]!r}')
    with open('/dev/full', 'wb') as f:
        p = subprocess.run([STOKER, *BENCH, '-p', '8', '-n', '0', '-r', '1'], stdout=f, stderr=subprocess.PIPE, check=False)
    expect(p.returncode == FAILED and b'No space left' in p.stderr, f'{p.returncode}, {p.stderr!r}')


def findings():
    j = json.loads(stoker('doctor', '-m', EMBER, '--json').expect_success().out)
    topics = list(dict.fromkeys(f['topic'] for f in j['findings']))  # one of each card's link
    expect(topics == ['kernels', 'cores', 'NUMA', 'GPU link', 'memory', 'huge pages', 'locked memory', 'GPU', 'io_uring', 'direct reads',
                      'read-ahead', 'file system', 'drive speed'], f'{topics}')
    for f in j['findings']:
        expect(f['level'] in ('ok', 'note', 'problem') and f['found'] and (f['level'] == 'ok') == (f['advice'] == ''), f'{f}')
    lines = stoker('doctor').expect_success().out.decode().splitlines()
    expect(sum(bool(re.match('(ok|note|problem) ', x)) for x in lines) >= 8, f'{lines}')
    refused = stoker('doctor', refuse='io_uring').expect_success().out.decode()
    expect(re.search('^problem +io_uring .*\n +-> ', refused, re.M), f'{refused}')
    stoker('doctor', '-m', WORK / 'nowhere.gguf').expect_failure('No such file')


def calibration():
    cache = WORK / 'cache'
    shutil.rmtree(cache, ignore_errors=True)
    env = {'XDG_CACHE_HOME': str(cache)}
    j = json.loads(stoker('doctor', '--calibrate', '-m', EMBER, '--json', '-t', '2', env=env).expect_success().out)
    path, = (cache / 'stoker').iterdir()
    expect(j['file'] == str(path) and path.name.endswith('-2t.json'), f'{j["file"]}, {path}')
    c = json.loads(path.read_text())
    expect(c == j['calibration'] and c['stoker_cost'] == 1 and c['threads'] == 2, f'{c}')
    expect(set(c['formats']) == {'F32', 'F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_K', 'Q5_K', 'Q6_K'}, f'{set(c["formats"])}')
    expect(c['model']['name'] == 'ember 40M' and c['model']['file_bytes'] == EMBER.stat().st_size, f'{c["model"]}')
    for f in (*c['formats'].values(), c['model']):
        expect(len(f['expert_ns_per_byte']) == 10 and all(1e-4 < x < 1e5 for x in f['expert_ns_per_byte']), f'{f}')
    expect(all(c['drive'][k] > 0 for k in ('bytes_per_s', 'bytes_per_s_computing', 'compute_slowdown', 'latency_ns')), f'{c["drive"]}')

    known, = bench('-p', '0', '-n', '2', '-r', '1', '-t', '2', env=env)
    share = known['bytes_per_s'] / c['limits']['read_bytes_per_s']
    expect(abs(known['read_share'] - share) < 1e-6 * share and 'limits' not in known, 'the limits of the calibration are not used')

    trace = WORK / 'cost.trace'
    run = ('run', '-m', EMBER, '-p', 'Once upon a time', '-n', '6', '-t', '2', '--temp', '0')
    text = stoker(*run, '--ram', '3M', '--trace', trace, env=env).expect_success().out
    predicted = json.loads(stoker('replay', trace, '--cost', path, '--json').expect_success().out)
    expect(predicted['tokens_per_second'] > 0 and predicted['virtual_ns'] > 0, f'{predicted}')
    faster = json.loads(stoker('replay', trace, '--cost', path, '--io', 'emu:100G,1us', '--json').expect_success().out)
    expect(faster['virtual_ns'] < predicted['virtual_ns'], f'{faster["virtual_ns"]} with a drive without end, {predicted["virtual_ns"]} with this one')
    expect('predicted' in stoker('replay', trace, '--cost', path).expect_success().out.decode(), 'no prediction')

    expect('measured with' in stoker(*run, '--cost', path, '-t', '1').expect_success().text(), 'nothing is said of another number of threads')
    path.write_text(path.read_text()[:200])
    r = stoker(*run, env=env).expect_success()
    expect(f'warning: cost file {path}' in r.text() and r.out == text, f'{r.text()}')
    stoker(*run, '--cost', path).expect_failure('cost file .*JSON')
    stoker('replay', trace, '--cost', WORK / 'nowhere.json').expect_failure('nowhere.json')
    own, named = (json.loads(stoker('replay', trace, '--io', 'emu:1G,50us', *args, '--json').expect_success().out) for args in ((), ('--cost', trace)))
    expect(named['virtual_ns'] == own['virtual_ns'] > 0, f'{named["virtual_ns"]} by the costs of the trace itself, {own["virtual_ns"]} without them')
    stoker('replay', trace, '--cost', trace).expect_failure('want a drive', rc=USAGE)


def main():
    WORK.mkdir(exist_ok=True)
    check('bench usage: refused runs change no file', mistakes)
    for function in (lists, zeros, batches, misses, as_csv, as_table, limits, picture, failures):
        check(f'bench: {function.__name__}', function)
    check('doctor: findings', findings)
    check('doctor: calibration', calibration)
    finish()


main()
