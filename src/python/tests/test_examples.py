"""The examples run, and do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stoker

from .conftest import EMBER

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name: str, *arguments: object) -> str:
    package = str(Path(stoker.__file__).parents[1])
    command = [sys.executable, "-W", "error::ResourceWarning", str(EXAMPLES / name), *map(str, arguments)]
    out = subprocess.run(command, env=dict(os.environ, PYTHONPATH=package), capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stdout + out.stderr
    assert not out.stderr
    return out.stdout


@pytest.mark.slow
def test_generate() -> None:
    said = run("generate.py", EMBER)
    assert "a little girl who" in said
    assert "tok/s" in said
    assert run("generate.py", EMBER, "The dog", "2M").splitlines()[3] == run("generate.py", EMBER, "The dog", "24M").splitlines()[3]


@pytest.mark.slow
def test_beat_lru() -> None:
    assert "TenLines" in run("beat_lru.py", EMBER)


@pytest.mark.slow
def test_fit_predictor() -> None:
    said = run("fit_predictor.py", EMBER)
    assert "ours" in said
    assert "live: recall" in said
