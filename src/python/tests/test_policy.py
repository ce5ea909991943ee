"""Policies in Python, live and in replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

import stoker

from .conftest import PROMPT, TINY, record


def decisions(result: Any) -> tuple[int, ...]:
    s = result.stats if isinstance(result, stoker.ReplayResult) else result
    return (s.n_event, s.n_lookup, s.n_pair, s.n_hit, s.n_miss, s.n_evict, s.n_wave, s.bytes, s.read_bytes)


@pytest.fixture(params=["trace", "mixed_trace"])
def any_trace(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.mark.parametrize("policy", [stoker.PythonLRU, stoker.ScoreLRU])
@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.6, 2.0])
def test_lru_in_python_is_lru(any_trace: Path, policy: Any, fraction: float) -> None:
    own = stoker.replay(any_trace, policy="lru")
    ram = int(own.ram_bytes * fraction) or None
    try:
        want = stoker.replay(any_trace, policy="lru", ram=ram)
    except stoker.BudgetError:
        ram = own.ram_bytes
        want = own
    got = stoker.replay(any_trace, policy=policy, ram=ram)
    assert decisions(got) == decisions(want)
    assert want.stats.n_lookup > 100


class Greatest(stoker.Policy):
    """Whoever has the greatest key leaves; keeps books of everything that it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.residents: set[int] = set()
        self.events: list[stoker.Event] = []

    def open(self) -> None:
        assert self.n_slot > 0
        assert self.n_key % self.n_expert == 0
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")

    def touch(self, event: stoker.Event) -> None:
        assert event.keys == sorted(event.keys)
        assert all(key // self.n_expert == event.layer for key in event.keys)
        assert event.ids.shape == (event.n_tok, event.k)
        assert event.weights.shape == (event.n_tok, event.k)
        assert event.top_ids.shape == event.top_scores.shape
        assert len(event.seq) == len(event.pos) == len(event.token) == event.n_tok
        assert sorted(set(event.ids.ravel().tolist())) == [key % self.n_expert for key in event.keys]
        assert sum(event.counts) == event.ids.size
        self.events.append(event)

    def inserted(self, key: int, why: stoker.Why) -> None:
        assert why in (stoker.Why.DEMAND, stoker.Why.PREFETCH)
        self.residents.add(key)
        assert len(self.residents) <= self.n_slot

    def evicted(self, key: int) -> None:
        self.residents.remove(key)

    def victim(self, busy: stoker.Busy) -> Optional[int]:
        mask = busy.mask()
        assert len(mask) == self.n_key
        free = [key for key in self.residents if key not in busy]
        assert not mask[free].any()
        self.busy = busy
        return max(free, default=None)


def test_live_and_replay_decide_the_same(tmp_path: Path) -> None:
    path, live = tmp_path / "run.trace", Greatest()
    stats = record(path, policy=live)
    assert live.calls == ["open", "close"]
    assert live.instance == 0
    again = Greatest()
    verified = stoker.replay(path, policy=again, verify=True)
    assert decisions(verified) == decisions(stats)
    assert again.residents == live.residents
    assert decisions(stoker.replay(path, policy="lru")) != decisions(stats)
    with pytest.raises(stoker.InvalidArgumentError, match="Greatest"):
        stoker.replay(path, policy=stoker.PythonLRU, verify=True)
    with pytest.raises(stoker.InvalidArgumentError, match="Greatest"):
        stoker.replay(path)


def test_what_a_policy_is_shown_ends_with_the_call(mixed_trace: Path) -> None:
    policy = Greatest()
    stoker.replay(mixed_trace, policy=policy)
    with pytest.raises(stoker.StateError, match="before touch returned"):
        _ = policy.events[0].ids
    with pytest.raises(stoker.StateError, match="before victim returned"):
        _ = 3 in policy.busy
    assert policy.events[0].keys


class Refusing(stoker.PythonLRU):
    name = "refusing"

    def admit(self, key: int) -> bool:
        return key % 2 == 0


def test_a_policy_may_refuse(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    with stoker.Model(TINY) as model:
        ram = 3 * model.info.ram_bytes_min
        with stoker.Engine(model, ram=ram, threads=1, trace=path, policy=Refusing) as engine:
            for i in range(20):
                engine.step([i, 2 * i])
            assert engine.residency().ravel()[::2].any()
            assert not engine.residency().ravel()[1::2].any()
            stats = engine.stats()
        with pytest.raises(stoker.BudgetError):
            stoker.Engine(model, ram=model.info.ram_bytes_min, policy=Refusing)
    assert decisions(stoker.replay(path, policy=Refusing, verify=True)) == decisions(stats)


class Fails(stoker.PythonLRU):
    """Raises in one method, every few calls."""

    name = "fails"

    def __init__(self, method: str, every: int = 3) -> None:
        self._method, self._every, self._n = method, every, 0

    def _maybe(self, method: str) -> None:
        if method == self._method:
            self._n += 1
            if self._n % self._every == 0:
                raise ZeroDivisionError(f"in {method}, call {self._n}")

    def touch(self, event: stoker.Event) -> None:
        super().touch(event)
        self._maybe("touch")

    def inserted(self, key: int, why: stoker.Why) -> None:
        super().inserted(key, why)
        self._maybe("inserted")

    def evicted(self, key: int) -> None:
        super().evicted(key)
        self._maybe("evicted")

    def victim(self, busy: stoker.Busy) -> Optional[int]:
        self._maybe("victim")
        return super().victim(busy)


METHODS = ["touch", "inserted", "evicted", "victim"]


@pytest.mark.parametrize("method", METHODS)
def test_what_a_policy_raises_surfaces_after_the_step(method: str) -> None:
    with stoker.Model(TINY) as model:
        ram = model.info.ram_bytes_min
        with stoker.Engine(model, ram=ram, threads=1) as engine:
            want = []
            for i in range(12):
                engine.step([i])
                want.append(engine.logits())
        with stoker.Engine(model, ram=ram, threads=1, policy=Fails(method)) as engine:
            n_raised = 0
            for i in range(12):
                try:
                    engine.step([i])
                except stoker.PolicyError as error:
                    n_raised += 1
                    assert isinstance(error.__cause__, ZeroDivisionError)
                    assert method in str(error.__cause__)
                    assert "LRU decided" in str(error)
                    assert error.n_fault >= 1
                assert engine.length() == i + 1
                np.testing.assert_array_equal(engine.logits(), want[i])
            assert n_raised > 2


@pytest.mark.parametrize("method", METHODS)
def test_a_failing_lru_is_still_lru_in_a_replay(trace: Path, method: str) -> None:
    with pytest.raises(stoker.PolicyError) as caught:
        stoker.replay(trace, policy=Fails(method))
    assert caught.value.n_fault > 10
    assert decisions(caught.value.result) == decisions(stoker.replay(trace, policy="lru"))


def test_generation_goes_on_after_a_policy_failed(ember_model: stoker.Model) -> None:
    with stoker.Engine(ember_model, ram="6M", threads=2) as engine:
        want = engine.session().generate(PROMPT, max_tokens=12, sampling=stoker.GREEDY).result()
    with stoker.Engine(ember_model, ram="6M", threads=2, policy=Fails("touch", every=20)) as engine:
        session, text, n_token, n_raised = engine.session(), "", 0, 0
        while n_token < 12:
            prompt = "" if len(session) else PROMPT
            generation = session.generate(prompt, max_tokens=12 - n_token, sampling=stoker.GREEDY)
            try:
                generation.result()
            except stoker.PolicyError:
                n_raised += 1
            text += generation.text
            n_token += len(generation.tokens)
        assert n_raised
        assert text == want


class Nonsense(stoker.Policy):
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def victim(self, busy: stoker.Busy) -> Any:
        return self._answer


@pytest.mark.parametrize("answer", [-1, 10**9, 0, None, "zero", 1.5])
def test_victims_that_cannot_be(trace: Path, answer: Any) -> None:
    with pytest.raises(stoker.PolicyError) as caught:
        stoker.replay(trace, policy=Nonsense(answer))
    assert caught.value.result.stats.n_lookup == stoker.replay(trace).stats.n_lookup


@pytest.mark.parametrize("scores", [lambda n: np.full(n, np.nan), lambda n: np.zeros(n + 1), lambda n: None, lambda n: "text"])
def test_scores_that_cannot_be(trace: Path, scores: Any) -> None:
    class Bad(stoker.ScorePolicy):
        def score(self, events: stoker.Events) -> Any:
            return scores(events.n_lookup)

    with pytest.raises(stoker.PolicyError) as caught:
        stoker.replay(trace, policy=Bad)
    assert decisions(caught.value.result) == decisions(stoker.replay(trace, policy="lru"))


def test_a_policy_that_does_not_open() -> None:
    class Closed(stoker.PythonLRU):
        def open(self) -> None:
            raise KeyError("no")

    for _ in range(2):
        with pytest.raises(KeyError, match="no"):
            stoker.Engine(TINY, ram="1M", policy=Closed)


def test_a_policy_without_victim(trace: Path) -> None:
    with pytest.raises(stoker.PolicyError, match="does not define victim") as caught:
        stoker.replay(trace, policy=stoker.Policy)
    assert isinstance(caught.value.__cause__, NotImplementedError)


def test_the_engine_cannot_be_used_from_within() -> None:
    class Curious(stoker.PythonLRU):
        def touch(self, event: stoker.Event) -> None:
            super().touch(event)
            engine.stats()

    with stoker.Engine(TINY, ram="1M", threads=1, policy=Curious) as engine:
        with pytest.raises(stoker.PolicyError, match="in use"):
            engine.step([1])
        assert engine.stats().n_step == 1


def test_an_interrupt_is_an_interrupt() -> None:
    class Interrupted(stoker.PythonLRU):
        def touch(self, event: stoker.Event) -> None:
            raise KeyboardInterrupt

    with stoker.Engine(TINY, ram="1M", threads=1, policy=Interrupted) as engine:
        with pytest.raises(KeyboardInterrupt):
            engine.step([1])
        assert engine.length() == 1


def test_decayed_frequency_counts_as_it_says() -> None:
    policy = stoker.DecayedFrequency(half_life=4)
    policy.n_key, policy.n_expert = 8, 4
    policy.open()
    rng = np.random.default_rng(1)
    layer = np.tile([0, 1], 20).astype(np.uint32)
    lists = [np.sort(rng.choice(4, 2, replace=False)) + 4 * int(x) for x in layer]
    first = np.arange(0, 2 * len(lists) + 1, 2)
    events = stoker.Events(
        n_expert=4,
        n_key=8,
        index=0,
        layer=layer,
        step=np.arange(40, dtype=np.uint64) // 2,
        n_tok=np.ones(40, np.uint32),
        first=first,
        keys=np.concatenate(lists).astype(np.uint32),
        counts=np.ones(80, np.uint32),
    )
    at_once = policy.score(events)
    policy.open()
    pieces = [policy.score(events.part(a, b)) for a, b in ((0, 1), (1, 2), (2, 17), (17, 40))]
    np.testing.assert_allclose(np.concatenate(pieces), at_once)
    want = []
    for i, keys in enumerate(lists):
        for key in keys:
            uses = [j // 2 for j in range(i + 1) if key in lists[j]]
            want.append(np.log2(sum(2 ** (t / 4) for t in uses)))
    np.testing.assert_allclose(at_once, want)
