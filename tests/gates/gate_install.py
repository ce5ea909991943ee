#!/usr/bin/env python3
"""What is installed works from where it lies: the program, the library with the symbols of stoker.h and no others, its header, its pkg-config file."""
import os
import re
import shutil
import subprocess
import sys

from harness import BUILD, EMBER, SANITIZED, TESTS, WORK, Run, Skipped, check, expect, finish

PREFIX = WORK / 'prefix'
MOVED = WORK / 'moved'
HEADER = TESTS.parent / 'src' / 'stoker.h'

EXAMPLE = r'''
#include <stdio.h>
#include <string.h>
#include <stoker.h>

int main(int argc, char **argv) {
    stk_model *model = NULL;
    stk_model_info info;
    memset(&info, 0, sizeof info);
    info.struct_bytes = sizeof info;
    if (argc != 2 || stk_abi_version() != STK_ABI_VERSION) return 2;
    if (stk_model_open(&model, argv[1]) < 0 || stk_model_get_info(model, &info) < 0) {
        fprintf(stderr, "%s\n", stk_error_detail());
        return 1;
    }
    printf("%s %u\n", info.arch, info.n_expert);
    stk_model_close(&model);
    return 0;
}
'''


def install():
    if SANITIZED:
        raise Skipped('a build with sanitizers is not installed')
    for path in (PREFIX, MOVED):
        shutil.rmtree(path, ignore_errors=True)
    Run(['cmake', '--build', BUILD, '--target', 'stoker', 'stoker_shared']).expect_success()
    Run(['cmake', '--install', BUILD, '--prefix', PREFIX]).expect_success()


def find(pattern, root=PREFIX):
    found = sorted(root.rglob(pattern))
    expect(found, f'no {pattern} under the prefix')
    return found[0]


def program():
    said = Run([PREFIX / 'bin' / 'stoker', 'version']).expect_success().out.decode()
    expect(re.match(r'stoker \d+\.\d+\.\d+ ', said), said)
    find('stoker.1')
    needed = Run(['objdump', '-p', find('libstoker.so')]).expect_success().out.decode()
    expect('libjemalloc' not in needed, 'the library needs jemalloc, so Python could not load it')
    expect(re.search(r'SONAME +libstoker\.so\.\d+\n', needed), 'no soname')


def symbols():
    declared = set(re.findall(r'^STK_API [^;(]*?\*?\b(stk_\w+)\(', HEADER.read_text(), re.M))
    listed = Run(['nm', '-D', '--defined-only', find('libstoker.so')]).expect_success().out.decode()
    exported = {line.split()[2].split('@')[0] for line in listed.splitlines()}
    expect(len(declared) > 30, f'{len(declared)} declarations found in stoker.h')
    expect(exported == declared, f'only in the header {sorted(declared - exported)}, only in the library {sorted(exported - declared)}')


def example(compiler, root=PREFIX, language='c', std='c99'):
    if not shutil.which(compiler):
        raise Skipped(f'{compiler} is not installed')
    source, out = WORK / f'example.{language}', WORK / f'example-{compiler}'
    source.write_text(EXAMPLE)
    pc = find('stoker.pc', root)
    flags = Run(['pkg-config', '--cflags', '--libs', 'stoker'], env={'PKG_CONFIG_PATH': str(pc.parent)}).expect_success().out.decode().split()
    Run([compiler, f'-std={std}', '-pedantic', '-Wall', '-Wextra', '-Werror', source, '-o', out, *flags]).expect_success()
    r = Run([out, EMBER], env={'LD_LIBRARY_PATH': str(find('libstoker.so', root).parent)}).expect_success()
    expect(r.out == b'qwen3moe 32\n', f'{r.out!r}')


def moved():
    """pkg-config and the library have no prefix inside."""
    PREFIX.rename(MOVED)
    try:
        example('gcc', MOVED)
    finally:
        MOVED.rename(PREFIX)


def python():
    code = 'import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); l.stk_version.restype = ctypes.c_char_p; print(l.stk_version().decode())'
    p = subprocess.run([sys.executable, '-c', code, find('libstoker.so')], capture_output=True, text=True, env=dict(os.environ), check=False)
    expect(p.returncode == 0 and re.match(r'\d+\.\d+\.\d+\n', p.stdout), p.stderr[-300:])


def main():
    WORK.mkdir(exist_ok=True)
    if check('install into a prefix', install):
        check('install: the program and the man page', program)
        check('install: the library exports stoker.h and nothing else', symbols)
        check('install: a C program, gcc', example, 'gcc')
        check('install: a C program, clang', example, 'clang-14')
        check('install: a C++ program', example, 'g++', PREFIX, 'cc', 'c++11')
        check('install: a tree that was moved', moved)
        check('install: loaded from Python', python)
    finish()


main()
