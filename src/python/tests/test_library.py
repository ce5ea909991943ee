"""Finding the library: a missing one, something else, an older one, another version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stoker

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler is here to make such a library")


def load(library: object) -> str:
    """What loading says in a new process; "" when it works."""
    code = "import stoker\ntry:\n    stoker.version()\nexcept stoker.LibraryError as e:\n    print(e)\n"
    package = Path(stoker.__file__).parents[1]
    env = dict(os.environ, STOKER_LIBRARY=str(library), PYTHONPATH=str(package))
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    return out.stdout.strip()


def make(tmp_path: Path, source: str) -> Path:
    (tmp_path / "x.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", str(tmp_path / "x.c"), "-o", str(tmp_path / "libstoker.so")], check=True)
    return tmp_path / "libstoker.so"


def test_it_is_found() -> None:
    assert Path(stoker.library_path()).name.startswith("libstoker.so")
    assert stoker.version().count(".") == 2
    assert load(stoker.library_path()) == ""


def test_missing(tmp_path: Path) -> None:
    assert "which is no file" in load(tmp_path / "nothing.so")


def test_not_a_library(tmp_path: Path) -> None:
    (tmp_path / "libstoker.so").write_text("not ELF")
    said = load(tmp_path / "libstoker.so")
    assert "was not found" in said
    assert "libstoker.so" in said


@needs_cc
def test_another_library(tmp_path: Path) -> None:
    assert "is no Stoker library" in load(make(tmp_path, "int x;"))


@needs_cc
def test_another_version_of_the_interface(tmp_path: Path) -> None:
    assert "version 99 of Stoker's binary interface" in load(make(tmp_path, "unsigned stk_abi_version(void) { return 99; }"))


@needs_cc
def test_an_older_library(tmp_path: Path) -> None:
    source = f'unsigned stk_abi_version(void) {{ return {stoker.ABI_VERSION}; }}\nconst char *stk_version(void) {{ return "0.0.1"; }}'
    said = load(make(tmp_path, source))
    assert "version 0.0.1" in said
    assert "older than this package" in said


def test_log_lines() -> None:
    lines: list[tuple[int, str]] = []
    stoker.set_log(lambda level, line: lines.append((level, line)))
    try:

        class Broken(stoker.Policy):
            def victim(self, busy: stoker.Busy) -> int:
                return -5

        model = Path(__file__).resolve().parents[3] / "tests" / "data" / "tiny" / "qwen3moe-f32.gguf"
        with stoker.Model(model) as m, stoker.Engine(m, ram=m.info.ram_bytes_min, threads=1, policy=Broken) as engine:
            with pytest.raises(stoker.PolicyError):
                for i in range(20):
                    engine.step([i])
    finally:
        stoker.set_log(None)
    assert any(level == 30 and "LRU decides" in line for level, line in lines)
