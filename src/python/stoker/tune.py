"""Tuning: the best expert cache for a model's traces, as a profile that an engine takes."""

from __future__ import annotations

import ctypes as c
import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional, Union

from . import _structs as s
from ._native import Callbacks, check, lib
from .errors import InvalidArgumentError
from .model import Model, PathLike, encode_path
from .units import as_int, as_text, parse_bytes

_SCOPES = ("global", "layer")


@dataclass(frozen=True)
class TuneResult:
    """
    The best configuration found, beside the default: lru, one cache for all layers, and what the next layer's router names read ahead
    (of traces of other tools, which do not know it: nothing). Figures are of decoding, if the traces have any, and of parts of the
    traces that did not choose the configuration.

    :param policy: with `scope` ("global" or "layer"; `fitted`: each layer has its own number of slots), `predictor` and
        `predict_depth`: what to run with; policy and predictor with their parameters, "lrfu:decay=0.9".
    :param timed: `tok_s` and `default_tok_s` were predicted, and the margin is of them; else it is of misses.
    :param margin: 0.1: 10 % faster than the default (or fewer misses); `margin_low` and `margin_high`: of the `n_part` parts.
    :param bound_hit_rate: of belady-bypass, which knows what comes but reads nothing ahead; `cache_hit_rate` and
        `default_cache_hit_rate`: of the two caches when nothing is read ahead.
    :param n_tied: configurations that are as good as the best as far as the traces can tell: this is the simplest of them, and the best
        is better by `tie_margin` on the traces that chose it.
    :param profile: where the profile was written, None: nowhere.
    """

    policy: str
    scope: str
    fitted: bool
    predictor: str
    predict_depth: int
    ram_bytes: int
    fraction: float
    timed: bool
    hit_rate: float
    default_hit_rate: float
    bound_hit_rate: float
    cache_hit_rate: float
    default_cache_hit_rate: float
    tok_s: float
    default_tok_s: float
    margin: float
    margin_low: float
    margin_high: float
    n_part: int
    n_tied: int
    tie_margin: float
    n_config: int
    n_replay: int
    n_resumed: int
    n_sequence: int
    n_token: int
    profile: Optional[str]

    def read_profile(self) -> dict[str, Any]:
        """
        The profile's content (its form is in src/tune/profile_file.h).

        :raises InvalidArgumentError: none was written.
        """
        if self.profile is None:
            raise InvalidArgumentError("no profile was written: give tune(profile=...)")
        content: dict[str, Any] = json.loads(Path(self.profile).read_text())
        return content


def tune(
    trace: Union[PathLike, Sequence[PathLike]],
    *,
    ram: Union[int, str, None] = None,
    fraction: float = 0,
    io: Optional[str] = None,
    cost: Optional[PathLike] = None,
    model: Optional[Model] = None,
    model_shape: Optional[str] = None,
    expert_bytes: Union[int, str, None] = None,
    profile: Optional[PathLike] = None,
    report: Optional[PathLike] = None,
    state: Optional[PathLike] = None,
    threads: int = 0,
    seed: int = 0,
    progress: Optional[Callable[[str, int, int], object]] = None,
) -> TuneResult:
    """
    Searches for the best cache for traces of a model: policies and their parameters, a cache for all layers or one for each, slots of
    each layer, predictors and how far they look ahead. Takes as long as some hundred replays.

    :param trace: a path or a `Trace`, or several of one model.
    :param ram: the budget, also as "8G"; or `fraction` of the bytes of all expert slots, up to 1. Neither: the trace's own.
    :param io: a modelled drive, "emu:BANDWIDTH,LATENCY", and `cost`, as in `replay`. Without both no times are predicted: then the hit
        rate decides, and what is read ahead stays as it is by default.
    :param model: the model that the traces are of, to be named in the profile; traces of other tools take the sizes of its experts, or
        of `model_shape`, as in `replay`.
    :param expert_bytes: of traces of other tools, in place of what they say.
    :param profile: where to write the profile, for `Engine(profile=...)` and `replay(profile=...)`.
    :param report: where to write the report, one page of HTML.
    :param state: a file that keeps results, so that the same call goes on after it was cancelled; it is removed at the end.
    :param threads: replays at the same time; 0: the cores that this process may use.
    :param progress: called with ("tune", replays done, in all, about); returning False cancels.
    """
    traces: list[PathLike] = [trace] if isinstance(trace, (str, os.PathLike)) else list(trace)
    paths = (c.c_char_p * len(traces))(*[encode_path(path) for path in traces])
    o, r, callbacks = s.TuneOptionsStruct(), s.TuneResultStruct(), Callbacks()
    lib().stk_tune_options_default(c.byref(o), c.sizeof(o))
    o.n_threads = as_int(threads, "threads")
    o.ram_bytes = parse_bytes(ram)
    o.fraction = fraction
    o.expert_bytes = parse_bytes(expert_bytes)
    o.seed = as_int(seed, "seed", high=2**64 - 1)
    for name, text in (("io", io), ("model_shape", model_shape)):
        if text is not None:
            setattr(o, name, as_text(text, name))
    for name, path in (("cost", cost), ("profile", profile), ("report", report), ("state", state)):
        if path is not None:
            setattr(o, name, encode_path(path))
    o.progress = callbacks.progress(progress)
    with model._use() if model is not None else nullcontext() as handle:
        o.model = handle
        rc = lib().stk_tune(paths, len(traces), c.byref(o), c.byref(r))
    check(rc, callbacks)
    return _result(r, None if profile is None else os.fspath(profile))


def _result(r: s.TuneResultStruct, profile: Optional[str]) -> TuneResult:
    return TuneResult(
        policy=r.policy.decode(),
        scope=_SCOPES[r.scope],
        fitted=bool(r.fitted),
        predictor=r.predictor.decode(),
        predict_depth=r.depth,
        ram_bytes=r.ram_bytes,
        fraction=r.fraction,
        timed=bool(r.timed),
        hit_rate=r.hit_rate,
        default_hit_rate=r.default_hit_rate,
        bound_hit_rate=r.bound_hit_rate,
        cache_hit_rate=r.cache_hit_rate,
        default_cache_hit_rate=r.default_cache_hit_rate,
        tok_s=r.tok_s,
        default_tok_s=r.default_tok_s,
        margin=r.margin,
        margin_low=r.margin_low,
        margin_high=r.margin_high,
        n_part=r.n_fold,
        n_tied=r.n_tied,
        tie_margin=r.tie_margin,
        n_config=r.n_config,
        n_replay=r.n_replay,
        n_resumed=r.n_resumed,
        n_sequence=r.n_sequence,
        n_token=r.n_token,
        profile=profile,
    )
