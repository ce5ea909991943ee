#!/usr/bin/env python3
"""All tests: builds, unit tests, sanitizers, lint, gates. `./run test` calls it; options: --quick, --tidy.

    unit        tests/unit through ctest, in build/; again under the address and undefined-behaviour sanitizers (built by clang) and under the
                thread sanitizer (gcc), in build/address and build/thread, unless --quick
    lint        tests/lint; with --tidy also clang-tidy
    gates       tests/gates/gate_*.py BUILD_DIR: programs that print `ok NAME`, `FAIL NAME: why` or `skip NAME: why` for every check

Failures and skips are listed at the end, and one line adds everything up. Python's standard library alone.
"""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
BUILD = TOP / 'build'
GATE_TIMEOUT_S = 1500
JOBS = str(len(os.sched_getaffinity(0)))

passed, failed, skipped = 0, [], []


def say(text):
    print(text, flush=True)


def record(suite, line):
    """Counts a result line of any of the three kinds; other lines are not results."""
    global passed
    kind, _, rest = line.partition(' ')
    if kind == 'ok' and rest:
        passed += 1
    elif kind == 'FAIL':
        failed.append(f'{suite}: {rest}')
        say(f'  FAIL {rest}')
    elif kind == 'skip':
        skipped.append(f'{suite}: {rest}')
    else:
        return False
    return True


def tap_lines(path):
    """The results in a file that a unit test wrote."""
    for line in path.read_text(errors='replace').splitlines():
        if m := re.match(r'(not )?ok - (.*?)\s*(?:\([\d.]+s\))?$', line):
            name, _, why = m[2].partition('# SKIP')
            if m[1]:
                yield f'FAIL {name.strip()}'
            else:
                yield f'skip {name.strip()}: {why.strip()}' if '# SKIP' in m[2] else f'ok {name.strip()}'


def build(name, directory, *options):
    """Configures and builds; warnings are errors."""
    say(f'{name}: building in {directory.relative_to(TOP)}/')
    for command in (['cmake', '-S', TOP, '-B', directory, '-G', 'Ninja', '-DSTK_TESTS=ON', '-DSTK_WERROR=ON', *options], ['ninja', '-C', directory, '--quiet']):
        p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if p.returncode:
            say(p.stdout[-6000:])
            record(name, f'FAIL build: {command[0]} ended with {p.returncode}')
            return False
    record(name, 'ok build')
    return True


def counts(before, start):
    return f'{passed - before[0]} passed, {len(failed) - before[1]} failed, {len(skipped) - before[2]} skipped ({time.monotonic() - start:.0f} s)'


def unit(name, directory):
    """Runs ctest. Each test of each program counts; a program that lists none of its own counts as one."""
    results = directory / 'results'
    for old in results.glob('*.tap'):
        old.unlink()
    before, start = (passed, len(failed), len(skipped)), time.monotonic()
    p = subprocess.run(['ctest', '--test-dir', directory, '-j', JOBS, '--output-on-failure', '--timeout', '900'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True, check=False)
    for test, end in re.findall(r'^ *\d+/\d+ Test +#\d+: (\S+) \.* *\**(\w[\w ]*?)  ', p.stdout, re.M):
        tap, n_failed = results / f'{test}.tap', len(failed)
        n = sum(record(name, line) for line in tap_lines(tap)) if tap.exists() else 0
        if end == 'Passed' and n == 0:
            record(name, f'ok {test}')
        elif end == 'Skipped' and n == 0:
            record(name, f'skip {test}: as it says itself')
        elif end not in ('Passed', 'Skipped') and len(failed) == n_failed:
            record(name, f'FAIL {test}: {end}, outside of its tests')
    if len(failed) > before[1]:
        say(p.stdout[-12000:])
    elif p.returncode or passed == before[0]:
        say(p.stdout[-12000:])
        record(name, f'FAIL ctest: ended with {p.returncode} after {passed - before[0]} results')
    say(f'{name}: {counts(before, start)}')


def program(name, *command):
    """Runs a lint or a gate, counting its lines as they come."""
    before, start, n = (passed, len(failed), len(skipped)), time.monotonic(), 0
    p = subprocess.Popen(['timeout', str(GATE_TIMEOUT_S), *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                         errors='replace', cwd=TOP)
    other = []
    for line in p.stdout:
        if record(name, line.rstrip('\n')):
            n += 1
        else:
            other.append(line)
    rc = p.wait()
    if rc and len(failed) == before[1] or not n:
        record(name, f'FAIL {Path(command[-2] if len(command) > 1 else command[-1]).name}: ended with {rc} after {n} results')
    if len(failed) > before[1]:
        say(''.join(other)[-6000:])
    say(f'{name}: {counts(before, start)}')


def main():
    options = set(sys.argv[1:])
    if unknown := options - {'--quick', '--tidy'}:
        say(f'./run test: unknown option {" ".join(sorted(unknown))}; known are --quick and --tidy')
        return 2
    start = time.monotonic()
    built = build('unit', BUILD)
    if built:
        unit('unit', BUILD)
    program('lint', TOP / 'tests' / 'lint', BUILD, *(options & {'--tidy'}))
    if '--quick' in options:
        skipped.append('the sanitizer builds: --quick')
    else:
        if build('address', BUILD / 'address', '-DSTK_SAN=address', '-DCMAKE_C_COMPILER=clang-14'):
            unit('address', BUILD / 'address')
        if build('thread', BUILD / 'thread', '-DSTK_SAN=thread', '-DCMAKE_C_COMPILER=gcc'):
            unit('thread', BUILD / 'thread')
    for gate in sorted((TOP / 'tests' / 'gates').glob('gate_*.py')) if built else []:
        program(gate.stem, sys.executable, gate, BUILD)
    say(f'\nAll tests took {time.monotonic() - start:.0f} s.')
    for title, lines in (('Skipped', skipped), ('Failed', failed)):
        if lines:
            say(f'{title}:\n  ' + '\n  '.join(lines))
    say(f'{passed} passed, {len(failed)} failed, {len(skipped)} skipped')
    return 1 if failed else 0


sys.exit(main())
