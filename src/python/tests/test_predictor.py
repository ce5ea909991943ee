"""Predictors in Python, live and in replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker

from .conftest import EMBER, PROMPT, TINY


def decisions(result: Any) -> tuple[int, ...]:
    s = result.stats if isinstance(result, stoker.ReplayResult) else result
    return (s.n_event, s.n_lookup, s.n_hit, s.n_miss, s.n_evict, s.bytes, s.read_bytes, s.n_prefetch, s.n_prefetch_used)


class After(stoker.Predictor):
    """What followed the experts of the layer before, so far."""

    wants_lookahead = True

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.n_ahead = 0

    def open(self) -> None:
        assert self.n_max == 2 * self.k <= self.n_expert
        assert 1 <= self.depth <= 3
        self.calls.append("open")
        self.followed = np.zeros((self.n_layer, self.n_expert, self.n_expert))
        self.last: list[int] = []

    def close(self) -> None:
        self.calls.append("close")

    def observe(self, event: stoker.PredictorEvent) -> None:
        experts = [key % self.n_expert for key in event.keys]
        assert event.ahead.shape[1:] == (event.n_tok, self.n_expert)
        assert len(event.ahead) <= self.depth
        self.n_ahead += len(event.ahead)
        if event.layer:
            self.followed[np.ix_([event.layer], self.last, experts)] += 1
        self.last, self.event = experts, event

    def suggest(self, layer: int, depth: int) -> Any:
        assert layer == self.event.layer + depth < self.n_layer
        rows = self.followed[layer, self.last]
        return (rows.sum(axis=0) + 0.01) / (rows.sum() / 4 + 1)


class AfterBatch(stoker.BatchPredictor):
    """The experts of the event itself, one layer on: a table that depends on each event alone."""

    def open(self) -> None:
        self.n_call = 0

    def predict(self, events: stoker.Events) -> Any:
        self.n_call += 1
        assert events.tokens is not None
        assert events.tokens.ids.shape == (int(events.n_tok.sum()), self.k)
        assert len(events.tokens.token) == events.first_token[-1]
        table = np.zeros((events.n_event, self.depth, events.n_expert))
        rows = np.repeat(np.arange(events.n_event), np.diff(events.first))
        table[rows, :, events.keys % events.n_expert] = 0.25 + 0.5 * (events.counts[:, None] > 1)
        return table


def run(path: Path, predictor: Any, depth: int = 0, max_tokens: int = 60) -> tuple[stoker.Stats, stoker.PredictCount, str]:
    with stoker.Engine(EMBER, ram="6M", threads=2, trace=path, predictor=predictor, predict_depth=depth) as engine:
        text = engine.session().generate(PROMPT, max_tokens=max_tokens, sampling=stoker.Sampling(seed=3)).result()
        return engine.stats(), engine.predicted(), text


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", [After, AfterBatch])
def test_live_and_replay_predict_the_same(tmp_path: Path, kind: Any, depth: int) -> None:
    path = tmp_path / "run.trace"
    live = kind()
    stats, predicted, text = run(path, live, depth)
    assert predicted.n_event > 0
    assert 0 <= predicted.recall <= predicted.recall2 <= 1
    assert 0 <= predicted.precision <= 1
    assert text == run(tmp_path / "none.trace", "none")[2]
    assert decisions(stoker.replay(path, verify=True)) == decisions(stats)
    again = stoker.replay(path, predictor=kind, predict_depth=depth)
    assert decisions(again) == decisions(stats)
    assert again.predicted[0].recall == predicted.recall == again.recall
    assert again.predicted[depth].n_event == 0
    timed = stoker.replay(path, predictor=kind, predict_depth=depth, io="emu:1G,50us")
    assert decisions(timed) == decisions(stats)
    assert timed.tokens_per_second > 0
    assert stoker.replay(path, predictor="none").stats.n_prefetch == 0
    if isinstance(live, After):
        assert live.calls == ["open", "close"]
        assert live.n_ahead > 0
        with pytest.raises(stoker.StateError, match="before observe returned"):
            _ = live.event.ahead


def test_a_table_is_asked_for_a_whole_run(trace: Path) -> None:
    predictor = AfterBatch()
    once = stoker.replay(trace, predictor=predictor)
    assert predictor.n_call == 1
    twice = stoker.replay([trace, trace], predictor=AfterBatch)
    assert twice.predicted[0].n_event == 2 * once.predicted[0].n_event
    assert twice.recall == once.recall


def test_built_in_predictors(trace: Path) -> None:
    recall = {name: stoker.replay(trace, predictor=name).recall for name in ("previous", "transition", "mix")}
    assert 0 < recall["previous"] < recall["mix"] < 1
    with pytest.raises(stoker.InvalidArgumentError, match="nobody"):
        stoker.replay(trace, predictor="nobody")
    with pytest.raises(stoker.InvalidArgumentError, match="predict_depth"):
        stoker.replay(trace, predictor="mix", predict_depth=4)
    with pytest.raises(stoker.InvalidArgumentError, match="verifying"):
        stoker.replay(trace, predictor="mix", verify=True)
    with pytest.raises(TypeError, match="Predictor"):
        stoker.replay(trace, predictor=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Predictor"):
        stoker.replay(trace, predictor=dict)  # type: ignore[arg-type]


class Fails(stoker.Predictor):
    """Raises in one method, every few calls."""

    def __init__(self, method: str) -> None:
        self._method, self._n = method, 0

    def _maybe(self, method: str) -> None:
        if method == self._method:
            self._n += 1
            if self._n % 3 == 0:
                raise ZeroDivisionError(f"in {method}, call {self._n}")

    def observe(self, event: stoker.PredictorEvent) -> None:
        self._maybe("observe")

    def suggest(self, layer: int, depth: int) -> Any:
        self._maybe("suggest")
        return {1: 0.5}

    def close(self) -> None:
        if self._method == "close":
            raise ZeroDivisionError("in close, call 1")


@pytest.mark.parametrize("method", ["observe", "suggest"])
def test_what_a_predictor_raises_surfaces_after_the_step(method: str) -> None:
    with stoker.Model(TINY) as model:
        ram = 2 * model.info.ram_bytes_min
        with stoker.Engine(model, ram=ram, threads=1, predictor="none") as engine:
            want = []
            for i in range(12):
                engine.step([i])
                want.append(engine.logits())
        with stoker.Engine(model, ram=ram, threads=1, predictor=Fails(method)) as engine:
            n_raised = 0
            for i in range(12):
                try:
                    engine.step([i])
                except stoker.PredictorError as error:
                    n_raised += 1
                    assert isinstance(error.__cause__, ZeroDivisionError)
                    assert method in str(error.__cause__)
                    assert "nothing was predicted" in str(error)
                assert engine.length() == i + 1
                np.testing.assert_array_equal(engine.logits(), want[i])
            assert n_raised > 2


@pytest.mark.parametrize("method", ["observe", "suggest", "close"])
def test_a_failing_predictor_in_a_replay(trace: Path, method: str) -> None:
    with pytest.raises(stoker.PredictorError, match=f"in {method}") as caught:
        stoker.replay(trace, predictor=Fails(method))
    assert caught.value.n_fault >= (1 if method == "close" else 100)
    assert caught.value.result.stats.n_lookup == stoker.replay(trace).stats.n_lookup


@pytest.mark.parametrize(
    "said", [None, 5, "text", [(1, 2.0)], [(1, float("nan"))], [(1, 0.5), (1, 0.5)], [(-1, 0.5)], {40: 0.5}, {0.5: 0.5}, np.zeros(3)]
)
def test_predictions_that_cannot_be(trace: Path, said: Any) -> None:
    class Bad(stoker.Predictor):
        def suggest(self, layer: int, depth: int) -> Any:
            return said

    with pytest.raises(stoker.PredictorError, match="Bad") as caught:
        stoker.replay(trace, predictor=Bad)
    assert decisions(caught.value.result) == decisions(stoker.replay(trace, predictor="none"))


@pytest.mark.parametrize(
    "table", [lambda n, e: None, lambda n, e: np.zeros((n, e)), lambda n, e: np.full((n, 1, e), np.nan), lambda n, e: np.full((n, 1, e), 2)]
)
def test_tables_that_cannot_be(trace: Path, tmp_path: Path, table: Any) -> None:
    class Bad(stoker.BatchPredictor):
        def predict(self, events: stoker.Events) -> Any:
            return table(events.n_event, events.n_expert)

    with pytest.raises(stoker.PredictorError, match="Bad") as caught:
        stoker.replay(trace, predictor=Bad)
    assert decisions(caught.value.result) == decisions(stoker.replay(trace, predictor="none"))
    with stoker.Engine(EMBER, ram="6M", threads=1, predictor=Bad) as engine:
        with pytest.raises(stoker.PredictorError, match="Bad"):
            engine.step([1])
        assert engine.length() == 1


def test_a_predictor_that_does_not_open() -> None:
    class Closed(Fails):
        def open(self) -> None:
            raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        stoker.Engine(EMBER, ram="6M", predictor=Closed("close"))


def test_both_fail() -> None:
    class Policy(stoker.PythonLRU):
        def touch(self, event: stoker.Event) -> None:
            raise ValueError("policy")

    with stoker.Engine(EMBER, ram="6M", threads=1, policy=Policy, predictor=Fails("suggest")) as engine:
        with pytest.raises(stoker.PolicyError, match="policy") as caught:
            engine.step([1])
        assert caught.value.__cause__ is not None
        assert isinstance(caught.value.__cause__.__context__, stoker.PredictorError)


def test_the_best_of_a_table() -> None:
    from stoker._predictor_hooks import best

    rng = np.random.default_rng(1)
    table = rng.integers(0, 5, (40, 2, 16)).astype(np.float32) / 4
    for n in (1, 3, 16, 20):
        chosen, count = best(table, min(n, 16))
        at = 0
        for row, size in zip(table.reshape(-1, 16), count):
            want = [e for e in sorted(range(16), key=lambda e: (-row[e], e)) if row[e] > 0][:n]
            assert chosen["expert"][at : at + int(size)].tolist() == want
            at += int(size)
        assert at == len(chosen)
