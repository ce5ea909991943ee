#!/usr/bin/env python3
"""The command line: mistakes, bad files, full disks, closed pipes and signals each end with one clear message and their exit code; and what was asked for
comes out where it should."""
import fcntl
import json
import os
import re
import resource
import signal
import struct
import subprocess
import time

from harness import DATA, EMBER, STOKER, TESTS, WORK, check, expect, finish, stoker

PROMPT = 'Once upon a time there was a little girl who'
USAGE, FAILED = 2, 1
SAMPLE = DATA.parent.parent / 'traces/samples/qwen.route.csv.zst'
GENERATE = ('run', '-m', EMBER, '-p', PROMPT)


def one_message(r, rc, pattern):
    """Ended with rc after exactly one line on stderr and nothing on stdout."""
    expect(r.rc == rc, f'ended with {r.rc}, not {rc}: {r.last()}')
    expect(len(r.text().split('\n')) == 1, f'more than one line: {r.text()!r}')
    expect(r.text().startswith('stoker: '), f'{r.text()!r}')
    expect(re.search(pattern, r.text()), f'{r.text()!r} does not say /{pattern}/')
    expect(r.out == b'', f'{len(r.out)} bytes on stdout')


def last_message(r, rc, pattern):
    expect(r.rc == rc, f'ended with {r.rc}, not {rc}: {r.last()}')
    expect(re.search(pattern, r.last()), f'the last line is {r.last()!r}')


def mistakes():
    for name, pattern, *args in (
            ('no such verb', "'rum'; did you mean 'run'", 'rum'),
            ('unknown option', r"'--tmep'; did you mean --temp", *GENERATE, '--tmep', '1'),
            ('option of another verb', 'belongs to `stoker logits`', *GENERATE, '--chunk', '1'),
            ('no value', '-m needs a value', 'run', '-m'),
            ('no model', 'which model', 'run', '-p', 'x'),
            ('no number', 'takes a number', *GENERATE, '--temp', 'warm'),
            ('out of range', 'from 0 to 1', *GENERATE, '--top-p', '1.5'),
            ('no size', 'takes a size', *GENERATE, '--ram', '8X'),
            ('-p and -f', 'exclude one another', *GENERATE, '-f', 'x'),
            ('empty prompt', 'prompt is empty', 'run', '-m', EMBER, '-p', ''),
            ('unknown way of reading', "'floppy'", *GENERATE, '--io', 'floppy'),
            ('reads that bring nothing', 'bench', *GENERATE, '--io', 'emu:1G,1us,blank=9'),
            ('unknown policy', '"oracle"', *GENERATE, '--policy', 'oracle'),
            ('unknown policy of a replay', 'belady-bypass', 'replay', SAMPLE, '--fraction', '0.5', '--policy', 'oracle'),
            ('unknown predictor of a replay', 'transition', 'replay', SAMPLE, '--fraction', '0.5', '--predictor', 'oracle'),
            ('token beyond the vocabulary', 'beyond the vocabulary of 4096', 'logits', '-m', EMBER, '--tokens', '1,4096', '-o', WORK / 'none'),
            ('chunk beyond the batch', 'more than one step takes', 'logits', '-m', EMBER, '--tokens', '1', '--chunk', '9', '-b', '8', '-o', WORK / 'none'),
            ('verify with another cache', '--verify repeats', 'replay', 'x', '--verify', '--ram', '1M'),
            ('two operands', "unexpected argument 'b'", 'inspect', 'a', 'b')):
        check(f'cli usage: {name}', lambda pattern=pattern, args=args: one_message(stoker(*args), USAGE, pattern))
    expect(not (WORK / 'none').exists(), 'a refused run left a file')


def bad_files():
    whole = EMBER.read_bytes()
    (WORK / 'empty.gguf').write_bytes(b'')
    (WORK / 'head.gguf').write_bytes(whole[:100_000])
    (WORK / 'half.gguf').write_bytes(whole[:len(whole) // 2])
    (WORK / 'text.gguf').write_text('This is no model.\n' * 100)
    for name, path, pattern in (('missing', WORK / 'nowhere.gguf', 'No such file'), ('a directory', WORK, '[Dd]irectory'), ('empty', WORK / 'empty.gguf', 'empty'),
                                ('cut in its metadata', WORK / 'head.gguf', 'head.gguf'), ('cut in its weights', WORK / 'half.gguf', 'half.gguf'),
                                ('text', WORK / 'text.gguf', 'text.gguf')):
        check(f'cli model: {name}, run', lambda path=path, pattern=pattern: one_message(stoker('run', '-m', path, '-p', 'x'), FAILED, pattern))
        check(f'cli model: {name}, inspect', lambda path=path, pattern=pattern: one_message(stoker('inspect', path), FAILED, pattern))
    check('cli prompt file: missing', lambda: one_message(stoker('run', '-m', EMBER, '-f', WORK / 'nowhere.txt'), FAILED, 'nowhere.txt: No such file'))
    check('cli prompt file: a directory', lambda: one_message(stoker('run', '-m', EMBER, '-f', WORK), FAILED, 'directory'))
    check('cli trace: missing', lambda: one_message(stoker('replay', WORK / 'nowhere.trace'), FAILED, 'No such file'))
    check('cli trace: a model', lambda: one_message(stoker('replay', EMBER), FAILED, 'ember'))


def limits():
    words = 'the king and the queen ' * 100
    check('cli: a prompt longer than the context', lambda: one_message(stoker('run', '-m', EMBER, '-p', words), FAILED, r'has \d{3} tokens, the context holds 256'))
    check('cli: --ram too small', lambda: one_message(stoker(*GENERATE, '--ram', '64K'), FAILED, r'the least is .*\d{6,} bytes'))
    check('cli: a text shorter than a chunk', short_text)

    def full_context():
        r = stoker('run', '-m', EMBER, '-p', PROMPT, '-c', '24', '--temp', '0', '--ignore-eos', '--json').expect_success()
        j = json.loads(r.out)
        expect(j['stop'] == 'context', f'stopped by {j["stop"]}')
        expect(len(j['prompt_tokens']) + len(j['tokens']) == 25, f'{len(j["prompt_tokens"])} + {len(j["tokens"])} tokens')
        expect('the context is full (24 tokens)' in r.text(), r.text())
    check('cli: a full context', full_context)


def short_text():
    path = WORK / 'short.txt'
    path.write_text('Too short.')
    one_message(stoker('perplexity', '-m', EMBER, '-f', path), FAILED, r'has \d+ tokens, one chunk needs 256')


def generation():
    def run(*args, **kwargs):
        return stoker('run', '-m', EMBER, *args, **kwargs).expect_success()

    text = run('-p', PROMPT, '-n', '12', '--seed', '5').out

    def with_stdin():
        p = subprocess.run([STOKER, 'run', '-m', EMBER, '-n', '12', '--seed', '5'], input=PROMPT.encode() + b'\n', capture_output=True, check=False)
        expect(p.stdout == text, f'{p.stdout!r}, not {text!r}')

    def with_file():
        path = WORK / 'prompt.txt'
        path.write_text(PROMPT + '\n')
        expect(run('-f', path, '-n', '12', '--seed', '5').out == text, 'another text')

    def as_json():
        j = json.loads(run('-p', PROMPT, '-n', '12', '--seed', '5', '--json').out)
        expect(j['text'].encode() == text, f'{j["text"]!r}')
        expect(len(j['tokens']) == 12 and j['stop'] == 'length' and j['seed'] == 5, f'{j["tokens"]}, {j["stop"]}')
        expect(j['stats']['n_token'] == len(j['prompt_tokens']) + 11, f'{j["stats"]["n_token"]} tokens computed')
        expect(j['stats']['n_hit'] + j['stats']['n_miss'] == j['stats']['n_lookup'] > 0, 'hits and misses do not add up')
        again = json.loads(run('--tokens', ','.join(map(str, j['prompt_tokens'])), '-n', '12', '--seed', '5', '--json').out)
        expect(again['tokens'] == j['tokens'], 'another text from the same ids')

    def drawn_seed():
        r = run('-p', PROMPT, '-n', '12')
        seed = re.search(r'seed (\d+)', r.text())[1]
        expect(run('-p', PROMPT, '-n', '12', '--seed', seed).out == r.out, f'seed {seed} gives another text')

    def table():
        said = run('-p', PROMPT, '-n', '4').text()
        for pattern in (r'dense .*KV .*experts .*buffers', r'\d threads?, \w+ kernels, \w+ reads', r'prefill +11 tokens in .* tok/s', r'decode +3 tokens in .* tok/s',
                        r'lookups, [\d.]+ % hits', 'asked of the drive', r's computing .* s in I/O, .* s waiting'):
            expect(re.search(pattern, said), f'/{pattern}/ is missing in {said!r}')

    def quiet():
        r = run('-p', PROMPT, '-n', '12', '--seed', '5', '-q')
        expect(r.text() == '' and r.out == text, f'{r.text()!r}')

    def chat():
        ids = json.loads(run('-p', 'Hello', '-n', '1', '--chat', '--json').out)['prompt_tokens']
        expect(ids[0] == 1 and ids.count(1) == 2 and ids.count(2) == 1, f'no ChatML turn: {ids}')

    check('cli run: a prompt from stdin', with_stdin)
    check('cli run: a prompt from a file', with_file)
    check('cli run: --json and --tokens', as_json)
    check('cli run: another seed, another text', lambda: expect(run('-p', PROMPT, '-n', '12', '--seed', '6').out != text, 'the same text'))
    check('cli run: the drawn seed repeats the text', drawn_seed)
    check('cli run: the lines at the start and the table', table)
    check('cli run: --quiet', quiet)
    check('cli run: --chat', chat)
    check('cli run: -n 0', lambda: expect(run('-p', PROMPT, '-n', '0').out == b'', 'text on stdout'))


def interrupted(sig, rc):
    p = subprocess.Popen([STOKER, *GENERATE, '--ignore-eos', '-c', '5000'], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(20)
    p.send_signal(sig)
    out, err = p.communicate(timeout=60)
    expect(p.returncode == rc, f'ended with {p.returncode}')
    expect(re.search(r'decode +\d+ tokens', err.decode()), f'no table: {err!r}')
    expect(err.decode().strip().endswith(f'interrupted by {sig.name}'), f'{err[-200:]!r}')
    out.decode()  # whole characters, or this fails


def interrupted_reading():
    p = subprocess.Popen([STOKER, 'run', '-m', EMBER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write(b'Once')
    p.stdin.flush()
    wait_for(lambda: asleep(p.pid))
    p.send_signal(signal.SIGTERM)
    expect(p.wait(timeout=20) == 143, f'ended with {p.returncode}')
    p.communicate()


def odd_name():
    """A name that is no text is no reason against a run, its trace, or what it keeps for the next."""
    data = bytearray(EMBER.read_bytes())
    at = data.index(struct.pack('<Q', 12) + b'general.name' + struct.pack('<IQ', 8, 9)) + 20
    data[at:at + 21] = struct.pack('<IIQ5B', 9, 0, 5, 1, 2, 3, 4, 5)
    path, trace, warm = WORK / 'odd-name.gguf', WORK / 'odd-name.trace', WORK / 'odd-name.warm'
    path.write_bytes(data)
    warm.unlink(missing_ok=True)
    for _ in range(2):
        stoker('run', '-m', path, '-p', PROMPT, '-n', '3', '--trace', trace, '--warm', warm).expect_success()
    stoker('replay', trace, '--verify').expect_success()


def interrupted_opening():
    """A prompt from a named pipe that nobody writes to."""
    path = WORK / 'prompt.fifo'
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    p = subprocess.Popen([STOKER, 'run', '-m', EMBER, '-f', path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: asleep(p.pid))
    p.send_signal(signal.SIGTERM)
    _, err = p.communicate(timeout=20)
    expect(p.returncode == 143 and err == b'stoker: interrupted by SIGTERM\n', f'{p.returncode}, {err!r}')


def wait_for(condition, timeout_s=30):
    end = time.monotonic() + timeout_s
    while not condition():
        expect(time.monotonic() < end, 'waited in vain')
        time.sleep(0.02)


def asleep(pid):
    """Whether the program, not what was there before exec, waits for something."""
    with open(f'/proc/{pid}/stat') as f:
        waits = f.read().rsplit(')', 1)[1].split()[0] == 'S'
    return waits and os.readlink(f'/proc/{pid}/exe') == str(STOKER)


def small_pipe(used=0):
    """A pipe of one page, `used` bytes of which are taken."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.write(write, b' ' * used)
    return read, write


def second_signal():
    """With room on stderr for the lines at the start but not for the table, the program hangs in its clean end."""
    start = len(stoker(*GENERATE, '-n', '1').text().split('prefill')[0])
    read, write = small_pipe(4096 - start - 100)
    p = subprocess.Popen([STOKER, *GENERATE, '--ignore-eos', '-c', '5000'], stdout=subprocess.PIPE, stderr=write)
    os.close(write)
    try:
        p.stdout.read(20)
        p.send_signal(signal.SIGINT)
        time.sleep(1)
        expect(p.poll() is None, f'the first signal ended it with {p.returncode}, without its table')
        p.send_signal(signal.SIGINT)
        expect(p.wait(timeout=20) == -signal.SIGINT, f'ended with {p.returncode}')
    finally:
        p.kill()
        p.stdout.close()
        os.close(read)


def closed_pipe(args):
    read, write = small_pipe()
    p = subprocess.Popen([STOKER, *args], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    os.read(read, 1)
    os.close(read)
    err = p.stderr.read().decode()
    expect(p.wait(timeout=120) == FAILED, f'ended with {p.returncode}')
    expect(err.strip().split('\n')[-1] == 'stoker: writing to stdout: Broken pipe', f'{err[-200:]!r}')


def full(args, pattern='writing to stdout: No space left on device'):
    with open('/dev/full', 'wb') as f:
        p = subprocess.run([STOKER, *args], stdout=f, stderr=subprocess.PIPE, check=False)
    last = p.stderr.decode().strip().split('\n')[-1]
    expect(p.returncode == FAILED, f'ended with {p.returncode}')
    expect(re.search(pattern, last), f'{last!r}')


def file_limit(n_bytes):
    """For preexec_fn: files end at n_bytes, as on a disk that fills up."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
    return limit


def filling_disk():
    """The trace's disk is full in the middle of the run: one message, and what was recorded can be read."""
    trace, args = WORK / 'full.trace', (STOKER, *GENERATE, '-n', '150', '--ignore-eos', '-q', '--trace')
    expect(subprocess.run([*args, trace], capture_output=True, check=False).returncode == 0, 'the run without a limit failed')
    p = subprocess.run([*args, trace], capture_output=True, preexec_fn=file_limit(trace.stat().st_size * 2 // 3), check=False)
    said = p.stderr.decode().strip()
    expect(p.returncode == FAILED and len(said.split('\n')) == 1, f'{p.returncode}, {said!r}')
    expect(re.match('stoker: .*full.trace.*File too large', said), f'{said!r}')
    expect(not json.loads(stoker('replay', trace, '--json').expect_success().out)['complete'], 'the cut trace is said to be complete')


def closed_stdout():
    p = subprocess.run(['sh', '-c', 'exec "$@" >&-', 'sh', STOKER, *GENERATE, '-n', '3'], stderr=subprocess.PIPE, check=False)
    last = p.stderr.decode().strip().split('\n')[-1]
    expect(p.returncode == FAILED and 'writing to stdout: Bad file descriptor' in last, f'{p.returncode}, {last!r}')


def no_room():
    """A trace that could not even begin leaves no file; one that was there is emptied, and gone then too."""
    path = WORK / 'cli.head.trace'
    p = subprocess.run([STOKER, *GENERATE, '-n', '3', '--trace', path], stderr=subprocess.PIPE, preexec_fn=file_limit(8), check=False)
    expect(p.returncode == FAILED and b'File too large' in p.stderr, f'{p.returncode}, {p.stderr[-200:]!r}')
    expect(not path.exists(), 'it left a file without a head')


def nothing_printed(r, word):
    last_message(r, FAILED, word)
    expect(r.out == b'', f'it printed {r.out!r} first')


def known_before():
    """A file that cannot be written is known before the minutes of work that it is for."""
    no, trace = WORK / 'no' / 'x', TESTS.parent / 'traces' / 'samples' / 'gemma.route.csv.zst'
    for args in (('bench', '-m', EMBER, '-p', '16', '-n', '4', '-r', '1', '--svg', no), ('doctor', '--calibrate', '-o', no), ('tune', trace, '--fraction', '0.2', '-o', no),
                 ('tune', trace, '--fraction', '0.2', '-o', WORK / 'known.profile', '--report', no), ('tune', trace, '--fraction', '0.2', '-o', WORK / 'known.profile', '--state', no),
                 ('replay', trace, '--fraction', '0.2', '--csv', no), (*GENERATE, '-n', '2', '--timeline', no)):
        started = time.monotonic()
        r = stoker(*args)
        last_message(r, FAILED, 'No such file')
        expect('tuning [' not in r.text() and 'tok/s' not in r.text(), f'{args[0]}: {r.text()[-200:]!r}')
        expect(args[0] == 'doctor' or not r.out, f'{args[0]} printed {r.out[:100]!r}')
        expect(time.monotonic() - started < 10, f'{args[0]} took {time.monotonic() - started:.0f} s')
    expect(not (WORK / 'known.profile').exists(), 'a profile was left')


def outputs():
    check('cli | head -1: run', closed_pipe, (*GENERATE, '--ignore-eos', '-c', '5000'))
    check('cli | head -1: inspect', closed_pipe, ('inspect', EMBER, '--tensors'))
    for name, args in (('run', (*GENERATE, '-n', '3')), ('run --json', (*GENERATE, '-n', '3', '--json')), ('inspect', ('inspect', EMBER)),
                       ('version', ('version',)), ('help', ('help',))):
        check(f'cli > /dev/full: {name}', full, args)
    check('cli > /dev/full: logits -o -', full, ('logits', '-m', EMBER, '--tokens', '1,2', '-o', '-'), 'No space left on device')
    check('cli >&-', closed_stdout)
    check('cli --trace on a full disk', lambda: last_message(stoker(*GENERATE, '-n', '20', '--trace', '/dev/full'), FAILED, 'No space left on device'))
    check('cli --trace on a disk that fills up', filling_disk)
    check('cli --trace on a disk that has no room for its head', no_room)
    check('cli --warm in no directory', lambda: nothing_printed(stoker(*GENERATE, '-n', '2', '--warm', WORK / 'no' / 'x'), 'No such file'))
    check('cli: files in no directory are known before the work', known_before)
    check('cli --trace in no directory', lambda: last_message(stoker(*GENERATE, '-n', '2', '--trace', WORK / 'no' / 'x'), FAILED, 'No such file'))


def logits_files():
    path = WORK / 'cli.logits'
    base = ('logits', '-m', EMBER, '--tokens', '7,8,9')

    def nothing_half():
        path.write_bytes(b'before')
        p = subprocess.run([STOKER, *base, '-o', path], stderr=subprocess.PIPE, preexec_fn=file_limit(20_000), check=False)
        expect(p.returncode == FAILED and b'File too large' in p.stderr, f'{p.returncode}, {p.stderr[-200:]!r}')
        expect(path.read_bytes() == b'before', 'the old file was touched')
        expect(not list(WORK.glob('cli.logits.*')), 'a temporary file was left')

    def written():
        stoker(*base, '-o', path).expect_success()
        rows = path.read_bytes()
        expect(len(rows) == 3 * 4096 * 4, f'{len(rows)} bytes')
        expect(path.stat().st_mode & 0o777 == 0o666 & ~umask(), oct(path.stat().st_mode))
        expect(stoker(*base, '-o', '-').expect_success().out == rows, 'other bytes on stdout')
        link = WORK / 'cli.link'
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        path.write_bytes(b'')
        stoker(*base, '-o', link).expect_success()
        expect(link.is_symlink() and path.read_bytes() == rows, 'a link was not followed')

    def greedy():
        j = json.loads(stoker(*base, '--greedy', '4', '--json', '-o', path).expect_success().out)
        text = json.loads(stoker('run', '-m', EMBER, '--tokens', '7,8,9', '-n', '4', '--temp', '0', '--ignore-eos', '-ctk', 'f32', '-ctv', 'f32', '--json').expect_success().out)
        expect(j['greedy'] == text['tokens'], f'{j["greedy"]}, but `run` says {text["tokens"]}')
        expect(path.stat().st_size == 7 * 4096 * 4, f'{path.stat().st_size} bytes')

    check('cli logits: whole or not at all', nothing_half)
    check('cli logits: files, links, stdout', written)
    check('cli logits: --greedy', greedy)
    check('cli logits: a device', lambda: last_message(stoker(*base, '-o', '/dev/full'), FAILED, '/dev/full: No space left on device'))
    check('cli logits: no directory', lambda: last_message(stoker(*base, '-o', WORK / 'no' / 'x'), FAILED, 'No such file'))


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def helps():
    verbs = re.findall(r'^  (\w+)  +\S', stoker('help').expect_success().out.decode(), re.M)
    expect('run' in verbs and len(verbs) >= 7, f'{verbs}')
    for verb in verbs:
        a, b = (stoker(*args).expect_success().out for args in ((verb, '--help'), ('help', verb)))
        expect(a == b and a.startswith(f'stoker {verb}: '.encode()), f'{verb}: {a[:80]!r}')
    expect(stoker('--version').out == stoker('version').out != b'', 'no version')
    expect(stoker().rc == USAGE, 'nothing to do is no mistake')


def replays():
    trace = WORK / 'cli.trace'
    stoker(*GENERATE, '-n', '8', '--ram', '3M', '--trace', trace).expect_success()
    expect('equals the recorded run' in stoker('replay', trace, '--verify').expect_success().out.decode(), 'not said to be verified')
    j = json.loads(stoker('replay', trace, '--ram', '8M', '--json').expect_success().out)
    expect(j['complete'] and j['stats']['n_miss'] > 0, f'{j}')
    expect(re.search(r'predicted [\d.]+ s', stoker('replay', trace, '--io', 'emu:1G,100us').expect_success().out.decode()), 'no prediction')


def main():
    WORK.mkdir(exist_ok=True)
    check('cli usage: refused runs leave no file', mistakes)
    bad_files()
    limits()
    generation()
    check('cli SIGINT', interrupted, signal.SIGINT, 130)
    check('cli SIGTERM', interrupted, signal.SIGTERM, 143)
    check('cli SIGTERM while reading the prompt', interrupted_reading)
    check('cli SIGTERM while waiting for the prompt', interrupted_opening)
    check('cli run: a model whose name is no text', odd_name)
    check('cli: a second signal', second_signal)
    outputs()
    logits_files()
    check('cli help and version', helps)
    check('cli replay', replays)
    finish()


main()
