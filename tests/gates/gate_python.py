#!/usr/bin/env python3
"""The Python package: its tests, its types and style, its examples, its wheel, on every CPython from 3.9 on that is here.

The packages that the tests need come from PyPI into build/python-VERSION; without it (no network) an interpreter that has NumPy and pytest is used, and
without one of those everything is skipped.
"""
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import BUILD, EMBER, SANITIZED, TESTS, WORK, Failed, Skipped, check, expect, finish

PACKAGE = TESTS.parent / 'src' / 'python'
LIBRARY = BUILD / 'libstoker.so'
NEEDED = ['numpy', 'pytest']
WANTED = ['pandas', 'matplotlib', 'distributed', 'mypy', 'ruff', 'vermin']
OTHERS = ('3.9', '3.10', '3.12', '3.13', '3.14')
# What the tests of other versions leave out: slow, and not about the interpreter.
SHORT = ['-m', 'not slow']


def run(command, env=None, timeout=1200):
    return subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace',
                          env=dict(os.environ, **(env or {})), timeout=timeout, check=False)


def must(command, env=None, timeout=1200):
    p = run(command, env, timeout)
    expect(p.returncode == 0, f'`{" ".join(Path(c).name if "/" in str(c) else str(c) for c in command[:4])}` ended with {p.returncode}: {p.stdout.strip()[-1500:]}')
    return p.stdout


def has(python, modules):
    return run([python, '-c', 'import ' + ', '.join(modules)]).returncode == 0


def install(python, *what):
    """Into an environment, with the pip of the interpreter that runs this: an environment without its own is made much sooner."""
    return run([sys.executable, '-m', 'pip', '--python', python, 'install', '--quiet', '--disable-pip-version-check', *what])


def make_environment(python, home):
    shutil.rmtree(home, ignore_errors=True)
    return run([python, '-m', 'venv', '--without-pip', home]).returncode == 0


def environment(python, name, needed, wanted):
    """An interpreter with the packages `needed`, and with `wanted` if they are to be had; None where nothing works."""
    home = BUILD / f'python-{name}'
    own = home / 'bin' / 'python'
    if not (own.exists() and has(own, needed)) and make_environment(python, home):
        install(own, *needed)
    if not own.exists() or not has(own, needed):
        return next((p for p in (python, '/usr/bin/python3') if has(p, needed)), None)
    missing = [w for w in wanted if not has(own, [w])]
    if missing:
        install(own, *missing)
    return own


def pytest(python, *options):
    out = must([python, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-rs', *options, PACKAGE / 'tests'],
               env={'PYTHONPATH': str(PACKAGE), 'STOKER_LIBRARY': str(LIBRARY)}, timeout=1400)
    for line in out.splitlines():
        if m := re.match(r'SKIPPED \[\d+\] (\S+?): (.*)', line):
            print(f'skip python: {Path(m[1]).name}: {m[2]}', flush=True)
    return re.search(r'\d+ passed.*', out)[0]


def interpreters():
    """(version, program) of other CPythons here, those of pyenv too."""
    for version in OTHERS:
        places = [shutil.which(f'python{version}'), *sorted(Path.home().glob(f'.pyenv/versions/{version}.*/bin/python'))]
        for place in places:
            if place and run([place, '-c', f'import sys; assert "%d.%d" % sys.version_info[:2] == "{version}"']).returncode == 0:
                yield version, place
                break


def of_another(version, program):
    own = environment(program, version, NEEDED, [])
    if not own or not Path(own).is_relative_to(BUILD):
        raise Skipped('NumPy and pytest are not to be had for it')
    return pytest(own, *SHORT)


def tool(python, name, *arguments):
    if not has(python, [name]):
        raise Skipped(f'{name} is not to be had')
    must([python, '-m', name, *arguments], env={'MYPYPATH': str(PACKAGE)})


def types(python):
    tool(python, 'mypy', '--config-file', PACKAGE / 'pyproject.toml', '--cache-dir', WORK / 'mypy', PACKAGE / 'stoker')


def style(python):
    tool(python, 'ruff', 'check', '--no-cache', PACKAGE)
    tool(python, 'ruff', 'format', '--no-cache', '--check', PACKAGE)


def oldest(python):
    vermin = Path(python).parent / 'vermin'
    if not vermin.exists():
        raise Skipped('vermin is not to be had')
    must([vermin, '--quiet', '--no-tips', '--target=3.9-', '--eval-annotations', '--violations', PACKAGE / 'stoker'])


def installed(python, what, name):
    """Installed into an environment of its own, the package generates text from another folder."""
    home = WORK / f'python-{name}'
    expect(make_environment(python, home), 'no environment could be made')
    site = must([python, '-c', 'import numpy, pathlib; print(pathlib.Path(numpy.__file__).parents[1])']).strip()
    own = home / 'bin' / 'python'
    # NumPy is that of the tests; what builds the package comes from PyPI.
    p = install(own, '--no-deps', what)
    expect(p.returncode == 0, p.stdout.strip()[-800:])
    code = 'import stoker, sys; e = stoker.Engine(sys.argv[1], ram="6M"); print(stoker.library_path()); print(e.session().generate("Once", max_tokens=5).result()); e.close()'
    env = {'PYTHONPATH': site, 'STOKER_LIBRARY': '' if name == 'wheel' else str(LIBRARY)}
    out = subprocess.run([own, '-c', code, EMBER], cwd='/', env=dict(os.environ, **env), capture_output=True, text=True, check=False)
    expect(out.returncode == 0, out.stderr.strip()[-800:])
    expect(Path(out.stdout.splitlines()[0]).is_relative_to(home if name == 'wheel' else BUILD), out.stdout)


def from_source(python):
    copy = WORK / 'python-package' # building leaves files behind
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns('build', '*.egg-info', '__pycache__'))
    installed(python, copy, 'source')


def wheel(python):
    made = run(['cmake', '--build', BUILD, '--target', 'wheel'])
    if 'unknown target' in made.stdout or 'No rule to make target' in made.stdout:
        raise Skipped('no Python of 3.11 or later to make it with')
    expect(made.returncode == 0, made.stdout.strip()[-800:])
    whl = next((BUILD / 'wheel').glob('*.whl'))
    expect(re.fullmatch(r'stoker-\d+\.\d+\.\d+-py3-none-manylinux_2_\d+_x86_64\.whl', whl.name), whl.name)
    exported = {line.split()[2] for line in must(['nm', '-D', '--defined-only', BUILD / 'wheel' / 'lib' / 'libstoker.so']).splitlines()}
    expect(all(name.startswith('stk_') for name in exported), f'it exports {sorted(exported)[:5]}')
    first = whl.read_bytes()
    must(['cmake', '--build', BUILD, '--target', 'wheel'])
    expect(whl.read_bytes() == first, 'made twice, the wheel differs')
    installed(python, whl, 'wheel')
    return whl.name


def main():
    WORK.mkdir(exist_ok=True)
    if SANITIZED:
        check('python', lambda: (_ for _ in ()).throw(Skipped('a library with sanitizers cannot be loaded into Python')))
        finish()
    expect(LIBRARY.exists(), f'{LIBRARY} is not built')
    version = '%d.%d' % sys.version_info[:2]
    python = environment(sys.executable, version, NEEDED, WANTED)
    if not python:
        print(f'skip python: no interpreter here has {" and ".join(NEEDED)}, and PyPI cannot be reached', flush=True)
        finish()
    # The other versions in turn, beside all that follows.
    others = ThreadPoolExecutor(1)
    running = {other: others.submit(of_another, other, program) for other, program in interpreters()}
    check(f'python {version}: tests', pytest, python)
    check('python: types (mypy --strict)', types, python)
    check('python: style (ruff)', style, python)
    check('python: 3.9 is enough (vermin)', oldest, python)
    check('python: pip install of the source', from_source, python)
    check('python: the wheel', wheel, python)
    for other, future in running.items():
        check(f'python {other}: tests', future.result)
    finish()


try:
    main()
except Failed as e:
    print(f'FAIL python: {e}')
    sys.exit(1)
