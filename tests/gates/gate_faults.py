#!/usr/bin/env python3
"""What goes wrong around a run: budgets too small, systems that refuse, drives that fail, full disks, signals, a reader that leaves. One clear message, a
non-zero exit, no crash; where the run can go on, it goes on and says so."""
import os
import re
import signal
import subprocess
import time

from harness import DATA, EMBER, SHIM, STOKER, WORK, check, draw_tokens, expect, finish, least_ram, logits, stoker

UNITS = {'': 1, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}
RUN = ['run', '-m', EMBER, '-p', 'Once upon a time', '--temp', '0', '--ignore-eos']


def too_small():
    """The error names the least; with that it runs, with a little less it does not."""
    message = stoker(*RUN, '-n', '4', '--ram', '4096').expect_failure('ram', 'least')
    least = least_ram(EMBER)
    exact = [int(x) for x in re.findall(r'\b(\d{4,})\b', message)]
    rounded = [(float(n), UNITS[u]) for n, u in re.findall(r'(\d+(?:\.\d+)?) ?([KMG])(?:i?B)?\b', message)]
    expect(least in exact or any(abs(n * u - least) <= 0.06 * u for n, u in rounded), f'{least} is the least, the message says: {message}')
    stoker(*RUN, '-n', '4', '--ram', least).expect_success()
    stoker(*RUN, '-n', '4', '--ram', least - 1).expect_failure('least')


def refusals():
    """Systems that refuse O_DIRECT or io_uring: the same logits, one line that says so."""
    tokens = draw_tokens(60, 4096)
    least = least_ram(EMBER)
    want = logits(EMBER, tokens)
    for word, says in (('direct', 'direct'), ('uring', 'io_uring|pread'), ('direct,uring', 'direct')):
        out = WORK / 'refused.bin'
        r = stoker('logits', '-m', EMBER, '--tokens', ','.join(map(str, tokens)), '-o', out, '--ram', least, refuse=word).expect_success()
        expect(out.read_bytes() == want, f'other logits without {word}')
        lines = [x for x in r.text().split('\n') if re.search(says, x, re.I)]
        expect(len(lines) >= 1, f'no line says that {word} is refused: {r.text()!r}')


def eio():
    """A read that fails in mid-run."""
    for n in (1, 30, 200):
        stoker(*RUN, '-n', '60', '--ram', least_ram(EMBER), '--io', f'emu:4G,20us,eio={n}').expect_clean()
        stoker('logits', '-m', EMBER, '--tokens', ','.join(map(str, draw_tokens(200, 4096))), '--chunk', '1', '-o', WORK / 'eio.bin', '--ram', least_ram(EMBER),
               '--predictor', 'none', '--io', f'emu:4G,20us,eio={n}').expect_failure('EIO|I/O|input/output|read')


def eio_ahead():
    """A read ahead that fails is read again where it is wanted: the same text, and one line that names the file. How many there are, the clock decides."""
    args, n_failed = [*RUN, '-n', '60', '--ram', 4 * least_ram(EMBER), '--predictor', 'gate', '--lookahead', 3, '--io'], 0
    want = stoker(*args, 'emu:4G,20us').expect_success().out
    for n in (1, 2, 3, 7, 20):
        r = stoker(*args, f'emu:4G,20us,eio-ahead={n}').expect_success()
        expect(r.out == want, f'other text when read ahead {n} fails')
        said = [x for x in r.text().split('\n') if 'read ahead;' in x]
        expect(len(said) <= 1 and all(EMBER.name in x for x in said), f'{n}: {said}')
        n_failed += len(said)
    expect(n_failed > 0, 'no read ahead failed')
    return f'{n_failed} of 5 runs had one that failed'


def short_reads():
    tokens = draw_tokens(40, 4096)
    want = logits(EMBER, tokens)
    for n in (1, 2, 50):
        expect(logits(EMBER, tokens, ram=least_ram(EMBER), io=f'emu:4G,20us,short={n}') == want, f'other logits when read {n} is short')


def full_disk():
    r = stoker(*RUN, '-n', '30', '--trace', '/dev/full').expect_clean()
    expect(r.rc == 1, f'ended with {r.rc}: {r.last()}')
    expect(re.search('space|full', r.text(), re.I), f'no word of a full disk: {r.text()!r}')
    r = stoker('logits', '-m', EMBER, '--tokens', '1,2,3', '-o', '/dev/full').expect_failure('space|full')


def interrupted(number, trace=None):
    """The program is stopped in mid-run: it ends with 128 + the signal, after its table; what it printed stands."""
    args = [STOKER, *RUN, '-n', '100000', '-c', '100000', '--io', 'emu:300M,1ms', '--ram', str(least_ram(EMBER)), *(['--trace', trace] if trace else [])]
    p = subprocess.Popen([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    expect(p.stdout.read(8), 'no text')
    p.send_signal(number)
    started = time.monotonic()
    out, err = p.communicate(timeout=60)
    took, text = time.monotonic() - started, err.decode(errors='replace')
    expect(p.returncode == 128 + number, f'ended with {p.returncode}: {text[-200:]!r}')
    expect(took < 5, f'took {took:.1f} s to end')
    expect(re.search(r'tok/s', text), f'no closing table: {text[-300:]!r}')
    expect('Sanitizer' not in text, text)
    if trace:
        stoker('replay', trace, '--verify').expect_success()


def reader_leaves():
    """`stoker run ... | head -c 1`."""
    p = subprocess.Popen([str(a) for a in [STOKER, *RUN, '-n', '2000', '-c', '4096']], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.stdout.close()
    err = p.stderr.read().decode(errors='replace')
    p.wait(60)
    expect(p.returncode > 0, f'ended with {p.returncode}: {err[-200:]!r}')
    messages = [x for x in err.split('\n') if x.startswith('stoker: ') and 'warning' not in x]
    expect(len(messages) == 1, f'{len(messages)} messages: {messages}')


def closed_output():
    r = subprocess.run(f'{STOKER} version >&-', shell=True, stderr=subprocess.PIPE, check=False)
    expect(r.returncode == 1, f'version with a closed stdout ended with {r.returncode}: {r.stderr!r}')


def context_full():
    """Generation stops at a full context with a message; that is no failure."""
    r = stoker(*RUN, '-n', '500', '-c', '64').expect_success()
    expect(re.search('context', r.text(), re.I), f'no word of the context: {r.text()[-300:]!r}')


def main():
    long = 'word ' * 400
    check('faults: --ram too small', too_small)
    check('faults: a prompt longer than the context', lambda: stoker('run', '-m', EMBER, '-p', long, '-c', '64', '-n', '4').expect_failure('context') and None)
    check('faults: tokens beyond the context', lambda: stoker('logits', '-m', EMBER, '--tokens', '1,2,3,4', '-c', '2', '-o', os.devnull).expect_failure('context') and None)
    check('faults: a token the vocabulary lacks', lambda: stoker('logits', '-m', EMBER, '--tokens', '1,4096', '-o', os.devnull).expect_failure('4096', rc=2) and None)
    check('faults: the context fills up', context_full)
    if SHIM.exists():
        check('faults: O_DIRECT and io_uring refused', refusals)
        check('faults: --io uring where it is refused', lambda: stoker('logits', '-m', EMBER, '--tokens', '1', '-o', os.devnull, '--io', 'uring',
                                                                       refuse='uring').expect_failure('uring') and None)
    check('faults: EIO in mid-run', eio)
    check('faults: EIO of reads ahead', eio_ahead)
    check('faults: short reads', short_reads)
    check('faults: a full disk', full_disk)
    for number in (signal.SIGINT, signal.SIGTERM):
        check(f'faults: {number.name}', interrupted, number)
    check('faults: SIGINT with a trace', interrupted, signal.SIGINT, str(WORK / 'interrupted.trace'))
    check('faults: the reader leaves', reader_leaves)
    check('faults: stdout is closed', closed_output)
    check('faults: text for a model without a tokenizer', lambda: stoker('run', '-m', DATA / 'tiny' / 'llama-f32.gguf', '-p', 'x').expect_failure('tokeni') and None)
    for args, rc in ((['run', '--no-such-option'], 2), (['run', '-m'], 2), (['nonsense'], 2), (['run', '-m', EMBER, '-p', 'x', '--ram', 'much'], 2),
                     (['run', '-m', EMBER, '-p', 'x', '--io', 'emu:fast'], 2), (['run', '-m', EMBER, '-p', 'x', '--cpu', 'z80'], 2),
                     (['replay', EMBER], 1), (['replay', '/nonexistent'], 1)):
        check(f'faults: stoker {" ".join(map(str, args[:1] + args[-2:]))}', lambda: stoker(*args).expect_failure(rc=rc) and None)
    finish()


main()
