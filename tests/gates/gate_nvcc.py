#!/usr/bin/env python3
"""The kernels for a device: nvcc compiles them (one architecture, and PTX), and the program that holds them runs where there is no driver.

nvcc is that of the machine, else NVIDIA's from PyPI, in build/nvcc; without either all is skipped.
"""
import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness import BUILD, EMBER, SANITIZED, TESTS, Skipped, check, expect, finish

PACKAGES = ['nvidia-cuda-nvcc>=13', 'nvidia-cuda-runtime>=13', 'nvidia-cuda-crt>=13', 'nvidia-nvvm>=13', 'nvidia-cuda-cccl>=13']
HOME = BUILD / 'nvcc'
TREE = HOME / 'build'


def run(*command):
    p = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200, check=False)
    expect(p.returncode == 0, f'`{" ".join(Path(str(c)).name for c in command[:3])}` ended with {p.returncode}: {p.stdout.strip()[-1500:]}')
    return p.stdout


def find():
    """nvcc with its static runtime beside it; installs it if need be."""
    if SANITIZED:
        raise Skipped('the sanitizers do not go with nvcc')
    for folder in ['/usr/local/cuda/bin', *os.environ.get('PATH', '').split(':')]:
        found = shutil.which('nvcc', path=folder)
        if found and any((Path(found).resolve().parent.parent / lib / 'libcudart_static.a').exists() for lib in ('lib64', 'lib')):
            return found
    packages = HOME / 'packages'
    found = next(packages.glob('nvidia/*/bin/nvcc'), None)
    if not found:
        p = subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--target', packages, *PACKAGES],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        found = next(packages.glob('nvidia/*/bin/nvcc'), None)
        if not found:
            raise Skipped(f'no nvcc here, and none from PyPI: {p.stdout.strip()[-200:]}')
    for tool in [*found.parent.iterdir(), *found.parent.parent.glob('nvvm/bin/*')]:
        if tool.is_file():
            tool.chmod(0o755)  # --target loses it with some versions of pip
    return str(found)


def compiles(nvcc):
    run('cmake', '-S', TESTS.parent, '-B', TREE, '-G', 'Ninja', '-DSTK_TESTS=ON', '-DSTK_WERROR=ON', '-DSTK_CUDA=on', f'-DSTK_NVCC={nvcc}')
    said = run('ninja', '--quiet', '-C', TREE, 'stoker', 'checkcuda')  # quiet: what is printed is what went wrong
    expect('warning' not in said, said[-1500:])
    return run(nvcc, '--version').split('release ')[1].split(',')[0]


def without_driver():
    p = subprocess.run([TREE / 'tests' / 'checkcuda', 'cuda'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200, check=False)
    expect(p.returncode in (0, 77), f'checkcuda ended with {p.returncode}: {p.stdout[-500:]}')
    expect(run(TREE / 'stoker', 'run', '-m', EMBER, '-p', 'Once', '-n', 4, '--temp', 0, '-q').strip() != '', 'no text')
    return 'on a device too' if p.returncode == 0 else 'no device'


nvcc = check('nvcc: is here', find)
if nvcc and check('nvcc: compiles the kernels', compiles, nvcc):
    check('nvcc: the program that holds them', without_driver)
finish()
