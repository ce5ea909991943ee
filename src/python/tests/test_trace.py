from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker


def test_events_one_by_one(trace: Path) -> None:
    t = stoker.Trace(trace)
    assert (t.info.format, t.info.n_layer, t.info.n_expert, t.info.k) == ("stoker", 6, 32, 4)
    assert t.info.policy == "lru"
    assert t.complete is None
    events = list(t)
    assert t.complete is True
    stats = stoker.replay(t).stats
    assert len(events) == stats.n_event
    assert sum(e.ids.size for e in events) == stats.n_pair
    assert sum(len(np.unique(e.ids)) for e in events) == stats.n_lookup
    first = events[0]
    assert not first.decode
    assert events[-1].decode
    np.testing.assert_array_equal(first.pos, np.arange(len(first.pos)))
    assert first.weights is not None
    np.testing.assert_allclose(first.weights.sum(axis=1), 1, rtol=1e-5)


def test_events_as_arrays(trace: Path, mixed_trace: Path) -> None:
    for path in (trace, mixed_trace):
        t = stoker.Trace(path)
        events = t.events()
        assert events is t.events()
        stats = stoker.replay(path).stats
        assert (events.n_event, events.n_lookup, int(events.counts.sum())) == (stats.n_event, stats.n_lookup, stats.n_pair)
        for i, e in enumerate(t):
            a, b = events.first[i : i + 2]
            ids, counts = np.unique(e.ids, return_counts=True)
            np.testing.assert_array_equal(events.keys[a:b], e.layer * events.n_expert + ids)
            np.testing.assert_array_equal(events.counts[a:b], counts)
            assert (events.layer[i], events.step[i], events.n_tok[i]) == (e.layer, e.step, len(e.token))
        assert t.uses().sum() == stats.n_pair


def test_a_cut_trace(trace: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.trace"
    cut.write_bytes(trace.read_bytes()[:-200])
    t = stoker.Trace(cut)
    assert t.events().n_event > 0
    assert t.complete is False


def test_to_pandas(trace: Path) -> None:
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = stoker.Trace(trace).to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert len(frame) == stoker.replay(trace).stats.n_pair
    by_expert = frame.groupby(["layer", "expert"]).size()
    uses = stoker.Trace(trace).uses()
    assert all(uses[layer, expert] == n for (layer, expert), n in by_expert.items())


def test_write(trace: Path, tmp_path: Path) -> None:
    copy, csv, part = tmp_path / "copy.trace", tmp_path / "copy.csv", tmp_path / "part.trace"
    t = stoker.Trace(trace)
    t.write(copy)
    assert stoker.replay(copy, verify=True).complete
    t.write(csv, format="csv")
    np.testing.assert_array_equal(stoker.Trace(csv).uses(), t.uses())
    t.write(part, first_step=10, n_step=20)
    assert stoker.Trace(part).events().n_event == 20 * 6
    stoker.convert([part, part], tmp_path / "both.trace")
    assert stoker.Trace(tmp_path / "both.trace").events().n_event == 40 * 6
    with pytest.raises(stoker.InvalidArgumentError, match="format"):
        t.write(csv, format="xml")


def test_figures_by_layer(trace: Path) -> None:
    result = stoker.replay(trace, fraction=0.25)
    assert result.layers["n_hit"].sum() == result.stats.n_hit
    assert result.layers["n_lookup"].sum() == result.stats.n_lookup
    assert list(result.layers["layer"]) == list(range(6))
    assert result.layer_hit_rates.shape == (6,)
    assert result.prefill.n_hit + result.decode.n_hit == result.stats.n_hit
    assert result.policy == "lru"
    with pytest.raises(stoker.InvalidArgumentError, match="reset"):
        stoker.replay(trace, policy=stoker.PythonLRU, reset="sequence")
    by_layer = stoker.replay(trace, fraction=0.25, scope="layer", policy=stoker.ScoreLRU)
    assert by_layer.stats.n_hit == stoker.replay(trace, fraction=0.25, scope="layer", policy="lru").stats.n_hit


class Oracle(stoker.ScorePolicy):
    """Belady: the expert whose next use is the farthest leaves. Sees the whole trace, so it needs it in one piece."""

    def score(self, events: stoker.Events) -> Any:
        order = np.lexsort((events.event_of, events.keys))
        following = np.full(events.n_lookup, np.inf)
        same = events.keys[order][1:] == events.keys[order][:-1]
        following[order[:-1][same]] = events.event_of[order[1:][same]]
        return -following


def test_an_oracle_beats_everyone(trace: Path) -> None:
    best = stoker.replay(trace, policy=Oracle).hit_rate
    assert best > 1.1 * max(stoker.replay(trace, policy=policy).hit_rate for policy in ("lru", "random", stoker.DecayedFrequency))


@pytest.mark.slow
def test_a_vectorised_policy_is_the_same_live(tmp_path: Path) -> None:
    from .conftest import record

    path = tmp_path / "run.trace"
    live = record(path, policy=stoker.DecayedFrequency)
    assert stoker.replay(path, policy=stoker.DecayedFrequency, verify=True).stats.n_hit == live.n_hit


@pytest.mark.slow
@pytest.mark.parametrize("policy", [stoker.ScoreLRU, stoker.DecayedFrequency])
def test_a_vectorised_policy_is_fast(policy: type[stoker.ScorePolicy], trace: Path, tmp_path: Path) -> None:
    """100,000 events a second, a layer of a token each; the best of a few tries, since other processes run here, too."""
    long = tmp_path / "long.trace"
    stoker.convert([trace] * 20, long)
    t = stoker.Trace(long)
    n_event = t.events().n_event
    rates = []
    for _ in range(5):
        start = time.perf_counter()
        stoker.replay(t, policy=policy)
        rates.append(n_event / (time.perf_counter() - start))
    assert n_event > 20_000
    assert max(rates) > 100_000, rates
