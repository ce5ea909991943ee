"""Traces to and from arrays and tables."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional, TextIO, Union

import numpy as np
import numpy.typing as npt

from .errors import InvalidArgumentError
from .model import PathLike
from .policy import NO_EXPERT
from .units import parse_bytes

Ints = npt.NDArray[np.int64]
MOST_EXPERTS = NO_EXPERT - 1


class TraceArrays(NamedTuple):
    """
    A trace token by token. `ids` is [n_token, n_layer, k] uint16 in rank order, NO_EXPERT where a token has no (further) expert in a
    layer, `weights` the same in float32 or None, `layers` [n_layer] their numbers in the model. Of each token, [n_token]: the `step` that
    computed it, whether that is a `decode` step, the sequence `seq`, its `pos` there, and its id `token`, -1 for unknown.
    """

    ids: npt.NDArray[np.uint16]
    weights: Optional[npt.NDArray[np.float32]]
    layers: Ints
    step: Ints
    decode: npt.NDArray[np.bool_]
    seq: Ints
    pos: Ints
    token: Ints


def collect(events: Iterator[Any], n_layer: int, k: int) -> TraceArrays:
    """The arrays of a trace from its events."""
    layers = np.arange(n_layer)
    ids: list[Any] = []
    weights: list[Any] = []
    columns: list[tuple[Any, ...]] = []
    step, weighted = None, True
    for e in events:
        n, k_event = e.ids.shape
        if e.step != step:
            step = e.step
            ids.append(np.full((n, n_layer, k), NO_EXPERT, np.uint16))
            weights.append(np.zeros((n, n_layer, k), np.float32))
            columns.append((np.full(n, e.step), np.full(n, e.decode), e.seq, e.pos, e.token))
        layers[e.layer] = e.model_layer
        ids[-1][:, e.layer, :k_event] = e.ids
        weighted = weighted and e.weights is not None
        if weighted:
            weights[-1][:, e.layer, :k_event] = e.weights
    if not ids:
        none = np.zeros(0, np.int64)
        return TraceArrays(np.zeros((0, n_layer, k), np.uint16), None, layers, none, none.astype(np.bool_), none, none, none)
    steps, decode, seq, pos, token = (np.concatenate(parts) for parts in zip(*columns))
    wide = [column.astype(np.int64) for column in (seq, pos, token)]
    return TraceArrays(np.concatenate(ids), np.concatenate(weights) if weighted else None, layers, steps.astype(np.int64), decode, *wide)


# ---- Checking ----


def _integers(values: Any, what: str, shape: tuple[int, ...]) -> Ints:
    """An argument as integers of a shape."""
    array = np.asarray(values)
    if array.dtype == np.bool_:
        array = array.astype(np.int64)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{what} are integers, not {array.dtype}")
    if array.shape != shape:
        raise InvalidArgumentError(f"{what} of shape {array.shape}; {shape} is needed, since ids say so")
    return array.astype(np.int64)


def _checked_ids(ids: Any, n_expert: int) -> Ints:
    """[n_token, n_layer, k], -1 for none."""
    array = np.asarray(ids)
    if array.ndim != 3 or 0 in array.shape:
        raise InvalidArgumentError(f"ids of shape {array.shape}; [n_token, n_layer, k] is needed, and something in it")
    array = _integers(array, "ids", array.shape)
    array[array == NO_EXPERT] = -1
    most = n_expert or MOST_EXPERTS
    for bad, what in ((array >= most, f"of {most} experts"), (array < -1, "and -1 or NO_EXPERT stand for none")):
        if bad.any():
            t, layer, rank = np.argwhere(bad)[0].tolist()
            raise InvalidArgumentError(f"ids[{t}, {layer}, {rank}] is expert {array[t, layer, rank]} {what}")
    ordered = np.sort(array, axis=2)
    twice = np.logical_and(ordered[:, :, 1:] == ordered[:, :, :-1], ordered[:, :, 1:] >= 0)
    if twice.any():
        t, layer, rank = np.argwhere(twice)[0].tolist()
        raise InvalidArgumentError(f"ids[{t}, {layer}] name expert {ordered[t, layer, rank]} twice")
    return array


def _checked_weights(weights: Any, shape: tuple[int, ...]) -> Optional[npt.NDArray[np.float32]]:
    if weights is None:
        return None
    array = np.asarray(weights)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"weights are numbers, not {array.dtype}")
    if array.shape != shape:
        raise InvalidArgumentError(f"weights of shape {array.shape}; {shape} is needed, as of ids")
    if not np.isfinite(array).all():
        raise InvalidArgumentError("a weight is not finite; leave weights out where they are unknown")
    return array.astype(np.float32)


def _expert_bytes(value: Union[int, str, Sequence[Union[int, str]], None], n_layer: int) -> list[int]:
    if value is None:
        return []
    values = [value] * n_layer if isinstance(value, (int, str)) else list(value)
    if len(values) != n_layer:
        raise InvalidArgumentError(f"expert_bytes has {len(values)} entries for {n_layer} layers")
    return [parse_bytes(each) for each in values]


# ---- Writing ----


def write_csv(out: TextIO, arrays: TraceArrays, n_expert: int, expert_bytes: list[int], model: str) -> None:
    """The rows of traces/README.md. `ids` have -1 for none."""
    ids, weights = arrays.ids.tolist(), arrays.weights
    out.write(f"# model={model or 'unknown'} k={arrays.ids.shape[2]}{f' n_expert={n_expert}' if n_expert else ''}\n")
    for number, size in zip(arrays.layers.tolist(), expert_bytes):
        out.write(f"# layer={number} expert_bytes={size}\n")
    out.write("step,seq,pos,token,phase,layer,experts,weights\n")
    layers = arrays.layers.tolist()
    starts = np.flatnonzero(np.r_[True, arrays.step[1:] != arrays.step[:-1]]).tolist()
    heads = [
        f"{step},{seq},{pos},{token},{'decode' if decode else 'prefill'}"
        for step, seq, pos, token, decode in zip(
            *(column.tolist() for column in (arrays.step, arrays.seq, arrays.pos, arrays.token, arrays.decode))
        )
    ]
    used: list[list[bool]] = np.any(arrays.ids >= 0, axis=2).tolist()
    for begin, end in zip(starts, [*starts[1:], len(heads)]):
        for i, layer in enumerate(layers):
            for t in range(begin, end):
                if i and not used[t][i]:
                    continue  # the first layer names every token of the step
                experts = " ".join("-" if x < 0 else str(x) for x in ids[t][i])
                floats = "" if weights is None else " ".join(f"{w:.9g}" for w in weights[t, i].tolist())
                out.write(f"{heads[t]},{layer},{experts},{floats}\n")


def arrays_of(
    ids: Any,
    weights: Any,
    layers: Optional[Sequence[int]],
    step: Any,
    decode: Any,
    seq: Any,
    pos: Any,
    token: Any,
    n_expert: int,
) -> TraceArrays:
    """Arguments of Trace.from_arrays, checked, with what is missing filled in. `ids` have -1 for none."""
    checked = _checked_ids(ids, n_expert)
    n, n_layer, _ = checked.shape
    numbers = _integers(np.arange(n_layer) if layers is None else layers, "layers", (n_layer,))
    if (numbers < 0).any() or (np.diff(numbers) <= 0).any():
        raise InvalidArgumentError("layers are numbers in the model, ascending")
    of_step = _integers(np.arange(n) if step is None else step, "steps", (n,))
    if (of_step < 0).any() or (np.diff(of_step) < 0).any():
        raise InvalidArgumentError("steps do not ascend: tokens are in the order in which they were computed")
    of_seq = _integers(np.zeros(n, np.int64) if seq is None else seq, "seq", (n,))
    place = _within(of_seq) if pos is None else _integers(pos, "pos", (n,))
    known = _integers(np.full(n, -1) if token is None else token, "token", (n,))
    for column, what, least in ((of_seq, "seq", 0), (place, "pos", 0), (known, "token", -1)):
        if (column < least).any() or (column >= 2**31).any():
            raise InvalidArgumentError(f"{what} is from {least} to {2**31 - 1}")
    decoded = _integers(np.ones(n, np.int64) if decode is None else decode, "decode", (n,)) != 0
    first = np.r_[True, of_step[1:] != of_step[:-1]]
    if (decoded[1:] != decoded[:-1])[~first[1:]].any():
        raise InvalidArgumentError("decode differs among the tokens of a step")
    return TraceArrays(checked, _checked_weights(weights, checked.shape), numbers, of_step, decoded, of_seq, place, known)  # type: ignore[arg-type]


def _within(group: Ints) -> Ints:
    """For each entry how many of its group come before it."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    before = np.empty_like(group)
    before[order] = np.arange(len(group)) - np.repeat(starts, np.diff(np.r_[starts, len(group)]))
    return before


def save(path: PathLike, arrays: TraceArrays, n_expert: int, expert_bytes: Any, model: str, format: str) -> None:
    """Writes a trace file by way of a table beside it: `path` appears whole or not at all."""
    from .trace import convert

    if any(x.isspace() for x in model):
        raise InvalidArgumentError(f"model '{model}': a name without spaces is needed")
    sizes = _expert_bytes(expert_bytes, len(arrays.layers))
    folder = os.path.dirname(os.path.abspath(os.fspath(path)))
    with tempfile.TemporaryDirectory(dir=folder if os.access(folder, os.W_OK) else None) as beside:
        table = os.path.join(beside, "trace.csv")
        with open(table, "w", encoding="utf-8") as out:
            write_csv(out, arrays, n_expert, sizes, model)
        convert([table], path, format=format)


# ---- Tables ----

_TOKEN_COLUMNS = ("step", "seq", "pos", "token", "decode")


def from_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of Trace.from_arrays from columns with a row for each token and expert, as Trace.to_pandas gives them."""
    columns = {}
    for name in ("layer", "expert", "rank", "weight", *_TOKEN_COLUMNS):
        if name in table:
            columns[name] = np.asarray(table[name])
    if "model_layer" in table:
        columns["layer"] = np.asarray(table["model_layer"])
    for name in ("layer", "expert", "step"):
        if name not in columns:
            raise InvalidArgumentError(f"the table has no column '{name}'; layer, expert and step are needed")
    n_row = len(columns["layer"])
    if not n_row:
        raise InvalidArgumentError("the table is empty")
    numbers = {name: _integers(values, f"column '{name}'", (n_row,)) for name, values in columns.items() if name != "weight"}
    # A token is what agrees in step, sequence and position; they stay in the order in which they come.
    keys = np.column_stack([numbers[name] for name in ("step", "seq", "pos") if name in numbers])
    _, first, of_row = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    at = np.empty_like(order)
    at[order] = np.arange(len(order))
    t = at[of_row.reshape(-1)]
    layers, layer = np.unique(numbers["layer"], return_inverse=True)
    rank = numbers.get("rank")
    if rank is None:
        rank = _within(t * len(layers) + layer.reshape(-1))
    if (rank < 0).any() or rank.max() >= MOST_EXPERTS:
        raise InvalidArgumentError("column 'rank' counts from 0")
    ids = np.full((len(order), len(layers), int(rank.max()) + 1), -1, np.int64)
    place = (t, layer.reshape(-1), rank)
    if len(np.unique(np.ravel_multi_index(place, ids.shape))) != n_row:
        raise InvalidArgumentError("two rows have the same token, layer and rank; tokens are told apart by step, seq and pos")
    ids[place] = numbers["expert"]
    found: dict[str, Any] = {"ids": ids, "layers": layers}
    if "weight" in columns and not np.isnan(columns["weight"].astype(np.float64)).all():
        found["weights"] = np.zeros(ids.shape, np.float32)
        found["weights"][place] = columns["weight"]
    start = first[order]
    return {**found, **{name: numbers[name][start] for name in _TOKEN_COLUMNS if name in numbers}}
