"""What the gates share: the programs under test, models, runs, and the lines that report a result.

A gate is a program gate_*.py [BUILD_DIR] that prints `ok NAME`, `FAIL NAME: why` or `skip NAME: why` for every check and exits with 1 if any failed.
Python's standard library alone.
"""
import array
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
DATA = TESTS / 'data'
SHARED = TESTS.parent.parent / 'shared'
BUILD = Path(sys.argv[1] if len(sys.argv) > 1 else 'build').resolve()
STOKER = BUILD / 'stoker'
PROBE = BUILD / 'tests' / 'probe'
SHIM = BUILD / 'tests' / 'libfaults_shim.so'
WORK = BUILD / 'gates'
EMBER = DATA / 'ember-q4_k_m.gguf'
SANITIZED = bool(re.search(r'^STK_SAN:STRING=.+', (BUILD / 'CMakeCache.txt').read_text(), re.M)) if (BUILD / 'CMakeCache.txt').exists() else False
TIMEOUT_S = 600

n_failed = 0


class Failed(Exception):
    """A check that does not hold; its text says why."""


class Skipped(Exception):
    """A check that cannot run here; its text says why."""


def check(name, function, *args, **kwargs):
    """Runs one check and prints its line. Its result, None if it failed or was skipped."""
    global n_failed
    try:
        result = function(*args, **kwargs)
        print(f'ok {name}' + (f' ({result})' if isinstance(result, str) else ''), flush=True)
        return True if result is None else result
    except Skipped as e:
        print(f'skip {name}: {e}', flush=True)
    except (Failed, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as e:
        n_failed += 1
        print(f'FAIL {name}: {type(e).__name__ + ": " if not isinstance(e, Failed) else ""}{e}', flush=True)
    return None


def finish():
    sys.exit(1 if n_failed else 0)


def expect(condition, why):
    if not condition:
        raise Failed(why)


class Run:
    """A finished program: rc, out, err (bytes), and its resource usage (rusage)."""

    def __init__(self, args, env=None, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, refuse=None):
        env = dict(os.environ, **(env or {}))
        env |= {'ASAN_OPTIONS': 'exitcode=99', 'UBSAN_OPTIONS': 'exitcode=99', 'TSAN_OPTIONS': 'exitcode=99'}
        if refuse:
            env |= {'LD_PRELOAD': str(SHIM), 'STK_REFUSE': refuse}
        self.args = [str(a) for a in args]
        p = subprocess.run(self.args, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, timeout=timeout, check=False)
        self.rc, self.out, self.err = p.returncode, p.stdout, p.stderr

    def text(self):
        return self.err.decode(errors='replace').strip()

    def last(self):
        """The last line on stderr: the message of a failed run."""
        lines = [x for x in self.text().split('\n') if x.strip()]
        return lines[-1] if lines else '(no message)'

    def messages(self):
        """The lines that say what went wrong (warnings are said by runs that go on)."""
        return [x for x in self.text().split('\n') if x.startswith('stoker: ') and not x.startswith('stoker: warning')]

    def expect_clean(self):
        """No crash, no sanitizer's report: the program ended by its own decision."""
        expect(self.rc >= 0, f'`{short(self.args)}` died of signal {-self.rc}: {self.last()}')
        for word in (b'Sanitizer', b'runtime error:'):
            expect(word not in self.err, f'`{short(self.args)}`: {next((x for x in self.text().split(chr(10)) if word.decode() in x), "")}')
        return self

    def expect_failure(self, *words, rc=1):
        """Ends with rc after one message that has these words, and nothing on stdout."""
        self.expect_clean()
        expect(self.rc == rc, f'`{short(self.args)}` ended with {self.rc}, not {rc}: {self.last()}')
        messages = self.messages()
        expect(len(messages) == 1, f'`{short(self.args)}` has {len(messages)} messages on stderr: {self.text()!r}')
        for w in words:
            expect(re.search(w, messages[0], re.I), f'`{short(self.args)}`: no "{w}" in the message: {messages[0]}')
        return messages[0]

    def expect_success(self):
        self.expect_clean()
        expect(self.rc == 0, f'`{short(self.args)}` ended with {self.rc}: {self.last()}')
        return self


def short(args):
    text = ' '.join(Path(a).name if '/' in a else a for a in args)
    return text if len(text) < 160 else text[:120] + ' ... ' + text[-36:]


def stoker(*args, **kwargs):
    return Run([STOKER, *args], **kwargs)


def probe(verb, model, **keys):
    """The probe's lines as a dictionary of texts."""
    r = Run([PROBE, verb, model, *(f'{k}={v}' for k, v in keys.items())]).expect_success()
    return dict(line.split(' ', 1) for line in r.out.decode().strip().split('\n') if ' ' in line) | {'': r.out.decode().strip()}


def fast_or_skipped(r):
    """A run with --float fast: does it compute so? The reason why not is in its warning."""
    if not re.search(r'^floats +fast', r.text(), re.M):
        m = re.search(r'float products stay exact: (.*)', r.text())
        expect(m, f'neither fast nor a reason why not: {r.text()!r}')
        raise Skipped(m[1])


def numbers(lines):
    return {k: int(v) for k, v in lines.items() if re.fullmatch(r'-?\d+', v)}


def need(path):
    if not Path(path).exists():
        raise Skipped(f'{path} is not here')
    return path


def least_ram(model):
    return numbers(probe('stats', model, tokens=1, batch=1))['ram_bytes_min']


def all_ram(model):
    """Every expert: the engine takes no more than that, whatever it may take."""
    return numbers(probe('stats', model, tokens=1, batch=1, ram=1 << 50))['ram_bytes']


def kept(name, path, maker, *args):
    """A file that `maker` makes from the arguments, kept in the build directory while it is newer than that. Several gates may ask for it at once."""
    WORK.mkdir(exist_ok=True)
    with open(WORK / f'{name}.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists() or path.stat().st_mtime < maker.stat().st_mtime:
            path.unlink(missing_ok=True)
            try:
                Run([maker, *args]).expect_success()
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    return path


def made_model(name, preset, *options):
    """A small random model of tests/tools/make_model (the first part of a split one)."""
    n_part = next((int(o[6:]) for o in options if o.startswith('parts=')), 1)
    path = WORK / (f'{name}.gguf' if n_part == 1 else f'{name}-00001-of-{n_part:05}.gguf')
    return kept(name, path, BUILD / 'tests' / 'make_model', preset, WORK / f'{name}.gguf', *options)


def synth_model(shape, kind, *options):
    """A random model of a real shape."""
    name = '-'.join(['synth', shape, kind, *(str(o).lstrip('-') for o in options)])
    path = WORK / f'{name}.gguf'
    return kept(name, path, STOKER, 'synth', shape, kind, *options, '-o', path)


def sha256(path):
    h = hashlib.sha256()
    with open(path, 'rb') as f:
        while piece := f.read(1 << 20):
            h.update(piece)
    return h.hexdigest()


def logits(model, tokens, out=None, **flags):
    """Bytes of [len(tokens), n_vocab] float32. Flags: ram='8M', t=2, cpu='avx2', io='pread', chunk='7,64,1', b=512, ..."""
    WORK.mkdir(exist_ok=True)
    out = out or WORK / f'logits-{os.getpid()}.bin'
    args = ['logits', '-m', model, '--tokens', ','.join(map(str, tokens)), '-o', out]
    for k, v in flags.items():
        args += ['-' + k if len(k) == 1 else '--' + k, v]
    stoker(*args).expect_success()
    data = Path(out).read_bytes()
    Path(out).unlink()
    return data


def floats(data):
    x = array.array('f')
    x.frombytes(data)
    if sys.byteorder == 'big':
        x.byteswap()
    return x


def draw_tokens(n, n_vocab, seed=1):
    """The same stream on every machine."""
    state, out = seed, []
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        out.append((state >> 33) % n_vocab)
    return out


def load_json(path):
    return json.loads(Path(path).read_text())


def first_difference(a, b, n_vocab):
    if len(a) != len(b):
        return f'{len(a)} bytes of logits, not {len(b)}'
    x, y = floats(a), floats(b)
    for i, (p, q) in enumerate(zip(x, y)):
        if a[4 * i:4 * i + 4] != b[4 * i:4 * i + 4]:
            n = sum(a[4 * j:4 * j + 4] != b[4 * j:4 * j + 4] for j in range(len(x)))
            return f'position {i // n_vocab}, token {i % n_vocab}: {p!r}, not {q!r}; {n} of {len(x)} logits differ'
    return None
