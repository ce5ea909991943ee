"""LRU in Python is LRU in C, hit for hit, on every trace that there is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker

from .conftest import TOP

SAMPLES = TOP / "traces" / "samples"
SHARED = TOP.parent / "shared" / "traces"
NAMES = ["qwen.route.csv", "gemma.route.csv", "gptoss.route.csv", "switch_base8.router-trace.v2.json", "dsv2lite_a.mrt8.xz"]
# Events beyond which a policy that is asked event by event is shown a part: all of them with GATE_LARGE=1, in half a minute.
MANY = 100_000


def same(trace: Any, policy: Any, **options: Any) -> None:
    want = stoker.replay(trace, policy="lru", **options)
    got = stoker.replay(trace, policy=policy, **options)
    np.testing.assert_array_equal(got.layers, want.layers)
    assert got.stats.as_dict() == want.stats.as_dict()
    assert 0 < want.stats.n_hit < want.stats.n_lookup


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.zst")), ids=lambda path: path.name)
def test_samples(path: Path, scope: str) -> None:
    trace = stoker.Trace(path)
    for policy in (stoker.PythonLRU, stoker.ScoreLRU):
        for fraction in (0.3, 0.6):
            same(trace, policy, fraction=fraction, scope=scope)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_shared(name: str, tmp_path: Path) -> None:
    path = SHARED / name
    if not path.is_file():
        pytest.skip("the shared traces are not beside this tree")
    trace = stoker.Trace(path)
    same(trace, stoker.ScoreLRU, fraction=0.3)
    n_event = trace.events().n_event
    if n_event > MANY and not os.environ.get("GATE_LARGE"):
        part = tmp_path / "part.trace"
        trace.write(part, n_step=MANY // trace.info.n_layer)
        trace = stoker.Trace(part)
    same(trace, stoker.PythonLRU, fraction=0.3)
