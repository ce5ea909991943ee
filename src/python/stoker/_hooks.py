"""Policies in Python behind the callbacks of stk_policy_hooks."""

from __future__ import annotations

import copy
import ctypes as c
from collections.abc import Iterable
from typing import Any, Callable, Optional, Union

import numpy as np

from . import _structs as s
from ._faults import Faults
from .errors import InvalidArgumentError, PolicyError, StokerError
from .policy import Busy, Event, Events, Policy, ScorePolicy, Tokens, Why

AnyPolicy = Union[Policy, ScorePolicy]
PolicyLike = Union[None, str, AnyPolicy, Callable[[], AnyPolicy]]

_WHY = tuple(Why)


class Hooks(Faults):
    """The struct of callbacks for one engine or replay, and what its policy raised."""

    _error = PolicyError
    _instead = "LRU decided instead"

    def __init__(self, make: Union[AnyPolicy, Callable[[], AnyPolicy]]) -> None:
        super().__init__()
        self._make: Callable[[], AnyPolicy]
        self._next: Optional[AnyPolicy] = None  # made already, for the next instance
        self._instances: list[AnyPolicy] = []
        self._n_event = 0
        self._opened_ahead = False  # a ScorePolicy, by score_run
        self._n_more = 0  # sizes of experts, beyond the first, that share a ScorePolicy
        if isinstance(make, ScorePolicy):
            self._make, self._next = _no_second, make
        elif isinstance(make, Policy):
            pristine = copy.deepcopy(make)
            self._make, self._next = lambda: copy.deepcopy(pristine), make
        else:
            self._make = make
            if not isinstance(make, type):
                self._next = self._new()  # what it makes says which hooks are wanted
        kind: Any = make if isinstance(make, type) else type(self._next)
        if not issubclass(kind, (Policy, ScorePolicy)):
            raise TypeError(f"a policy is a name or a stoker.Policy or ScorePolicy, not {kind.__name__}")
        self.name: str = kind.name or kind.__name__
        self.is_scored = issubclass(kind, ScorePolicy)
        self.struct = s.PolicyHooksStruct(name=self.name.encode())
        self._bind(kind)

    @classmethod
    def of(cls, policy: PolicyLike) -> Optional[Hooks]:
        """None where the policy is a name or none."""
        if policy is None or isinstance(policy, str):
            return None
        if not isinstance(policy, (Policy, ScorePolicy)) and not callable(policy):
            raise TypeError(f"a policy is a name or a stoker.Policy or ScorePolicy, not {type(policy).__name__}")
        return cls(policy)

    def _new(self) -> AnyPolicy:
        if self._next is not None:
            made, self._next = self._next, None
            return made
        made = self._make()
        if not isinstance(made, (Policy, ScorePolicy)):
            raise TypeError(f"a policy is a stoker.Policy or ScorePolicy, not {type(made).__name__}")
        return made

    def _bind(self, kind: type[AnyPolicy]) -> None:
        h = self.struct
        h.open = s.OpenFn(self._open)
        h.close = s.CloseFn(self._guarded_close)
        h.fault = s.FaultFn(self._fault)
        if issubclass(kind, ScorePolicy):
            h.open = s.OpenFn(self._open_scored)
            h.score = s.ScoreFn(self._score)
            return
        wants = {name: getattr(kind, name, None) is not getattr(Policy, name, None) for name in _OPTIONAL}
        h.victim = s.VictimFn(self._victim)
        if wants["touch"]:
            h.touch = s.TouchFn(self._touch)
        if wants["admit"]:
            h.admit = s.KeyFn(self._admit)
        if wants["inserted"]:
            h.inserted = s.InsertedFn(self._inserted)
        if wants["evicted"]:
            h.evicted = s.KeyFn(self._evicted)
        if wants["resized"]:
            h.resized = s.KeyFn(self._resized)

    def score_run(self, parts: Iterable[Events], seed: int) -> None:
        """Asks the ScorePolicy for the scores of a whole run, and lets the library take them from there."""
        policy, scores = None, [np.empty(0)]
        try:
            for events in parts:
                if policy is None:
                    policy = self._new()
                    self._instances.append(policy)
                    policy.n_key, policy.n_expert, policy.seed = events.n_key, events.n_expert, seed
                    self._opened_ahead = True
                    policy.open()
                scores.append(checked_scores(policy, events))
        except Exception as error:  # the rest of the run is LRU's
            self._raised.append(error)
        self._scores = np.ascontiguousarray(np.concatenate(scores))  # the library keeps its address
        h = self.struct
        h.score = s.ScoreFn()
        h.scores = self._scores.ctypes.data_as(c.POINTER(c.c_double))
        h.n_scores = len(self._scores)
        if policy is None:
            h.open, h.close = s.OpenFn(), s.CloseFn()

    # ---- What the library calls ----

    def _open(self, _user: object, shape: Any, out: Any) -> int:
        try:
            policy = self._new()
            self._instances.append(policy)
            given = shape.contents
            policy.n_key, policy.n_expert, policy.seed = given.n_key, given.n_expert, given.seed
            if isinstance(policy, Policy):
                policy.n_slot, policy.instance = given.n_slot, given.instance
            out[0] = len(self._instances)
            policy.open()
            return 0
        except BaseException as error:
            return self._failed(error)

    def _open_scored(self, user: object, shape: Any, out: Any) -> int:
        """Scores of experts of all sizes come from one instance."""
        if not self._instances:
            return self._open(user, shape, out)
        self._n_more += not self._opened_ahead
        self._opened_ahead = False
        out[0] = 1
        return 0

    def _guarded_close(self, number: int) -> None:
        if self.is_scored and self._n_more:
            self._n_more -= 1
            return
        try:
            self._instances[number - 1].close()
        except BaseException as error:
            self._failed_close(error)

    def _touch(self, number: int, struct: Any) -> int:
        try:
            event = Event(struct.contents)
            try:
                self._instances[number - 1].touch(event)  # type: ignore[union-attr]
            finally:
                event._end()
            return 0
        except BaseException as error:
            return self._failed(error)

    def _admit(self, number: int, key: int) -> int:
        try:
            return 1 if self._instances[number - 1].admit(key) else 0  # type: ignore[union-attr]
        except BaseException as error:
            return self._failed(error)

    def _inserted(self, number: int, key: int, why: int) -> int:
        try:
            self._instances[number - 1].inserted(key, _WHY[why])  # type: ignore[union-attr]
            return 0
        except BaseException as error:
            return self._failed(error)

    def _evicted(self, number: int, key: int) -> int:
        try:
            self._instances[number - 1].evicted(key)  # type: ignore[union-attr]
            return 0
        except BaseException as error:
            return self._failed(error)

    def _resized(self, number: int, n_slot: int) -> int:
        try:
            self._instances[number - 1].resized(n_slot)  # type: ignore[union-attr]
            return 0
        except BaseException as error:
            return self._failed(error)

    def _victim(self, number: int, words: Any, out: Any) -> int:
        try:
            policy = self._instances[number - 1]
            busy = Busy(words, policy.n_key)
            try:
                key = policy.victim(busy)  # type: ignore[union-attr]
            finally:
                busy._end()
            if key is None:
                return 0
            if not 0 <= key < policy.n_key:
                raise InvalidArgumentError(f"victim {key!r}; keys are 0 to {policy.n_key - 1}")
            out[0] = key
            return 1
        except BaseException as error:
            return self._failed(error)

    def _score(self, number: int, struct: Any, out: Any) -> int:
        try:
            policy = self._instances[number - 1]
            events = one_event(struct.contents, policy.n_expert, policy.n_key, self._n_event)
            self._n_event += 1
            np.ctypeslib.as_array(out, (events.n_lookup,))[:] = checked_scores(policy, events)
            return 0
        except BaseException as error:
            return self._failed(error)


def _no_second() -> AnyPolicy:
    raise AssertionError("a ScorePolicy is opened once")


_OPTIONAL = ("touch", "admit", "inserted", "evicted", "resized")


def one_event(struct: Any, n_expert: int, n_key: int, index: int, tokens: Optional[Tokens] = None) -> Events:
    """An event of the library as a table of one."""
    n = struct.n
    return Events(
        n_expert=n_expert,
        n_key=n_key,
        index=index,
        layer=np.array([struct.layer], np.uint32),
        step=np.array([struct.step], np.uint64),
        n_tok=np.array([struct.n_tok], np.uint32),
        first=np.array([0, n], np.int64),
        keys=np.array(struct.keys[:n], np.uint32),
        counts=np.array(struct.counts[:n], np.uint32),
        tokens=tokens,
    )


def checked_scores(policy: Any, events: Events) -> Any:
    """What `policy.score` returns, if it has the right shape."""
    scores = np.asarray(policy.score(events), np.float64)
    if scores.shape != (events.n_lookup,):
        raise StokerError(f"{type(policy).__name__}.score returned shape {scores.shape} for {events.n_lookup} lookups")
    return scores
