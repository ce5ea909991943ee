#!/usr/bin/env python3
"""stoker pack: a packed model gives the bits of the plain one whatever the cache, reads and threads are; mistakes, signals and full disks leave nothing;
damage is found; other programs refuse it."""
import json
import re
import resource
import shutil
import signal
import subprocess
import time

from gguf_lite import Layout
from harness import (DATA, EMBER, STOKER, WORK, Failed, Run, Skipped, all_ram, check, draw_tokens, expect, finish, least_ram, logits, made_model, need, sha256,
                     stoker)

DIR = WORK / 'pack'
OUT = DIR / 'model.gguf'
PACK = ('pack', '-m', EMBER, '-o', OUT)


def only(*names):
    found = sorted(p.name for p in DIR.iterdir())
    expect(found == sorted(names), f'in the directory: {found}, not {sorted(names)}')


def usage():
    for args, pattern in (
            (('pack',), r'which model\? \(-m FILE\)'),
            (('pack', '-m', EMBER), r'where to\? \(-o FILE\)'),
            (('pack', '-m', EMBER, '-o', OUT, 'x'), "unexpected argument 'x'"),
            (('pack', '-m', EMBER, '-o', OUT, '--layers', '3'), 'layers')):
        stoker(*args).expect_failure(pattern, rc=2)
    for args, pattern in (
            (('pack', '-m', DIR / 'none', '-o', OUT), 'none'),
            (('pack', '-m', EMBER, '-o', EMBER), 'a file of the model'),
            (('pack', '-m', EMBER, '-o', DIR), 'not a regular file'),
            (('pack', '-m', EMBER, '-o', DIR / 'none' / 'x'), 'No such file'),
            ((*PACK, '--io', 'emu:1G,1us,eio=100'), 'EIO|rror'),
            ((*PACK, '--io', 'tape'), 'tape'),
            (('inspect', '--check', EMBER), 'not a packed model')):
        stoker(*args).expect_failure(pattern)
    only()


def works():
    OUT.write_bytes(b'old')
    r = stoker(*PACK).expect_success()
    expect(re.search(r'model\.gguf: \S+ MiB in \S+ s, ', r.text()), r.text())
    first = sha256(OUT)
    expect(not stoker(*PACK, '-q', '--io', 'pread').expect_success().err, '-q is not quiet')
    expect(sha256(OUT) == first, 'read in another way the file is another')
    stoker('pack', '-m', OUT, '-o', DIR / 'again.gguf').expect_failure('packed already')
    only('model.gguf')
    text = stoker('inspect', '--check', OUT).expect_success().out.decode()
    expect('packed (form 1)' in text and 'checksums are right' in text, text)
    a, b = (json.loads(stoker('inspect', '--json', m).expect_success().out) for m in (EMBER, OUT))
    for key in ('arch', 'name', 'n_layer', 'n_param', 'expert_bytes', 'dense_bytes', 'token_bytes', 'bytes_by_type', 'expert_classes'):
        expect(a[key] == b[key], f'{key}: {a[key]}, packed {b[key]}')
    expect((a['packed'], b['packed']) == (0, 1), 'inspect does not tell which is packed')
    text = [stoker('run', '-m', m, '-p', 'Once upon a time', '-n', 40, '-s', 7, '-q').expect_success().out for m in (EMBER, OUT)]
    expect(text[0] == text[1] and len(text[0]) > 20, f'{text[0]!r}, packed {text[1]!r}')


def same_bits(model, plain):
    """Every budget, policy, way of reading and thread count: the logits of the plain model."""
    tokens = draw_tokens(24, json.loads(stoker('inspect', '--json', plain).expect_success().out)['n_vocab'])
    want, n = logits(plain, tokens), 0
    for flags in (dict(ram=least_ram(model)), dict(ram=all_ram(model)), dict(ram=least_ram(model), io='pread', t=1), dict(ram=least_ram(model), cpu='ref'),
                  dict(ram=2 * least_ram(model), policy='lfu', chunk=1), dict(ram=least_ram(model), predictor='none', chunk=5),
                  dict(ram=2 * least_ram(model), io='emu:200M,50us,reorder,seed=3', chunk=1), dict(ram=all_ram(model), cpu='avx2', chunk=7),
                  dict(ram=2 * least_ram(model), predictor='popularity', io='emu:100M,1ms,short=5', chunk=1)):
        expect(logits(model, tokens, **flags) == want, f'{flags}: other logits')
        n += 1
    return f'{n} ways'


def same_bits_of(plain):
    path = DIR / 'packed.gguf'
    stoker('pack', '-m', plain, '-o', path, '-q').expect_success()
    try:
        return same_bits(path, plain)
    finally:
        path.unlink()


def repeats():
    """A recorded run of a packed model is repeated by a replay, and predicted on another drive."""
    trace = DIR / 'run.trace'
    stoker('run', '-m', OUT, '-p', 'Once upon a time', '-n', 30, '--ram', '6M', '--temp', 0, '--ignore-eos', '--trace', trace, '-q').expect_success()
    stoker('replay', trace, '--verify').expect_success()
    stats = json.loads(stoker('replay', trace, '--json', '--io', 'emu:100M,50us').expect_success().out)['stats']
    expect(stats['n_miss'] > 0 and stats['wait_ns'] > 0 and stats['arrive_ns'] == 0, f'{stats}')
    trace.unlink()


def interrupted(sig):
    OUT.write_bytes(b'old')
    p = subprocess.Popen([str(a) for a in (STOKER, 'pack', '-m', EMBER, '-o', OUT, '--io', 'emu:2M,1ms')], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        end = time.monotonic() + 60
        while len(list(DIR.iterdir())) < 2 and p.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        if p.poll() is not None:
            raise Failed(f'ended by itself with {p.returncode}: {p.stderr.read().decode()}')
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
    program = subprocess.run([str(a) for a in (STOKER, *PACK)], capture_output=True, check=False,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY)))
    expect(program.returncode == 1 and b'File too large' in program.stderr, f'ended with {program.returncode}: {program.stderr.decode()}')
    expect(OUT.read_bytes() == b'old', 'the file that was there has changed')
    only('model.gguf')


def full_disk():
    unshare = shutil.which('unshare')
    script = 'mount -t tmpfs -o size=4m stoker "$1" || exit 77; "$2" pack -m "$3" -o "$1/x.gguf"; echo "rc $?"; ls -A "$1"'
    if not unshare:
        raise Skipped('no unshare')
    r = Run([unshare, '--user', '--map-root-user', '--mount', 'sh', '-c', script, 'sh', DIR, STOKER, EMBER])
    if r.rc == 77 or b'unshare' in r.err:
        raise Skipped(f'cannot mount a file system: {r.last()}')
    expect(r.out.decode().split('\n')[:2] == ['rc 1', ''], f'{r.out.decode()!r}: a file is left, or the exit code is wrong')
    expect(re.search(r'MiB are needed, but only 4(\.0)? MiB are free there', r.text()), r.text())


def damaged():
    """A damaged head is refused by whatever opens the file; a damaged weight is found by a check."""
    stoker(*PACK).expect_success()
    data = bytearray(OUT.read_bytes())
    fields = Layout(data).fields
    bad = DIR / 'bad.gguf'
    for name, part in (('stoker.packed.version', 'form'), ('stoker.packed.types.item', 'stoker.packed.types'), ('blk.3.ffn_exps.packed.dim0', 'ffn_exps'),
                       ('qwen3moe.rope.freq_base', 'damaged'), ('stoker.packed.seal.offset', 'seal')):
        offset, _ = fields[name]
        data[offset] ^= 2
        bad.write_bytes(data)
        data[offset] ^= 2
        for verb in (('run', '-p', 'x', '-n', 1, '-m'), ('inspect',)):
            stoker(*verb, bad).expect_failure(part)
    data[len(data) // 2] ^= 4
    bad.write_bytes(data)
    stoker('inspect', bad).expect_success()
    stoker('inspect', '--check', bad).expect_failure('bad.gguf: expert .* of layer .* is damaged')
    bad.write_bytes(data[:len(data) // 2])
    stoker('inspect', bad).expect_failure('bad.gguf')
    bad.unlink()


def others_refuse():
    """What every reader of GGUF looks at first names a program that is not it."""
    data = OUT.read_bytes()
    offset, n = Layout(data).fields['general.architecture']
    expect(data[offset:offset + n] == b'stoker-packed', f'{data[offset:offset + n]}')
    expect(data[:8] == b'GGUF\x03\0\0\0', 'no GGUF file of version 3')


def main():
    need(EMBER)
    shutil.rmtree(DIR, ignore_errors=True)
    DIR.mkdir(parents=True)
    check('pack: mistakes', usage)
    check('pack: a model that runs as the plain one', works)
    check('pack: the same bits, trained model', same_bits, OUT, EMBER)
    for name in ('r352', 'r768', 'r2048'):  # ragged shapes; one read and two reads of an expert; mixed types
        check(f'pack: the same bits, {name}', same_bits_of, made_model(name, name))
    for option in ('form=fused', 'form=single', 'parts=3'):
        check(f'pack: the same bits, r352 stored with {option}', same_bits_of, made_model('r352-' + option.replace('=', '-'), 'r352', option))
    for name in ('llama-bf16', 'qwen3moe-f32'):
        check(f'pack: the same bits, {name}', same_bits_of, DATA / 'tiny' / f'{name}.gguf')
    check('pack: traces repeat', repeats)
    check('pack: SIGINT leaves nothing', interrupted, signal.SIGINT)
    check('pack: SIGTERM leaves nothing', interrupted, signal.SIGTERM)
    check('pack: a file-size limit leaves nothing', file_size_limit)
    check('pack: a full disk leaves nothing', full_disk)
    check('pack: damage is found', damaged)
    check('pack: others refuse it', others_refuse)
    shutil.rmtree(DIR, ignore_errors=True)
    finish()


main()
