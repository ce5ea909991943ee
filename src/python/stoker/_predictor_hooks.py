"""Predictors in Python behind the callbacks of stk_predictor_hooks."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional, Union

import numpy as np

from . import _structs as s
from ._faults import Faults
from ._hooks import one_event
from .errors import InvalidArgumentError, PredictorError, StokerError
from .policy import Events, Tokens
from .predictor import BatchPredictor, Predictor, PredictorEvent

AnyPredictor = Union[Predictor, BatchPredictor]
PredictorLike = Union[None, str, AnyPredictor, Callable[[], AnyPredictor]]

_PREDICTION = np.dtype([("expert", np.uint32), ("p", np.float32)])


class PredictorHooks(Faults):
    """The struct of callbacks for one engine or replay, and what its predictor raised."""

    _error = PredictorError
    _instead = "nothing was predicted instead"

    def __init__(self, make: Union[AnyPredictor, Callable[[], AnyPredictor]]) -> None:
        super().__init__()
        predictor: Any = make if isinstance(make, (Predictor, BatchPredictor)) else make()
        if not isinstance(predictor, (Predictor, BatchPredictor)):
            raise TypeError(f"a predictor is a name or a stoker.Predictor or BatchPredictor, not {type(predictor).__name__}")
        self._predictor: Any = predictor
        self._opened = False
        self._n_event = 0
        self._table: Any = None  # of a BatchPredictor, for the latest event
        self.name = predictor.name or type(predictor).__name__
        self.is_batch = isinstance(predictor, BatchPredictor)
        h = self.struct = s.PredictorHooksStruct(name=self.name.encode())
        h.open, h.close, h.fault = s.PredictorOpenFn(self._open), s.CloseFn(self._close), s.FaultFn(self._fault)
        h.observe = s.ObserveFn(self._observe_batch if self.is_batch else self._observe)
        h.suggest = s.SuggestFn(self._suggest_batch if self.is_batch else self._suggest)
        h.wants_lookahead = isinstance(predictor, Predictor) and bool(predictor.wants_lookahead)

    @classmethod
    def of(cls, predictor: PredictorLike) -> Optional[PredictorHooks]:
        """None where the predictor is a name or none."""
        if predictor is None or isinstance(predictor, str):
            return None
        if not isinstance(predictor, (Predictor, BatchPredictor)) and not callable(predictor):
            raise TypeError(f"a predictor is a name or a stoker.Predictor or BatchPredictor, not {type(predictor).__name__}")
        return cls(predictor)

    def predict_run(self, parts: Iterable[Events], n_layer: int, k: int, depth: int, seed: int) -> None:
        """Asks the BatchPredictor for the predictions of a whole run, and lets the library take them from there."""
        lists, sizes = [np.empty(0, _PREDICTION)], [np.zeros(1, np.uint64)]
        n_event = 0
        try:
            for events in parts:
                if not self._opened:
                    self._begin(n_layer, events.n_expert, k, depth, min(2 * k, events.n_expert), seed)
                chosen, count = best(checked_table(self._predictor, events), self._predictor.n_max)
                lists.append(chosen)
                sizes.append(count)
                n_event += events.n_event
        except Exception as error:  # from here on nothing is predicted
            self._raised.append(error)
        self._list = np.concatenate(lists)  # the library keeps the addresses of these two
        self._first = np.cumsum(np.concatenate(sizes), dtype=np.uint64)
        h = self.struct
        h.open, h.observe, h.suggest = s.PredictorOpenFn(), s.ObserveFn(), s.SuggestFn()
        h.list = self._list.ctypes.data_as(c.POINTER(s.PredictionStruct))
        h.first = self._first.ctypes.data_as(c.POINTER(c.c_uint64))
        h.n_list, h.n_event, h.depth = len(self._list), n_event, depth

    def _begin(self, n_layer: int, n_expert: int, k: int, depth: int, n_max: int, seed: int) -> None:
        p = self._predictor
        p.n_layer, p.n_expert, p.k, p.depth, p.n_max, p.seed = n_layer, n_expert, k, depth, n_max, seed
        p.open()
        self._opened = True

    # ---- What the library calls ----

    def _open(self, _user: object, shape: Any, _out: Any) -> int:
        try:
            given = shape.contents
            self._begin(given.n_layer, given.n_expert, given.k, given.depth, given.n_max, given.seed)
            return 0
        except BaseException as error:
            return self._failed(error)

    def _close(self, _predictor: object) -> None:
        if not self._opened:
            return
        try:
            self._predictor.close()
        except BaseException as error:
            self._failed_close(error)

    def _observe(self, _predictor: object, struct: Any, ahead: Any, n_ahead: int) -> int:
        try:
            event = PredictorEvent(struct.contents, ahead, n_ahead, self._predictor.n_expert)
            try:
                self._predictor.observe(event)
            finally:
                event._end()
            return 0
        except BaseException as error:
            return self._failed(error)

    def _suggest(self, _predictor: object, layer: int, depth: int, out: Any, cap: int) -> int:
        try:
            return write_predictions(self._predictor.suggest(layer, depth), out, cap)
        except BaseException as error:
            return self._failed(error)

    def _observe_batch(self, _predictor: object, struct: Any, _ahead: Any, _n_ahead: int) -> int:
        try:
            p, event = self._predictor, struct.contents
            events = one_event(event, p.n_expert, p.n_layer * p.n_expert, self._n_event, _tokens(event))
            self._n_event += 1
            self._table = checked_table(p, events)
            return 0
        except BaseException as error:
            self._table = None
            return self._failed(error)

    def _suggest_batch(self, _predictor: object, _layer: int, depth: int, out: Any, cap: int) -> int:
        try:
            chosen, _ = best(self._table[:, depth - 1 : depth], min(cap, self._predictor.n_max))
            c.memmove(out, chosen.ctypes.data, chosen.nbytes)
            return len(chosen)
        except BaseException as error:
            return self._failed(error)


def _tokens(event: Any) -> Tokens:
    """The tokens of one event."""
    n, k = event.n_tok, event.k
    return Tokens(
        seq=np.array(event.seq[:n], np.int32),
        pos=np.array(event.pos[:n], np.int32),
        token=np.array(event.token[:n], np.int32),
        ids=np.array(event.ids[: n * k], np.uint16).reshape(n, k),
    )


def write_predictions(said: Any, out: Any, cap: int) -> int:
    """What `suggest` returned, into the library's array. Returns how many."""
    if isinstance(said, np.ndarray):
        if said.shape != (cap,):
            raise InvalidArgumentError(f"suggest returned an array of shape {said.shape}; a layer has {cap} experts")
        pairs: Any = [(int(i), float(said[i])) for i in np.flatnonzero(said)]
    else:
        pairs = list(said.items() if isinstance(said, Mapping) else said)
    if len(pairs) > cap:
        raise InvalidArgumentError(f"suggest returned {len(pairs)} experts; a layer has {cap}")
    for i, (expert, p) in enumerate(pairs):
        if not 0 <= expert < cap:
            raise InvalidArgumentError(f"suggest returned expert {expert!r}; a layer has 0 to {cap - 1}")
        out[i].expert, out[i].p = expert, p
    return len(pairs)


def checked_table(predictor: Any, events: Events) -> Any:
    """What `predict` returns, if it has the right shape and holds probabilities."""
    table = np.asarray(predictor.predict(events), np.float32)
    shape = (events.n_event, predictor.depth, events.n_expert)
    if table.shape != shape:
        raise StokerError(f"{type(predictor).__name__}.predict returned shape {table.shape} where {shape} is needed")
    if not ((table >= 0) & (table <= 1)).all():
        raise StokerError(f"{type(predictor).__name__}.predict returned what is no probability")
    return table


def best(table: Any, n: int) -> tuple[Any, Any]:
    """The n likeliest experts of each row of [n_event, depth, n_expert], without those of probability 0, and how many a row has."""
    rows = table.reshape(-1, table.shape[-1])
    # By (-p, expert), as the library orders them: a stable sort only of those that may be among them.
    least = np.partition(rows, -n, axis=1)[:, -n, None] if n < rows.shape[1] else np.zeros((len(rows), 1), rows.dtype)
    row, expert = np.nonzero((rows >= least) & (rows > 0))
    p = rows[row, expert]
    order = np.lexsort((expert, -p, row))
    row, expert, p = row[order], expert[order], p[order]
    starts = np.searchsorted(row, np.arange(len(rows)))
    kept = np.arange(len(row)) - starts[row] < n
    chosen = np.empty(int(kept.sum()), _PREDICTION)
    chosen["expert"], chosen["p"] = expert[kept], p[kept]
    return chosen, np.bincount(row[kept], minlength=len(rows)).astype(np.uint64)
