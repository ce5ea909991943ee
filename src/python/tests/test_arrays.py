"""Traces from arrays and tables, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker

from .conftest import TOP

SAMPLES = TOP / "traces" / "samples"


def same(a: stoker.TraceArrays, b: stoker.TraceArrays) -> None:
    for name, x, y in zip(a._fields, a, b):
        if x is None or y is None:
            assert x is y, name
        else:
            np.testing.assert_array_equal(x, y, err_msg=name)


@pytest.mark.slow
def test_the_same_comes_back(trace: Path, mixed_trace: Path, tmp_path: Path) -> None:
    for path in (trace, mixed_trace, SAMPLES / "qwen.route.csv.zst", SAMPLES / "switch_base8.router-trace.json.zst"):
        original = stoker.Trace(path)
        arrays = original.to_arrays()
        n_token, n_layer, k = arrays.ids.shape
        assert (n_layer, k) == (original.info.n_layer, original.info.k)
        assert len(arrays.token) == n_token
        for format in ("stoker", "csv"):
            written = stoker.Trace.from_arrays(
                tmp_path / "x.trace", **arrays._asdict(), n_expert=original.info.n_expert, expert_bytes="1M", format=format
            )
            assert written.info.format == format
            assert written.info.expert_bytes == n_layer * original.info.n_expert << 20
            again = written.to_arrays()
            dense = np.unique(arrays.step, return_inverse=True)[1].reshape(-1)  # steps are numbered on
            same(again, arrays._replace(step=dense))
            np.testing.assert_array_equal(written.uses(), original.uses())
        assert sorted(tmp_path.iterdir()) == [tmp_path / "x.trace"]


def test_a_replay_of_it_hits_as_the_original(tmp_path: Path) -> None:
    original = stoker.Trace(SAMPLES / "switch_base8.router-trace.json.zst")
    written = stoker.Trace.from_arrays(tmp_path / "x.trace", **original.to_arrays()._asdict(), n_expert=8)
    for policy in ("lru", "lfu", "belady"):
        results = [stoker.replay(t, policy=policy, slots=20).stats for t in (original, written)]
        assert results[0].n_hit == results[1].n_hit > 0


def test_ids_alone_will_do(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ids = np.stack([[rng.choice(16, 4, replace=False) for _ in range(3)] for _ in range(20)])
    t = stoker.Trace.from_arrays(tmp_path / "x.trace", ids)
    assert (t.info.n_layer, t.info.k, t.info.n_batch) == (3, 4, 1)
    assert t.info.expert_bytes == 3 * t.info.n_expert << 20
    arrays = t.to_arrays()
    np.testing.assert_array_equal(arrays.ids, ids)
    assert arrays.weights is None
    assert arrays.decode.all()
    np.testing.assert_array_equal(arrays.pos, np.arange(20))
    assert (arrays.token == -1).all()
    assert stoker.replay(t, fraction=0.5).stats.n_event == 60


def test_steps_of_several_tokens(tmp_path: Path) -> None:
    ids = np.array([[[0, 1], [2, 3]], [[0, 2], [-1, -1]], [[3, -1], [1, 2]]])
    weights = np.array([[[0.1, 0.9], [1 / 3, 2 / 3]], [[0.5, 0.5], [0, 0]], [[1, 0], [0.25, 0.75]]], np.float32)
    t = stoker.Trace.from_arrays(
        tmp_path / "x.trace",
        ids,
        weights,
        step=[4, 4, 9],
        seq=[0, 1, 1],
        decode=[False, False, True],
        token=[7, 8, 9],
        layers=[1, 5],
        n_expert=6,
    )
    assert (t.info.n_expert, t.info.n_batch) == (6, 2)
    events = list(t)
    assert [(e.step, e.layer, e.model_layer, e.decode) for e in events] == [
        (0, 0, 1, False),
        (0, 1, 5, False),
        (1, 0, 1, True),
        (1, 1, 5, True),
    ]
    np.testing.assert_array_equal(events[0].pos, [0, 0])
    np.testing.assert_array_equal(events[2].pos, [1])
    np.testing.assert_array_equal(events[1].ids, [[2, 3], [stoker.NO_EXPERT] * 2])
    np.testing.assert_array_equal(t.to_arrays().weights, weights)


BAD: list[tuple[dict[str, Any], type, str]] = [
    ({"ids": np.zeros((2, 3), int)}, stoker.InvalidArgumentError, r"\(2, 3\); \[n_token, n_layer, k\]"),
    ({"ids": np.zeros((0, 1, 1), int)}, stoker.InvalidArgumentError, "something in it"),
    ({"ids": [[[0.5]]]}, TypeError, "integers, not float64"),
    ({"ids": [[["a"]]]}, TypeError, "integers"),
    ({"ids": [[[0, 3]], [[4, 4]]]}, stoker.InvalidArgumentError, r"ids\[1, 0\] name expert 4 twice"),
    ({"ids": [[[0, 9]]], "n_expert": 8}, stoker.InvalidArgumentError, r"ids\[0, 0, 1\] is expert 9 of 8"),
    ({"ids": [[[-2]]]}, stoker.InvalidArgumentError, "stand for none"),
    ({"ids": [[[70000]]]}, stoker.InvalidArgumentError, "is expert 70000"),
    ({"weights": np.zeros((2, 1))}, stoker.InvalidArgumentError, "as of ids"),
    ({"weights": np.full((2, 1, 2), np.nan)}, stoker.InvalidArgumentError, "not finite"),
    ({"weights": np.full((2, 1, 2), "x")}, TypeError, "numbers"),
    ({"step": [1]}, stoker.InvalidArgumentError, r"steps of shape \(1,\)"),
    ({"step": [2, 1]}, stoker.InvalidArgumentError, "ascend"),
    ({"step": [0, 0], "decode": [True, False]}, stoker.InvalidArgumentError, "differs among"),
    ({"seq": [0, -1]}, stoker.InvalidArgumentError, "seq is from 0"),
    ({"pos": [0, 2**31]}, stoker.InvalidArgumentError, "pos is from 0"),
    ({"token": [-2, 1]}, stoker.InvalidArgumentError, "token is from -1"),
    ({"layers": [0, 1]}, stoker.InvalidArgumentError, "layers of shape"),
    ({"layers": [-1]}, stoker.InvalidArgumentError, "ascending"),
    ({"expert_bytes": [1, 2]}, stoker.InvalidArgumentError, "2 entries for 1 layers"),
    ({"expert_bytes": "big"}, stoker.InvalidArgumentError, "big"),
    ({"model": "a b"}, stoker.InvalidArgumentError, "without spaces"),
    ({"format": "xml"}, stoker.InvalidArgumentError, "format 'xml'"),
    ({"path": "/nowhere/x.trace"}, OSError, "nowhere"),
]


@pytest.mark.parametrize(("change", "error", "text"), BAD)
def test_what_does_not_fit(change: dict[str, Any], error: type, text: str, tmp_path: Path) -> None:
    good: dict[str, Any] = {"path": tmp_path / "x.trace", "ids": [[[0, 1]], [[2, 3]]]}
    with pytest.raises(error, match=text):
        stoker.Trace.from_arrays(**{**good, **change})
    assert not list(tmp_path.iterdir())


def test_tables(trace: Path, tmp_path: Path) -> None:
    """Any mapping of columns, its rows in any order within a token."""
    arrays = stoker.Trace(trace).to_arrays()
    t, layer, rank = (x.ravel() for x in np.indices(arrays.ids.shape))
    assert arrays.weights is not None
    table = {
        "step": arrays.step[t],
        "decode": arrays.decode[t],
        "seq": arrays.seq[t],
        "pos": arrays.pos[t],
        "token": arrays.token[t],
        "layer": layer,
        "rank": rank,
        "expert": arrays.ids.ravel(),
        "weight": arrays.weights.ravel(),
    }
    same(stoker.Trace.from_pandas(tmp_path / "a.trace", table, n_expert=32).to_arrays(), arrays)
    del table["rank"], table["token"]
    again = stoker.Trace.from_pandas(tmp_path / "b.trace", table, n_expert=32).to_arrays()
    same(again, arrays._replace(token=np.full(len(arrays.token), -1)))
    for gone in ("layer", "expert", "step"):
        with pytest.raises(stoker.InvalidArgumentError, match=f"no column '{gone}'"):
            stoker.Trace.from_pandas(tmp_path / "c.trace", {name: x for name, x in table.items() if name != gone})
    with pytest.raises(stoker.InvalidArgumentError, match="same token, layer and rank"):
        stoker.Trace.from_pandas(tmp_path / "c.trace", {**table, "rank": np.zeros(len(t), int)})
    with pytest.raises(stoker.InvalidArgumentError, match="is empty"):
        stoker.Trace.from_pandas(tmp_path / "c.trace", {name: x[:0] for name, x in table.items()})


def test_pandas(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    for path in (trace, SAMPLES / "gptoss.route.csv.zst"):
        original = stoker.Trace(path)
        written = stoker.Trace.from_pandas(tmp_path / "x.trace", original.to_pandas(), n_expert=original.info.n_expert)
        arrays = original.to_arrays()
        same(written.to_arrays(), arrays._replace(step=np.unique(arrays.step, return_inverse=True)[1].reshape(-1)))
