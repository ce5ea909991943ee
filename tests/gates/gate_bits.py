#!/usr/bin/env python3
"""The same bits of logits for every cache size, thread count, I/O backend, CPU table and way to cut a prompt; for sequences alone and among others.

The trained model is too small to show everything: random models have rows of several blocks, sizes 768, 1,792 and 2,048, every weight format, and
1,500 positions. The portable kernels (`--cpu ref`) take part with a shorter prompt on the larger models, which loses nothing: that a shorter
prompt's logits are a prefix of a longer one's is part of the claim.

usage: gate_bits.py [BUILD_DIR [MODEL...]]
"""
import re
import sys

from harness import EMBER, PROBE, SANITIZED, Failed, Run, Skipped, all_ram, check, draw_tokens, expect, finish, first_difference, least_ram, logits, made_model, probe

RAGGED = '7,64,1,130,2,65,33,256,3'


def cpu_tables():
    """The kernels that this CPU has, with what is missing as a reason."""
    with open('/proc/cpuinfo') as f:
        flags = set(re.search(r'^flags\s*:(.*)$', f.read(), re.M).group(1).split())
    needs = {'ref': set(), 'avx2': {'avx2', 'fma', 'f16c'}, 'avxvnni': {'avx_vnni'}, 'avx512': {'avx512f', 'avx512bw', 'avx512dq', 'avx512vl', 'avx512_vnni'}}
    return {name: need - flags for name, need in needs.items()}


def same(model, n_vocab, want, tokens, missing=(), **flags):
    if missing:
        raise Skipped(f'this CPU lacks {", ".join(sorted(missing))}')
    difference = first_difference(logits(model, tokens, **flags), want[:4 * n_vocab * len(tokens)], n_vocab)
    if difference:
        raise Failed(difference)


def uring_works(model):
    r = Run([PROBE, 'stats', model, 'tokens=1', 'batch=1', 'io=uring'])
    return r.rc == 0


def compare(name, model, n_vocab, n, n_ref):
    """Every choice alone, then mixtures of choices, against one run with everything in RAM."""
    tokens = draw_tokens(n, n_vocab)
    least, everything = least_ram(model), all_ram(model)
    want = logits(model, tokens, ram=everything, t=2, b=512)
    check(f'bits {name}: a run of {n} positions', lambda: expect(len(want) == 4 * n * n_vocab, f'{len(want)} bytes'))
    half = (least + everything) // 2

    def case(what, tokens=tokens, **flags):
        check(f'bits {name}: {what}', same, model, n_vocab, want, tokens, **flags)

    for what, ram in {'the least': least, 'one slot more than the least': least + least // 4, 'half of the': half}.items():
        case(f'{what} RAM', ram=ram)
    for t in (1, 3):
        case(f'{t} threads', t=t)
    if uring_works(model):
        case('io_uring', ram=least, io='uring')
    case('pread', ram=least, io='pread')
    case('a modelled drive with reordered completions', ram=least, io='emu:2G,50us,reorder')
    case('the same with another seed and short reads', ram=least, io='emu:1G,200us,reorder,seed=77,short=3')
    for cpu, missing in cpu_tables().items():
        case(f'--cpu {cpu}', tokens=tokens[:n_ref] if cpu == 'ref' else tokens, cpu=cpu, missing=missing)
    case('ragged chunks', chunk=RAGGED)
    case('chunks of 512 and 511', chunk='512,511')
    n_single = min(n, 300)
    for depth in (1, 2, 3):
        case(f'token by token, {depth} layers read ahead', tokens=tokens[:n_single], chunk='1', ram=half, predictor='gate', lookahead=depth)
    case('read ahead, a slow drive, 3 threads', tokens=tokens[:min(n_single, 100)], chunk='1', t=3, ram=half, io='emu:300M,100us,reorder,seed=4',
         predictor='gate', lookahead=2)
    case('few tokens at a time, read ahead, the least RAM', tokens=tokens[:n_single], chunk='3', ram=least, predictor='gate', lookahead=3, io='pread')
    case('token by token, nothing read ahead', tokens=tokens[:n_single], chunk='1', ram=half, predictor='none')
    case('token by token', tokens=tokens[:n_single], chunk='1')
    case('token by token under the least RAM', tokens=tokens[:n_single], chunk='1', ram=least)
    case('ragged chunks, 3 threads, half the RAM, reordered, AVX2', chunk=RAGGED, t=3, ram=half, io='emu:3G,20us,reorder,seed=5', cpu='avx2',
         missing=cpu_tables()['avx2'])
    case('one thread, the least RAM, pread, single tokens, ref', tokens=tokens[:min(n_single, n_ref)], chunk='1', t=1, ram=least, io='pread', cpu='ref')
    check(f'bits {name}: sequences alone and among others', lambda: f'{probe("seqs", model, n=n, ctx=3 * n + 256, batch=200, kv="f32")["steps"]} steps')
    check(f'bits {name}: the same under the least RAM', lambda: f'{probe("seqs", model, n=min(n, 300), ctx=1024, batch=64, ram=least, seed=3)["steps"]} steps')


def forms(model, n_vocab):
    """One model stored in different ways: the same bits."""
    tokens = draw_tokens(80, n_vocab)
    want = logits(model, tokens)
    for option in ('form=single', 'form=fused', 'parts=3', 'version=2'):
        check(f'bits r352: stored with {option}', lambda: same(made_model('r352-' + option.replace('=', '-'), 'r352', option), n_vocab, want, tokens))


def main():
    scale = 4 if SANITIZED else 1
    models = {'ember': (4096, 250, 250), 'r352': (333, 1500, 300), 'r768': (500, 1500, 80), 'r2048': (500, 1500, 40)}
    for name in sys.argv[2:] or models:
        n_vocab, n, n_ref = models[name]
        path = EMBER if name == 'ember' else made_model(name, name)
        compare(name, path, n_vocab, n // scale, min(n // scale, n_ref))
        if name == 'r352':
            forms(path, n_vocab)
    finish()


main()
