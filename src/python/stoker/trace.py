"""Traces: what a run did, event by event, or as arrays."""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

import numpy as np
import numpy.typing as npt

from . import _structs as s
from . import arrays as _arrays
from ._handle import Handle
from ._native import Callbacks, check, lib
from .arrays import TraceArrays
from .errors import InvalidArgumentError
from .model import PathLike, encode_path, from_struct
from .policy import NO_EXPERT, Events, Tokens
from .units import as_int, parse_bytes

_FORMATS = {"stoker": 0, "csv": 1}


@dataclass(frozen=True)
class TraceInfo:
    """
    What a trace says of itself. `recorded` is 0 for routing of other tools; `sized` is 0 where the bytes of experts are an assumption.
    Text is "", and n_slot and ram_bytes are 0, where it does not say.
    """

    format: str
    model: str
    policy: str
    io: str
    n_layer: int
    n_expert: int
    k: int
    n_batch: int
    recorded: int
    sized: int
    expert_bytes: int
    n_slot: int
    ram_bytes: int


@dataclass(frozen=True)
class TraceEvent:
    """
    One layer of one step. `layer` counts layers with experts, `model_layer` is its number in the model. Arrays are copies: `seq`, `pos`
    and `token` [n_tok] int32 (-1: unknown), `ids` [n_tok, k] uint16 in rank order (NO_EXPERT for none), `weights` [n_tok, k] float32 or
    None.
    """

    step: int
    layer: int
    model_layer: int
    decode: bool
    seq: npt.NDArray[np.int32]
    pos: npt.NDArray[np.int32]
    token: npt.NDArray[np.int32]
    ids: npt.NDArray[np.uint16]
    weights: Optional[npt.NDArray[np.float32]]


def _copy(address: Optional[int], dtype: Any, *shape: int) -> Any:
    """Memory of the library, copied."""
    n = int(np.prod(shape))
    raw = c.string_at(address, n * np.dtype(dtype).itemsize) if address and n else b""
    return np.frombuffer(raw, dtype).reshape(shape) if raw or not n else np.full(shape, -1, dtype)


class Trace:
    """
    A recorded run, or a routing trace of another tool (traces/README.md lists what is read). Iterating reads it from the start; several
    iterators may run side by side. `events()` reads it once and keeps the arrays.

    :raises ReadWriteError, FormatError, UnsupportedError: what cannot be read, with file and byte or line.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        self._events: Optional[Events] = None
        self._weights: Any = None
        self.complete: Optional[bool] = None  # known once it was read to its end
        with _Reader(self.path) as reader:
            self.info: TraceInfo = reader.info()

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<stoker.Trace {self.path!r}, {self.info.n_layer} layers of {self.info.n_expert} experts>"

    def _structs(self) -> Iterator[s.TraceEventStruct]:
        with _Reader(self.path) as reader:
            yield from reader
            self.complete = reader.complete

    def __iter__(self) -> Iterator[TraceEvent]:
        for e in self._structs():
            n, k = e.n_tok, e.k
            yield TraceEvent(
                step=e.step,
                layer=e.layer,
                model_layer=e.model_layer,
                decode=bool(e.decode),
                seq=_copy(e.seq, np.int32, n),
                pos=_copy(e.pos, np.int32, n),
                token=_copy(e.token, np.int32, n),
                ids=_copy(e.ids, np.uint16, n, k),
                weights=_copy(e.weights, np.float32, n, k) if e.weights else None,
            )

    def events(self, *, tokens: bool = False) -> Events:
        """
        The whole trace as arrays, as a `ScorePolicy` and a `BatchPredictor` are shown them; read once.

        :param tokens: with the tokens of each event, `Events.tokens`, which takes about twice as long.
        """
        if self._events is None or (tokens and self._events.tokens is None):
            self._events = self._read(tokens)
        return self._events

    def _read(self, tokens: bool) -> Events:
        heads: list[tuple[int, int, int, int]] = []
        raw: list[bytes] = []
        of_tokens: list[bytes] = []
        copy = c.string_at
        for e in self._structs():
            n_tok, k = e.n_tok, e.k
            heads.append((e.step, e.layer, n_tok, k))
            raw.append(copy(e.ids, 2 * n_tok * k))
            if tokens:
                n = 4 * n_tok
                of_tokens.append(copy(e.seq, n) + copy(e.pos, n) + copy(e.token, n))
        head = np.array(heads, np.int64).reshape(-1, 4)
        ids = np.frombuffer(b"".join(raw), np.uint16)
        events = _distinct(head, ids.astype(np.int64), self.info.n_expert, self.info.n_layer)
        if tokens:
            events.tokens = _split_tokens(head, ids, b"".join(of_tokens), self.info.k)
        return events

    def uses(self) -> npt.NDArray[np.int64]:
        """How many tokens used each expert, [n_layer, n_expert]."""
        events = self.events()
        flat = np.bincount(events.keys, events.counts, self.info.n_layer * self.info.n_expert)
        return flat.astype(np.int64).reshape(self.info.n_layer, self.info.n_expert)

    def to_arrays(self) -> TraceArrays:
        """The whole trace token by token, ids [n_token, n_layer, k]: what `from_arrays` takes."""
        return _arrays.collect(iter(self), self.info.n_layer, self.info.k)

    @classmethod
    def from_arrays(
        cls,
        path: PathLike,
        ids: npt.ArrayLike,
        weights: Optional[npt.ArrayLike] = None,
        *,
        layers: Optional[Sequence[int]] = None,
        step: Optional[npt.ArrayLike] = None,
        decode: Optional[npt.ArrayLike] = None,
        seq: Optional[npt.ArrayLike] = None,
        pos: Optional[npt.ArrayLike] = None,
        token: Optional[npt.ArrayLike] = None,
        n_expert: int = 0,
        expert_bytes: Union[int, str, Sequence[Union[int, str]], None] = None,
        model: str = "",
        format: str = "stoker",
    ) -> Trace:
        """
        Writes routing that you have as arrays, of any model or program, to a trace file, and opens it.

        :param ids: [n_token, n_layer, k] integers in rank order; NO_EXPERT or -1 where a token has no (further) expert in a layer.
        :param weights: [n_token, n_layer, k], as the router gave them; None: unknown.
        :param layers: [n_layer] their numbers in the model, ascending; None: 0, 1, ...
        :param step: [n_token] the step that computed each token, ascending; tokens of one step share events. None: a step each.
        :param decode: [n_token] whether its step decodes, else it reads a prompt; None: all do.
        :param seq: [n_token] its sequence; None: 0. `pos`: [n_token] its position there; None: counted. `token`: [n_token] its id, -1
            for unknown.
        :param n_expert: experts of a layer; 0: as many as the highest number seen.
        :param expert_bytes: of one expert, or for each layer; None: 1 MiB is assumed.
        :param format: "stoker" or "csv".
        :raises InvalidArgumentError, TypeError: what does not fit, and where; nothing is written.
        """
        n = as_int(n_expert, "n_expert", high=_arrays.MOST_EXPERTS)
        arrays = _arrays.arrays_of(ids, weights, layers, step, decode, seq, pos, token, n)
        _arrays.save(path, arrays, n, expert_bytes, model, format)
        return cls(path)

    @classmethod
    def from_pandas(cls, path: PathLike, table: Mapping[str, Any], **options: Any) -> Trace:
        """
        The same from a DataFrame, or any mapping of columns, with a row for each token and expert, as `to_pandas` gives it.

        :param table: columns step, layer (or model_layer: its number in the model) and expert; if they are there, rank, weight, decode,
            seq, pos, token.
        :param options: n_expert, expert_bytes, model, format of `from_arrays`.
        """
        return cls.from_arrays(path, **_arrays.from_table(table), **options)

    def to_pandas(self) -> Any:
        """
        A DataFrame with a row for each token and expert. Needs pandas.

        Columns are step, layer, model_layer, decode, seq, pos, token, rank, expert, weight.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("Trace.to_pandas needs pandas: pip install pandas") from error
        names = ("step", "layer", "model_layer", "decode", "seq", "pos", "token", "rank", "expert", "weight")
        columns: dict[str, list[Any]] = {name: [] for name in names}
        for e in self:
            n, k = e.ids.shape
            weights = e.weights if e.weights is not None else np.full((n, k), np.nan, np.float32)
            values = (
                *(np.full(n * k, v) for v in (e.step, e.layer, e.model_layer, e.decode)),
                *(np.repeat(v, k) for v in (e.seq, e.pos, e.token)),
                np.tile(np.arange(k), n),
                e.ids.ravel(),
                weights.ravel(),
            )
            for name, column in zip(names, values):
                columns[name].append(column)
        frame = pd.DataFrame({name: np.concatenate(parts) if parts else [] for name, parts in columns.items()})
        return frame[frame.expert != NO_EXPERT].reset_index(drop=True)

    def write(self, path: PathLike, **options: Any) -> None:
        """Writes the trace, or a part of it, to a file: see `convert`."""
        convert([self], path, **options)


def _distinct(head: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], n_expert: int, n_layer: int) -> Events:
    """Distinct experts of each event, from (step, layer, n_tok, k) of the events and the ids of all."""
    n_event = len(head)
    event = np.repeat(np.arange(n_event), head[:, 2] * head[:, 3])
    used = ids != NO_EXPERT
    code, counts = np.unique(event[used] * n_expert + ids[used], return_counts=True)
    of_event = code // n_expert
    return Events(
        n_expert=n_expert,
        n_key=n_layer * n_expert,
        index=0,
        layer=head[:, 1].astype(np.uint32),
        step=head[:, 0].astype(np.uint64),
        n_tok=head[:, 2].astype(np.uint32),
        first=np.r_[0, np.cumsum(np.bincount(of_event, minlength=n_event))].astype(np.int64),
        keys=(code % n_expert + head[of_event, 1] * n_expert).astype(np.uint32),
        counts=counts.astype(np.uint32),
    )


def _split_tokens(head: npt.NDArray[np.int64], ids: npt.NDArray[np.uint16], raw: bytes, k: int) -> Tokens:
    """Tokens of all events, from seq, pos and token [3, n_tok] of each event and their ids, of which an event may have less than k."""
    n_tok, of_event = head[:, 2], head[:, 3]
    event = np.repeat(np.arange(len(head)), n_tok)
    first = np.r_[0, np.cumsum(n_tok)]
    at = np.arange(len(event)) + 2 * first[event]  # where the event's own three columns begin, and the token's place in the first
    columns = np.frombuffer(raw, np.int32)
    seq, pos, token = (columns[at + i * n_tok[event]] for i in range(3))
    padded = np.full((len(event), k), NO_EXPERT, np.uint16)
    padded[np.arange(k) < of_event[event, None]] = ids
    return Tokens(seq, pos, token, padded)


class _Reader(Handle):
    """One pass over a trace."""

    _what = "trace"

    def __init__(self, path: str) -> None:
        out = c.c_void_p()
        check(lib().stk_trace_open(c.byref(out), encode_path(path)))
        assert out.value is not None
        super().__init__(out.value)
        self.complete = False

    def _close_native(self, pointer: Any) -> None:
        lib().stk_trace_close(pointer)

    def info(self) -> TraceInfo:
        info = s.TraceInfoStruct()
        with self._use() as p:
            check(lib().stk_trace_get_info(p, c.byref(info)))
            return from_struct(TraceInfo, info)

    def __iter__(self) -> Iterator[s.TraceEventStruct]:
        event = s.TraceEventStruct()
        reference, step, size = c.byref(event), lib().stk_trace_next, c.sizeof(event)
        while True:
            event.struct_bytes = size
            with self._use() as p:
                rc = step(p, reference)
            if rc <= 0:
                break
            yield event
        check(rc)
        with self._use() as p:
            self.complete = not lib().stk_trace_is_cut(p)


def convert(
    traces: Sequence[PathLike],
    path: PathLike,
    *,
    format: str = "stoker",
    first_step: int = 0,
    n_step: int = 0,
    expert_bytes: Union[int, str, None] = None,
    progress: Optional[Callable[[str, int, int], object]] = None,
) -> None:
    """
    Writes traces of one model, one after another, to `path`, which appears whole or not at all.

    :param format: "stoker" or "csv".
    :param first_step: steps before are left out; at most `n_step` are kept, 0: all.
    :param expert_bytes: of traces of other tools, in place of what they say.
    """
    if isinstance(traces, (str, os.PathLike)) or not isinstance(traces, Iterable):
        raise TypeError(f"traces are a list of paths, not {traces!r}")
    traces = list(traces)
    if format not in _FORMATS:
        raise InvalidArgumentError(f"format '{format}'; there are {', '.join(_FORMATS)}")
    o, callbacks = s.TraceConvertOptionsStruct(), Callbacks()
    lib().stk_trace_convert_options_default(c.byref(o), c.sizeof(o))
    o.format = _FORMATS[format]
    o.first_step = as_int(first_step, "first_step", high=2**64 - 1)
    o.n_step = as_int(n_step, "n_step", high=2**64 - 1)
    o.expert_bytes = parse_bytes(expert_bytes)
    o.progress = callbacks.progress(progress)
    paths = (c.c_char_p * len(traces))(*[encode_path(trace) for trace in traces])
    check(lib().stk_trace_convert(paths, len(traces), encode_path(path), c.byref(o)), callbacks)
