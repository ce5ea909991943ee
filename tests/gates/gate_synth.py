#!/usr/bin/env python3
"""stoker synth: mistakes are one message and leave nothing, nor do a signal or a full disk; and a model made from a trace repeats it."""
import json
import re
import resource
import shutil
import signal
import subprocess
import time

from harness import EMBER, STOKER, WORK, Failed, Run, Skipped, check, expect, finish, floats, logits, stoker

DIR = WORK / 'synth'
OUT = DIR / 'model.gguf'
TINY = ('synth', 'tiny', 'Q4_K_M', '-o', OUT)
LARGE = ('synth', 'qwen3-30b-a3b-quarter', 'Q4_K_M', '-o', OUT)  # 5 GB, reserved and given back


def only(*names):
    found = sorted(p.name for p in DIR.iterdir())
    expect(found == sorted(names), f'in the directory: {found}, not {sorted(names)}')


def usage():
    n = 0
    for args, pattern in (
            (('synth',), 'which SHAPE TYPE'),
            (('synth', 'tiny'), r'which TYPE\? \(stoker synth SHAPE TYPE\)'),
            (('synth', 'tiny', 'Q4_K_M', 'x'), "unexpected argument 'x'"),
            (('synth', 'tiny', 'Q4_K_M'), r'where to\?'),
            (('synth', 'qwen', 'Q4_K_M', '-o', OUT), 'there are qwen3-30b-a3b, mixtral-8x7b, deepseek-v2-lite, qwen2-57b-a14b, tiny'),
            (('synth', 'tiny', 'q4', '-o', OUT), 'there are Q4_K_M, Q5_K_M, Q8_0, Q4_0, BF16, F16, F32'),
            ((*TINY, '--vocab', '100'), '257 to 16777216'),
            ((*TINY, '--layers', '2', '--route-from', 'x'), 'exclude one another'),
            (('synth', 'tiny', 'Q4_K_M', '-o', '/dev/null'), 'not a regular file'),
            (('synth', 'tiny', 'Q4_K_M', '-o', DIR), 'not a regular file')):
        stoker(*args).expect_failure(pattern, rc=2)
        n += 1
    stoker('synth', 'tiny', 'Q4_K_M', '-o', DIR / 'none' / 'x').expect_failure('No such file')
    stoker(*TINY, '--route-from', '/nowhere').expect_failure('No such file')
    stoker(*TINY, '--route-from', EMBER).expect_failure('trace')
    only()
    return f'{n + 3} mistakes'


def works():
    r = stoker(*TINY).expect_success()
    expect(re.search(r'model\.gguf: \S+ MiB in \S+ s, ', r.text()), r.text())
    expect(not stoker(*TINY, '-q').expect_success().err, '-q is not quiet')
    first = OUT.read_bytes()
    stoker(*TINY, '--seed', 1).expect_success()
    expect(first != OUT.read_bytes(), 'another seed gives the same file')
    stoker(*TINY).expect_success()
    expect(first == OUT.read_bytes(), 'the same seed gives another file')
    only('model.gguf')
    out = stoker('run', '-m', OUT, '-p', 'Hello, world', '-n', 8, '--temp', 0, '-q').expect_success().out
    expect(len(out) > 8, f'the text is {out!r}')
    return f'{len(first)} bytes'


def interrupted(sig):
    OUT.write_bytes(b'old')
    p = subprocess.Popen([str(a) for a in (STOKER, *LARGE)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        end = time.monotonic() + 60
        while len(list(DIR.iterdir())) < 2 and p.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.2)
        if p.poll() is not None:
            err = p.stderr.read().decode()
            raise Skipped(err.strip()) if 'are free there' in err else Failed(f'ended by itself with {p.returncode}: {err}')
        p.send_signal(sig)
        err = p.communicate(timeout=120)[1].decode()
    finally:
        p.kill()
        p.wait()
    expect(p.returncode == 128 + sig and 'interrupted' in err, f'ended with {p.returncode}: {err}')
    expect(OUT.read_bytes() == b'old', 'the file that was there has changed')
    only('model.gguf')


def file_size_limit():
    OUT.write_bytes(b'old')
    program = subprocess.run([str(a) for a in (STOKER, *TINY)], capture_output=True, check=False,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY)))
    expect(program.returncode == 1 and b'File too large' in program.stderr, f'ended with {program.returncode}: {program.stderr.decode()}')
    expect(OUT.read_bytes() == b'old', 'the file that was there has changed')
    only('model.gguf')


def full_disk():
    """A file system of 4 MiB of our own, where the system lets us mount one."""
    unshare = shutil.which('unshare')
    script = 'mount -t tmpfs -o size=4m stoker "$1" || exit 77; "$2" synth tiny Q4_K_M -o "$1/x.gguf"; echo "rc $?"; ls -A "$1"'
    if not unshare:
        raise Skipped('no unshare')
    r = Run([unshare, '--user', '--map-root-user', '--mount', 'sh', '-c', script, 'sh', DIR, STOKER])
    if r.rc == 77 or b'unshare' in r.err:
        raise Skipped(f'cannot mount a file system: {r.last()}')
    expect(r.out.decode().split('\n')[:2] == ['rc 1', ''], f'{r.out.decode()!r}: a file is left, or the exit code is wrong')
    expect(re.search(r'MiB are needed, but only 4(\.0)? MiB are free there', r.text()), r.text())


def greedy(model, n):
    r = stoker('logits', '-m', model, '--tokens', 0, '--greedy', n, '-o', DIR / 'logits', '--json', '-q').expect_success()
    (DIR / 'logits').unlink()
    return json.loads(r.out)['greedy']


def follows():
    trace, again = DIR / 'ember.trace', DIR / 'again.trace'
    stoker('run', '-m', EMBER, '-p', 'Once upon a time', '-n', 100, '--temp', 0, '--ignore-eos', '--trace', trace, '-q').expect_success()
    n_token = json.loads(stoker('replay', trace, '--json').expect_success().out)['stats']['n_token']
    r = stoker(*TINY, '--route-from', trace).expect_success()
    expect('starts over' not in r.text(), r.text())
    want = [(i + 1) % n_token for i in range(n_token + 10)]
    got = greedy(OUT, len(want))
    expect(got == want, f'after entry 0 come {got}')
    stoker('run', '-m', OUT, '--tokens', 0, '-n', n_token, '--temp', 0, '--ignore-eos', '--trace', again, '-q').expect_success()
    # With room for all, every expert is missed once: as many of each layer's experts were ever used. (tests/unit/test_synth.c compares each one.)
    one, two = (json.loads(stoker('replay', t, '--json', '--slots', 6 * 32).expect_success().out)['stats'] for t in (trace, again))
    expect(one['n_miss'] == two['n_miss'] and one['n_pair'] == two['n_pair'], f'recorded {one}, in the model {two}')
    return f'{n_token} tokens, the last one back to the first; {two["n_miss"]} experts used, as recorded'


def logits_name_the_next():
    n = 2048
    x = floats(logits(OUT, [5, 77, 5], chunk=1))
    for row, token in enumerate((5, 77, 5)):
        values = x[row * n:(row + 1) * n]
        expect(values[token + 1] > 31 and max(v for i, v in enumerate(values) if i != token + 1) < 1, f'after {token}: {max(values)}')


def main():
    shutil.rmtree(DIR, ignore_errors=True)
    DIR.mkdir(parents=True)
    check('synth: mistakes', usage)
    check('synth: a model that runs, the same for the same seed', works)
    check('synth: SIGINT leaves nothing', interrupted, signal.SIGINT)
    check('synth: SIGTERM leaves nothing', interrupted, signal.SIGTERM)
    check('synth: a file-size limit leaves nothing', file_size_limit)
    check('synth: a full disk leaves nothing', full_disk)
    check('synth: a model from a trace repeats it', follows)
    check('synth: its logits', logits_name_the_next)
    shutil.rmtree(DIR, ignore_errors=True)
    finish()


main()
