"""Replaying traces: what a cache of another size, policy or drive would have done; one run, or many at the same time."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes as c
import itertools
import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Union

import numpy as np

from . import _structs as s
from ._faults import take_first
from ._hooks import Hooks, PolicyLike
from ._native import Callbacks, check, lib
from ._predictor_hooks import PredictorHooks, PredictorLike
from .errors import HookError, InvalidArgumentError, StateError, StokerError
from .model import Model, PathLike, encode_path
from .policy import Events
from .timeline import Timeline
from .trace import Trace
from .units import as_call, as_int, as_text, parse_bytes

_SCOPES: dict[Optional[str], int] = {"global": 0, "layer": 1, None: 2}
_RESETS: dict[Optional[str], int] = {"none": 0, "sequence": 1}
_AHEADS: dict[Optional[str], int] = {"value": 0, "likely": 1, "impact": 2}
# Events that a ScorePolicy is shown at a time in a replay.
_CHUNK = 1 << 16
# The same for a BatchPredictor, whose answers are tables of probabilities.
_PREDICTED_CHUNK = 1 << 12


@dataclass(frozen=True)
class ReplayResult:
    """
    What a replay counted. Times are those of the virtual clock, 0 where no drive was given.

    :param complete: False where the trace is cut off; the figures are those up to the cut.
    :param n_slot: slots of all sizes that the cache had, and their bytes, ram_bytes.
    :param prefill: counters of the steps that read a prompt; `decode`, of the others.
    :param predicted: how predictions 1, 2 and 3 layers ahead did, where a predictor was asked; see `recall`.
    :param vram_bytes: of the slots of a "vram" tier; `tiers_prefill` and `tiers_decode`: where experts lay and were computed, what
        moved and how long each queue worked, None without that tier.
    :param layers: figures by layer, a structured array [n_layer] of `layer` (its number in the model), `n_slot`, and n_event, n_lookup,
        n_hit, n_miss, n_evict, bytes, read_bytes of both phases together.
    """

    complete: bool
    n_slot: int
    ram_bytes: int
    virtual_ns: int
    policy: str
    stats: s.Stats = field(compare=False)
    prefill: s.ReplayCount = field(compare=False)
    decode: s.ReplayCount = field(compare=False)
    layers: Any = field(compare=False)
    predicted: tuple[s.PredictCount, ...] = field(compare=False, default=())
    vram_bytes: int = 0
    tiers_prefill: Optional[s.ReplayTiers] = field(compare=False, default=None)
    tiers_decode: Optional[s.ReplayTiers] = field(compare=False, default=None)

    @property
    def recall(self) -> float:
        """recall@k of predictions one layer ahead, 0 to 1: 0 where no predictor was asked."""
        return self.predicted[0].recall if self.predicted else 0.0

    @property
    def hit_rate(self) -> float:
        """Lookups that found their expert resident, 0 to 1."""
        return self.stats.hit_rate

    @property
    def layer_hit_rates(self) -> Any:
        """Hit rate of each layer, [n_layer] float64; NaN for a layer without lookups."""
        n = self.layers["n_lookup"].astype(np.float64)
        return np.divide(self.layers["n_hit"], n, out=np.full(len(n), np.nan), where=n > 0)

    @property
    def tokens_per_second(self) -> float:
        """Predicted, by the virtual clock; 0 where no drive was given."""
        return self.stats.n_token / (self.virtual_ns * 1e-9) if self.virtual_ns else 0.0


def replay(
    trace: Union[PathLike, Sequence[PathLike]],
    *,
    policy: PolicyLike = None,
    params: Optional[str] = None,
    predictor: PredictorLike = None,
    predict_depth: int = 0,
    ahead: str = "value",
    ram: Union[int, str, None] = None,
    slots: int = 0,
    fraction: float = 0,
    tiers: Optional[Mapping[str, Union[int, str]]] = None,
    mode: Optional[str] = None,
    uses_from: Optional[PathLike] = None,
    scope: Optional[str] = None,
    reset: str = "none",
    io: Optional[str] = None,
    cost: Optional[PathLike] = None,
    expert_bytes: Union[int, str, None] = None,
    profile: Optional[PathLike] = None,
    model: Optional[Model] = None,
    model_shape: Optional[str] = None,
    seed: int = 0,
    verify: bool = False,
    timeline: Optional[Timeline] = None,
    progress: Optional[Callable[[str, int, int], object]] = None,
) -> ReplayResult:
    """
    Replays a trace: through the same cache and scheduler as a live run where times are asked for (`io`) or `verify`, else through the
    cache alone, which decides the same.

    :param trace: a path or a `Trace` (whose events a `ScorePolicy` then need not read again), or several of one model, which are
        replayed as one run.
    :param policy: a built-in policy's name, or one in Python (see `stoker.Policy`); None: the trace's own. `params`: "name=value,...".
    :param predictor: what predicts the experts to read ahead: a built-in predictor's name, "none", or one in Python (see
        `stoker.Predictor`), which hears of the layers ahead at most what the run recorded; None or "gate": what the recorded run
        predicted. `predict_depth`: how many layers ahead at most, up to 3; 0: as recorded, or 1. `ahead`: how what of it is read
        ahead is chosen: "value", what saves more than it costs; "likely", what is as likely used as not; "impact", HybriMoE's
        simulation, for comparison. The first and last want times.
    :param ram: the budget, also as "8G"; or `slots`, a number of slots; or `fraction` of all experts, up to 1. None: the trace's own.
    :param tiers: the budget of every tier over the drive in place of `ram`: {"vram": "8G", "ram": "24G"}, or one of them. "vram" is that
        of a modelled GPU and wants `cost`; with it `mode`, how experts are placed and scheduled on it ("hybrid", None being the same,
        "static", "kt", "lru-upload", "fiddler", ...), and `uses_from`, a trace of other sequences of the model whose experts are placed
        there first. See `tiers_decode` of the result.
    :param scope: "global", a cache for all layers whose experts have one size, or "layer", a cache for each layer; None: the
        profile's, else "global".
    :param reset: "none", or "sequence": each sequence begins with an empty cache (not for policies in Python).
    :param io: a modelled drive, "emu:BANDWIDTH,LATENCY", to predict times with; `cost`: where the computing times
        come from, a trace that measured them or a file of `calibrate`, whose drive it is without `io`; None: the trace's own.
    :param expert_bytes: of traces of other tools, in place of what they say.
    :param model: the model that traces of other tools are of, which says how large its experts are; or `model_shape`: a shape of `synth`,
        "qwen3-30b-a3b" or with a type "qwen3-30b-a3b:Q8_0".
    :param profile: a file of `tune`: its budget, policy, scope and predictor where none are given.
    :param verify: repeat the recorded run and compare every decision and counter; give the policy it ran with, if in Python.
    :param timeline: where to take down what the modelled queues do; with `io` or `cost`, which give them times.
    :param progress: called with ("replay", bytes done, bytes in all); returning False cancels.
    :raises StateError: a verifying replay differs from the recorded run; the text names the first difference.
    :raises PolicyError: a policy in Python failed; its `result` is that of the whole replay, with LRU where it failed.
    :raises PredictorError: the same of a predictor, with nothing predicted where it failed.
    """
    if tiers is not None and (not isinstance(tiers, Mapping) or not set(tiers) <= {"vram", "ram"}):
        raise InvalidArgumentError(f"tiers are {{'vram': SIZE, 'ram': SIZE}} or one of them, not {tiers!r}")
    if (ram is not None) + bool(slots) + bool(fraction) + ("ram" in (tiers or ())) > 1:
        raise InvalidArgumentError("ram, also as a tier, slots and fraction exclude one another")
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
        raise TypeError(f"fraction is a number, not {fraction!r}")
    if not isinstance(trace, (str, os.PathLike)) and not isinstance(trace, Iterable):
        raise TypeError(f"a trace is a path or a Trace, or several in a list, not {trace!r}")
    for name, value, known in (("scope", scope, _SCOPES), ("reset", reset, _RESETS), ("ahead", ahead, _AHEADS)):
        if value not in known:
            raise InvalidArgumentError(f"{name} '{value}'; there are {', '.join(text for text in known if text)}")
    traces: list[PathLike] = [trace] if isinstance(trace, (str, os.PathLike)) else list(trace)
    paths = (c.c_char_p * len(traces))(*[encode_path(path) for path in traces])
    o, r, callbacks = s.ReplayOptionsStruct(), s.ReplayResultStruct(), Callbacks()
    lib().stk_replay_options_default(c.byref(o), c.sizeof(o))
    o.verify = bool(verify)
    o.ram_bytes = parse_bytes((tiers or {}).get("ram", ram))
    o.vram_bytes = parse_bytes((tiers or {}).get("vram"))
    o.n_slot = as_int(slots, "slots")
    o.fraction = fraction
    o.scope, o.reset, o.ahead = _SCOPES[scope], _RESETS[reset], _AHEADS[ahead]
    o.expert_bytes = parse_bytes(expert_bytes)
    o.seed = as_int(seed, "seed", high=2**64 - 1)
    for name, text in (("params", params), ("io", io), ("model_shape", model_shape), ("mode", mode)):
        if text is not None:
            setattr(o, name, as_text(text, name))
    for name, path in (("cost", cost), ("profile", profile), ("uses_from", uses_from)):
        if path is not None:
            setattr(o, name, encode_path(path))
    o.progress = callbacks.progress(progress)
    hooks = Hooks.of(policy)
    if hooks is not None:
        if reset != "none":
            raise InvalidArgumentError("reset is not for policies in Python: they keep what they know")
        if hooks.is_scored:
            hooks.score_run(_events(traces), seed)
        o.hooks = c.pointer(hooks.struct)
    elif policy is not None:
        o.policy = str(policy).encode()
    o.predict_depth = as_int(predict_depth, "predict_depth", high=3)
    predicts = PredictorHooks.of(predictor)
    if predicts is not None:
        if predicts.is_batch:
            _predict(predicts, traces, o.predict_depth or 1, seed)
        o.predictor_hooks = c.pointer(predicts.struct)
    elif predictor is not None:
        o.predictor = str(predictor).encode()
    detail, layers = _detail(traces[0] if traces else "")
    o.detail = c.pointer(detail)
    with contextlib.ExitStack() as stack:
        if timeline is not None:
            if timeline._attached() is not None:
                raise StateError("this timeline belongs to an engine: engine.set_timeline(None) first")
            o.timeline = stack.enter_context(timeline._use())
        if model is not None:
            o.model = stack.enter_context(model._use())
        rc = lib().stk_replay_many(paths, len(traces), c.byref(o), c.byref(r))
    for each in (hooks, predicts):
        if rc < 0 and each is not None:
            each.raise_failed_open()
    check(rc, callbacks)
    result = _result(r, detail, layers)
    fault = take_first(hooks, predicts)
    if fault is not None:
        fault.result = result
        raise fault
    return result


def _open_traces(traces: Sequence[PathLike]) -> list[Trace]:
    return [path if isinstance(path, Trace) else Trace(path) for path in traces]


def _events(traces: Sequence[PathLike], size: int = _CHUNK, tokens: bool = False) -> Iterator[Events]:
    """The events of traces in turn, `size` at a time, numbered through."""
    index = 0
    for trace in _open_traces(traces):
        events = trace.events(tokens=tokens)
        for at in range(0, events.n_event, size):
            part = events.part(at, min(at + size, events.n_event))
            part.index = index
            index += part.n_event
            yield part


def _predict(hooks: PredictorHooks, traces: Sequence[PathLike], depth: int, seed: int) -> None:
    """Lets a BatchPredictor predict for the whole run."""
    opened = _open_traces(traces)
    info = opened[0].info
    hooks.predict_run(_events(opened, _PREDICTED_CHUNK, tokens=True), info.n_layer, info.k, depth, seed)


def _detail(first: PathLike) -> tuple[s.ReplayDetailStruct, Any]:
    """The struct for further figures, with room for the layers of a trace."""
    n = (first if isinstance(first, Trace) else Trace(first)).info.n_layer
    layers = (s.ReplayLayerStruct * n)()
    return s.ReplayDetailStruct(layers=c.cast(layers, c.POINTER(s.ReplayLayerStruct)), n_layer_max=n), layers


_LAYER_FIELDS = ("n_event", "n_lookup", "n_hit", "n_miss", "n_evict", "bytes", "read_bytes")


def _result(r: s.ReplayResultStruct, detail: s.ReplayDetailStruct, layers: Any) -> ReplayResult:
    table = np.zeros(len(layers), [("layer", np.uint32), ("n_slot", np.uint32), *((name, np.uint64) for name in _LAYER_FIELDS)])
    for row, layer in zip(table, layers):
        row["layer"], row["n_slot"] = layer.layer, layer.n_slot
        for name in _LAYER_FIELDS:
            row[name] = getattr(layer.prefill, name) + getattr(layer.decode, name)
    return ReplayResult(
        complete=bool(r.complete),
        n_slot=r.n_slot,
        ram_bytes=r.ram_bytes,
        virtual_ns=r.virtual_ns,
        policy=detail.policy.decode("utf-8", "replace"),
        stats=s.Stats.from_buffer_copy(r.stats),
        prefill=s.ReplayCount.from_buffer_copy(detail.prefill),
        decode=s.ReplayCount.from_buffer_copy(detail.decode),
        layers=table,
        predicted=tuple(s.PredictCount.from_buffer_copy(count) for count in detail.predicted),
        vram_bytes=detail.vram_bytes,
        tiers_prefill=s.ReplayTiers.from_buffer_copy(detail.tiers_prefill) if detail.vram_bytes else None,
        tiers_decode=s.ReplayTiers.from_buffer_copy(detail.tiers_decode) if detail.vram_bytes else None,
    )


@dataclass(frozen=True)
class SweepPoint:
    """One configuration of a sweep: what it was, and its result or the error that it ended with."""

    config: Mapping[str, Any]
    result: Optional[ReplayResult]
    error: Optional[BaseException] = None

    def unwrap(self) -> ReplayResult:
        """The result, or the error raised."""
        if self.result is None:
            raise self.error or StokerError("there is no result")
        return self.result


def grid(**axes: Union[Sequence[Any], Any]) -> list[dict[str, Any]]:
    """
    All combinations of arguments of `replay`: `grid(policy=["lru", "random"], ram=["1G", "2G"])` has four. A value that is no list or
    tuple is the same in all.
    """
    lists = [value if isinstance(value, (list, tuple)) else [value] for value in axes.values()]
    return [dict(zip(axes, values)) for values in itertools.product(*lists)]


def _run_point(trace: str, config: dict[str, Any]) -> ReplayResult:
    return replay(config.pop("trace", trace), **config)


def sweep(
    trace: Optional[PathLike],
    configs: Iterable[Mapping[str, Any]],
    *,
    executor: Optional[concurrent.futures.Executor] = None,
    workers: Optional[int] = None,
    progress: Optional[Callable[[int, int], object]] = None,
) -> list[SweepPoint]:
    """
    Replays a trace with many configurations, in parallel processes.

    :param configs: keyword arguments of `replay` each (see `grid`), possibly with a "trace" of its own. Policies in Python travel to
        other processes, so give the class, or an instance that can be pickled, of a module that can be imported there.
    :param executor: any `concurrent.futures.Executor`, as of a Dask client, `client.get_executor()`; the trace has to be readable by
        that path where it works. None: processes on this machine.
    :param workers: how many of those; None: as many as this process may use CPUs.
    :param progress: called with (configurations done, in all).
    :returns: a point for each configuration, in their order; a configuration that fails has its error there, and the others go on.
    """
    as_call(progress, "progress")
    if isinstance(configs, Mapping) or not isinstance(configs, Iterable):
        raise TypeError(f"configs are dicts of arguments of replay, as of grid, in a list; not {configs!r}")
    todo = []
    for config in configs:
        if not isinstance(config, Mapping):
            raise TypeError(f"a configuration is a dict of arguments of replay, not {config!r}")
        todo.append(dict(config))
    if executor is not None and not hasattr(executor, "submit"):
        raise TypeError(f"executor is a concurrent.futures.Executor, not {executor!r}")
    path = os.fspath(trace) if trace is not None else ""
    if executor is not None:
        return _gather(executor, path, todo, progress)
    n = len(os.sched_getaffinity(0)) if workers is None else as_int(workers, "workers", 1)
    # Processes are started anew: a fork would take the state of other threads' locks along.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max(1, min(n, len(todo))), mp_context=context) as pool:
        return _gather(pool, path, todo, progress)


def _gather(
    executor: concurrent.futures.Executor,
    path: str,
    todo: list[dict[str, Any]],
    progress: Optional[Callable[[int, int], object]],
) -> list[SweepPoint]:
    futures = [executor.submit(_run_point, path, dict(config)) for config in todo]
    n_done = 0
    waiting = set(futures)
    try:
        while waiting and progress is not None:
            done = {future for future in waiting if future.done()}
            if not done:
                _wait_one(waiting)
                continue
            waiting -= done
            n_done += len(done)
            progress(n_done, len(todo))
        points = []
        for config, future in zip(todo, futures):
            try:
                points.append(SweepPoint(config, future.result()))
            except HookError as error:
                points.append(SweepPoint(config, error.result, error))
            except Exception as error:
                points.append(SweepPoint(config, None, error))
        return points
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _wait_one(waiting: set[Any]) -> None:
    """Until one of them is done, whoever's futures they are: not all work with concurrent.futures.wait."""
    woken = threading.Event()
    for future in waiting:
        future.add_done_callback(lambda _: woken.set())
    woken.wait()
