"""Policies that are written in Python: for reading, for comparing with, and as a start for your own."""

from __future__ import annotations

from collections import OrderedDict
from typing import Optional

import numpy as np
import numpy.typing as npt

from .policy import Busy, Event, Events, Policy, ScorePolicy, Why


class PythonLRU(Policy):
    """
    The least recently used expert leaves: decision for decision what the built-in "lru" does. The experts of one event are used at
    the same time; among them the one with the fewest tokens counts as the oldest, on a tie the one with the highest key.
    One that was only predicted counts as the oldest until an event uses it.
    """

    name = "python-lru"

    def open(self) -> None:
        self._order: OrderedDict[int, bool] = OrderedDict()  # oldest first; whether it is resident
        self._event: list[int] = []

    def touch(self, event: Event) -> None:
        for key in self._event:
            if not self._order.get(key, True):  # refused, or its read failed
                del self._order[key]
        self._event = [-key for _, key in sorted(zip(event.counts, (-key for key in event.keys)))]
        for key in self._event:
            if key in self._order:
                self._order.move_to_end(key)
            else:
                self._order[key] = False

    def inserted(self, key: int, why: Why) -> None:
        if why != Why.DEMAND:
            self._order.pop(key, None)
        self._order[key] = True
        if why == Why.PREFETCH:
            self._order.move_to_end(key, last=False)

    def evicted(self, key: int) -> None:
        del self._order[key]

    def victim(self, busy: Busy) -> Optional[int]:
        return next((key for key, resident in self._order.items() if resident and key not in busy), None)


class ScoreLRU(ScorePolicy):
    """LRU as scores: the number of the event that used an expert last."""

    name = "score-lru"

    def score(self, events: Events) -> npt.NDArray[np.float64]:
        return events.event_of.astype(np.float64)


class DecayedFrequency(ScorePolicy):
    """
    The expert leaves whose uses, each worth half as much after `half_life` events of its layer, add up to the least (LRFU; Lee et
    al. 2001). A short half-life is close to LRU, a long one to LFU.

    The sum is kept as its logarithm at time 0, log2(sum of 2^(t/half_life)) over the times t of the uses: it orders experts in the
    same way at every later time, so a score stays right until the next use.
    """

    name = "decayed-frequency"

    def __init__(self, half_life: float = 32.0) -> None:
        self.half_life = half_life

    def open(self) -> None:
        self._sum = np.full(self.n_key, -np.inf)
        self._time = np.zeros(self.n_key // self.n_expert, np.int64)

    def score(self, events: Events) -> npt.NDArray[np.float64]:
        time = self._times(events) / self.half_life
        if events.n_event == 1:
            self._sum[events.keys] = np.logaddexp2(self._sum[events.keys], time)
            return self._sum[events.keys]
        # First the first use of every key, then the second uses, and so on: each round has a key once.
        order = np.argsort(events.keys, kind="stable")
        keys = events.keys[order]
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        n_before = np.arange(len(keys)) - np.repeat(starts, np.diff(np.append(starts, len(keys))))
        order = order[np.argsort(n_before, kind="stable")]
        out = np.empty(events.n_lookup)
        for uses in np.split(order, np.cumsum(np.bincount(n_before))[:-1]):
            out[uses] = self._sum[events.keys[uses]] = np.logaddexp2(self._sum[events.keys[uses]], time[uses])
        return out

    def _times(self, events: Events) -> npt.NDArray[np.int64]:
        """For each lookup, how many events its layer has had before."""
        time = np.empty(events.n_event, np.int64)
        for layer in np.unique(events.layer):
            of_layer = np.flatnonzero(events.layer == layer)
            time[of_layer] = self._time[layer] + np.arange(len(of_layer))
            self._time[layer] += len(of_layer)
        return np.repeat(time, np.diff(events.first))
