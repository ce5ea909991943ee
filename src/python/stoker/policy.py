"""
Eviction policies in Python: subclass `Policy` to be asked for each decision, or `ScorePolicy` to give scores, many events at a
time. Either works in `replay`, in `sweep` and in a live `Engine`, as the argument `policy=`: a class, a function that makes an
instance, or an instance. Experts of each size have a cache, and so a `Policy`, of their own (many quantized models have two sizes):
an instance that you give serves the first, copies of it, as it was when given, the others.

The key of an expert is `layer * n_expert + its number`; layers are counted among those with experts.

What a policy raises does not stop the run: LRU decides for the rest of that event, and `PolicyError` is raised after the step (after
a replay, at its end).
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from .errors import StateError

NO_EXPERT = 0xFFFF


class Why(enum.IntEnum):
    """Why an expert came in."""

    DEMAND = 0
    PREFETCH = 1
    WARM = 2


class Event:
    """
    One layer of one step, before its experts are looked up.

    `keys` are its distinct experts in ascending order, resident or not, and `counts` the number of tokens of each; both are lists of
    the same length. The arrays below are copies; they can be asked for until `touch` returns.
    """

    __slots__ = ("_struct", "counts", "k", "keys", "layer", "n_tok", "step")

    def __init__(self, struct: Any) -> None:
        n = struct.n
        self._struct = struct
        self.layer: int = struct.layer
        self.step: int = struct.step
        self.n_tok: int = struct.n_tok
        self.k: int = struct.k
        self.keys: list[int] = struct.keys[:n]
        self.counts: list[int] = struct.counts[:n]

    def _end(self) -> None:
        self._struct = None

    def _array(self, name: str, columns: int, dtype: Any) -> Any:
        if self._struct is None:
            raise StateError(f"the event's {name} had to be asked for before touch returned")
        pointer = getattr(self._struct, name)
        if not pointer or not columns:
            return np.empty((self.n_tok, 0), dtype)
        return np.array(pointer[: self.n_tok * columns], dtype).reshape(self.n_tok, columns)

    @property
    def ids(self) -> npt.NDArray[np.uint16]:
        """Expert numbers in rank order, [n_tok, k]; NO_EXPERT for none."""
        return self._array("ids", self.k, np.uint16)  # type: ignore[no-any-return]

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """Router weights, [n_tok, k]; [n_tok, 0] where a trace has none."""
        return self._array("weights", self.k, np.float32)  # type: ignore[no-any-return]

    @property
    def top_ids(self) -> npt.NDArray[np.uint16]:
        """The experts that have scores, best first, [n_tok, n_top]."""
        return self._array("top_ids", self._n_top(), np.uint16)  # type: ignore[no-any-return]

    @property
    def top_scores(self) -> npt.NDArray[np.float32]:
        """Router probabilities of `top_ids`, [n_tok, n_top]."""
        return self._array("top_scores", self._n_top(), np.float32)  # type: ignore[no-any-return]

    def _n_top(self) -> int:
        return int(self._struct.n_top) if self._struct is not None else 1

    def _column(self, name: str) -> npt.NDArray[np.int32]:
        return self._array(name, 1, np.int32)[:, 0]  # type: ignore[no-any-return]

    @property
    def seq(self) -> npt.NDArray[np.int32]:
        """The sequence of each token, [n_tok]."""
        return self._column("seq")

    @property
    def pos(self) -> npt.NDArray[np.int32]:
        """The position of each token, [n_tok]."""
        return self._column("pos")

    @property
    def token(self) -> npt.NDArray[np.int32]:
        """The id of each token, [n_tok]."""
        return self._column("token")


class Busy:
    """The experts that may not leave now: `key in busy`. Can be asked until `victim` returns."""

    __slots__ = ("_n_key", "_words")

    def __init__(self, words: Any, n_key: int) -> None:
        self._words = words
        self._n_key = n_key

    def _end(self) -> None:
        self._words = None

    def __contains__(self, key: int) -> bool:
        if self._words is None:
            raise StateError("busy had to be asked before victim returned")
        if not 0 <= key < self._n_key:
            raise KeyError(key)
        return bool(self._words[key >> 6] >> (key & 63) & 1)

    def mask(self) -> npt.NDArray[np.bool_]:
        """All keys at once, [n_key]."""
        if self._words is None:
            raise StateError("busy had to be asked before victim returned")
        n_word = (self._n_key + 63) // 64
        words = np.array(self._words[:n_word], np.uint64)
        return np.unpackbits(words.view(np.uint8), bitorder="little")[: self._n_key].astype(np.bool_)


class _Shaped:
    """What all policies have. `n_key`, `n_expert` (of a layer) and `seed` are set before `open`."""

    name = ""  # in messages and traces; "": the class's name
    n_key = 0
    n_expert = 0
    seed = 0

    def open(self) -> None:
        """The run begins."""

    def close(self) -> None:
        """The run is over."""


class Policy(_Shaped):
    """
    Decides one expert at a time, among those of one size: `n_slot` slots and the number of the size, `instance`, are set before
    `open`, too. Define `victim`, and of the others what is needed. A subclass that defines `admit(key) -> bool` may refuse missed
    experts, which are then used once and forgotten; k slots of each size are set aside for those.
    """

    n_slot = 0
    instance = 0

    def touch(self, event: Event) -> None:
        """An event, before its experts are looked up."""

    def inserted(self, key: int, why: Why) -> None:
        """An expert came in."""

    def evicted(self, key: int) -> None:
        """An expert left: as a victim, or because its read failed or all were dropped."""

    def resized(self, n_slot: int) -> None:
        """There are `n_slot` slots from here on."""

    def victim(self, busy: Busy) -> Optional[int]:
        """The key of a resident that is not busy; None when all are busy."""
        raise NotImplementedError(f"{type(self).__name__} does not define victim")


class Tokens(NamedTuple):
    """
    The tokens of events: sequence, position and id (-1: unknown), [n] int32; experts in rank order, [n, k] uint16, NO_EXPERT for none.
    """

    seq: npt.NDArray[np.int32]
    pos: npt.NDArray[np.int32]
    token: npt.NDArray[np.int32]
    ids: npt.NDArray[np.uint16]


class Events:
    """
    Events of a run as arrays: n_event events with n_lookup distinct experts together. Those of event i are
    `first[i]` to `first[i + 1]` of `keys` and `counts`.

    `layer`, `step` and `n_tok` are [n_event], `first` is [n_event + 1]; `keys` (ascending within an event) and `counts` (tokens of
    each expert) are [n_lookup]; keys are below `n_key`. `index` is the number of the first event in its run.

    `tokens` are those of each event one after another, or None where they were not asked for: those of event i are `first_token[i]`
    to `first_token[i + 1]`.
    """

    __slots__ = ("counts", "first", "index", "keys", "layer", "n_expert", "n_key", "n_tok", "step", "tokens")

    def __init__(
        self,
        *,
        n_expert: int,
        n_key: int,
        index: int,
        layer: npt.NDArray[np.uint32],
        step: npt.NDArray[np.uint64],
        n_tok: npt.NDArray[np.uint32],
        first: npt.NDArray[np.int64],
        keys: npt.NDArray[np.uint32],
        counts: npt.NDArray[np.uint32],
        tokens: Optional[Tokens] = None,
    ) -> None:
        self.n_expert, self.n_key, self.index = n_expert, n_key, index
        self.layer, self.step, self.n_tok, self.first, self.keys, self.counts = layer, step, n_tok, first, keys, counts
        self.tokens = tokens

    @property
    def n_event(self) -> int:
        """Number of events."""
        return len(self.layer)

    @property
    def n_lookup(self) -> int:
        """Number of distinct experts of all events together."""
        return len(self.keys)

    def __len__(self) -> int:
        return self.n_event

    def __repr__(self) -> str:
        return f"<stoker.Events {self.index} to {self.index + self.n_event}, {self.n_lookup} lookups>"

    @property
    def event_of(self) -> npt.NDArray[np.int64]:
        """For each lookup the number of its event in the run, [n_lookup]."""
        return np.repeat(np.arange(self.index, self.index + self.n_event), np.diff(self.first))

    @property
    def first_token(self) -> npt.NDArray[np.int64]:
        """Where the tokens of each event begin in `tokens`, [n_event + 1]."""
        first = np.zeros(self.n_event + 1, np.int64)
        np.cumsum(self.n_tok, out=first[1:])
        return first

    def part(self, begin: int, end: int) -> Events:
        """Events begin to end, as views."""
        a, b = int(self.first[begin]), int(self.first[end])
        tokens = self.tokens
        if tokens is not None:
            c, d = self.first_token[[begin, end]]
            tokens = Tokens(tokens.seq[c:d], tokens.pos[c:d], tokens.token[c:d], tokens.ids[c:d])
        return Events(
            n_expert=self.n_expert,
            n_key=self.n_key,
            index=self.index + begin,
            layer=self.layer[begin:end],
            step=self.step[begin:end],
            n_tok=self.n_tok[begin:end],
            first=self.first[begin : end + 1] - a,
            keys=self.keys[a:b],
            counts=self.counts[a:b],
            tokens=tokens,
        )


class ScorePolicy(_Shaped):
    """
    Decides by scores: of the residents that are not busy the one with the least score leaves, among equals the least recently used
    one. An expert keeps its score until the next event that uses it.

    One instance serves experts of all sizes. `score` is called with one event when live, and with thousands at a time in a replay of a
    `Trace`, so it should be written over whole arrays. It may keep state from call to call; a score may depend on what was before
    its event, and on the event itself. (In a replay nothing keeps it from looking ahead: that is how an oracle is written.)
    """

    def score(self, events: Events) -> npt.NDArray[np.float64]:
        """The scores of all experts of all events, [n_lookup], in the order of `events.keys`; no NaN."""
        raise NotImplementedError(f"{type(self).__name__} does not define score")
