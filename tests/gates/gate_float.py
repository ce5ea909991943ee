#!/usr/bin/env python3
"""--float fast: what it gives up and what it keeps; that it says so, and runs where oneDNN or the CPU's units are missing."""
import os
import subprocess

from harness import BUILD, SHARED, TESTS, WORK, EMBER, Skipped, check, expect, fast_or_skipped, finish, need, stoker

TOP = TESTS.parent
BF16 = SHARED / 'model' / 'ember-bf16.gguf'
TOKENS = ','.join(str(x) for x in [*range(300, 500), *range(310, 347)])


def logits(*options, model=BF16, **kwargs):
    return stoker('logits', '-m', need(model), '--tokens', TOKENS, '-o', '-', *options, **kwargs).expect_success()


def version():
    line = next((x for x in stoker('version').expect_success().out.decode().splitlines() if x.startswith('--float fast: ')), None)
    expect(line, '`stoker version` does not say whether oneDNN is there')
    return line.partition(': ')[2]


def refuses():
    stoker('run', '-m', EMBER, '-p', 'a', '--float', 'quick').expect_failure('--float', 'exact|fast', rc=2)


def quantized():
    """Nothing to serve: the same bits, and a line."""
    r = logits('--float', 'fast', model=EMBER)
    expect(r.out == logits(model=EMBER).out, 'another output')
    expect('no weights of F32, F16 or BF16' in r.text() or 'oneDNN' in r.text(), r.text())


def near():
    r = logits('--float', 'fast')
    exact = logits()
    if 'floats  fast' not in r.text():
        expect(r.out == exact.out, 'it says that products stay exact, yet the output differs')
    fast_or_skipped(r)
    expect(r.out != exact.out, 'the exact bits: nothing was fast')
    expect(logits('--float', 'exact').out == exact.out, '--float exact is not the default')
    return next(x for x in r.text().splitlines() if x.startswith('floats'))


def same():
    """The same bits, however much is cached, and however it is read."""
    one = logits('--float', 'fast')
    fast_or_skipped(one)
    for other in (['--ram', '6M'], ['--ram', '12M', '--policy', 'random'], ['--ram', '8M', '--predictor', 'none', '--io', 'pread'], ['--ram', '6M', '--scope', 'layer'], []):
        expect(logits('--float', 'fast', *other).out == one.out, f'other bits with {" ".join(other) or "the same"}')


def beside_device():
    """Experts of the CPU are as exact as those of the device: what is in VRAM does not show."""
    one = logits('--float', 'fast', '--device', 'emu', '--vram', '2M', '--ram', '12M')
    fast_or_skipped(one)
    expect(logits('--float', 'fast', '--device', 'emu', '--vram', '0', '--ram', '12M').out == one.out, 'the output depends on what is in VRAM')


def bounded():
    few = ['--tokens', '300,301,302,303,304,305,306,307,308,309']  # the plain kernels are slow
    r = logits('--float', 'fast', '--cpu', 'ref', *few)
    expect(r.out == logits(*few).out and 'stay exact' in r.text(), r.text()[-300:])


def missing():
    """A libdnnl that is none: the program goes on exactly."""
    broken = WORK / 'broken'
    broken.mkdir(parents=True, exist_ok=True)
    for major in (2, 3):
        (broken / f'libdnnl.so.{major}').write_text('no library')
    env = {'LD_LIBRARY_PATH': str(broken)}
    said = stoker('version', env=env).expect_success().out.decode()
    if 'not in this build' in said:
        raise Skipped('this build has no oneDNN')
    expect('no oneDNN here: ' in said, said)
    r = logits('--float', 'fast', env=env)
    expect('no oneDNN here: ' in r.text() and r.out == logits().out, r.text()[-300:])


def without():
    """What a build without oneDNN compiles."""
    cc = os.environ.get('CC', 'cc')
    out = WORK / 'without.o'
    WORK.mkdir(exist_ok=True)
    p = subprocess.run([cc, '-std=c11', '-D_GNU_SOURCE', '-Wall', '-Wextra', '-Werror', '-I', TOP, '-c', TOP / 'cpu' / 'fast_onednn.c', '-o', out],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    expect(p.returncode == 0, p.stdout[-1500:])
    p = subprocess.run(['cmake', '-S', TOP, '-B', WORK / 'options', '-G', 'Ninja', '-DSTK_DNNL=maybe'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    expect(p.returncode != 0 and 'STK_DNNL is auto, on or off' in p.stdout, p.stdout[-500:])


expect(BUILD.exists(), f'{BUILD} is not there')
check('float: version says what there is', version)
check('float: other values are refused', refuses)
check('float: nothing to serve in a quantized model', quantized)
check('float: near the exact output, and says so', near)
check('float: the output does not depend on what was cached', same)
check('float: nor on what is in VRAM', beside_device)
check('float: kernels that are bounded stay exact', bounded)
check('float: a libdnnl that cannot be loaded', missing)
check('float: a build without it', without)
finish()
