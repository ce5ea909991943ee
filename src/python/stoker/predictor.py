"""
Predictors in Python: subclass `Predictor` to be asked event by event, or `BatchPredictor` to predict for many events at a time. Either
works in `replay`, in `sweep` and in a live `Engine`, as the argument `predictor=`: a class, a function that makes an instance, or an
instance.

A predictor says which experts the next layers of the same step will want, each with a probability. What of it is read ahead is the
library's choice: what is not resident, and likely enough by what such probabilities turned out to be worth. The output does not depend
on it.

What a predictor raises does not stop the run: nothing is predicted for the rest of that event, and `PredictorError` is raised after the
step (after a replay, at its end).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from .errors import StateError
from .policy import Event, Events

Predictions = Union[npt.NDArray[Any], Mapping[int, float], Iterable[tuple[int, float]]]


class PredictorEvent(Event):
    """An `Event` as a predictor hears of it: with what the routers of the next layers say, if it asked for that."""

    __slots__ = ("_ahead", "_n_expert")

    def __init__(self, struct: Any, ahead: Any, n_ahead: int, n_expert: int) -> None:
        super().__init__(struct)
        self._ahead = ahead[: n_ahead * self.n_tok * n_expert] if n_ahead else []
        self._n_expert = n_expert

    @property
    def ahead(self) -> npt.NDArray[np.float32]:
        """
        Probabilities by the routers of the next layers run on today's hidden state, [n_ahead, n_tok, n_expert] float32. n_ahead is 0
        without `wants_lookahead`, in replays, in steps of more than 8 tokens, and at the last layer.
        """
        if self._struct is None:
            raise StateError("the event's ahead had to be asked for before observe returned")
        return np.array(self._ahead, np.float32).reshape(-1, self.n_tok, self._n_expert)


class _Shaped:
    """
    What all predictors have. Set before `open`: `n_layer` with experts, `n_expert` of a layer, `k` of a token, `depth` (how many layers
    ahead are asked for, 1 to 3), `n_max` (predictions of a layer that are used: the likeliest 2k), `seed`.
    """

    name = ""  # in messages; "": the class's name
    n_layer = 0
    n_expert = 0
    k = 0
    depth = 1
    n_max = 0
    seed = 0

    def open(self) -> None:
        """The run begins."""

    def close(self) -> None:
        """The run is over."""


class Predictor(_Shaped):
    """
    Predicts event by event: define `suggest`, and `observe` to learn from what is used. With `wants_lookahead` a live engine runs the
    routers of the next layers on the hidden state of each layer, and `event.ahead` has what they say.
    """

    wants_lookahead = False

    def observe(self, event: PredictorEvent) -> None:
        """An event: a layer of a step, with the experts that it uses. The layers of a step ascend."""

    def suggest(self, layer: int, depth: int) -> Predictions:
        """
        Which experts the next event of `layer` will use, a layer of the same step that lies `depth` (from 1) layers ahead of the one
        observed last: an array of probabilities, [n_expert]; or pairs of an expert and its probability, in any order.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define suggest")


class BatchPredictor(_Shaped):
    """
    Predicts for many events at a time: live with one event a call, and with thousands in a replay of a `Trace`, so `predict` should be
    written over whole arrays. It may keep state from call to call. (In a replay nothing keeps it from looking ahead: that is how an
    oracle is written.)
    """

    def predict(self, events: Events) -> npt.NDArray[Any]:
        """
        For each event the probabilities of the experts of the next layers, [n_event, depth, n_expert]: [i, d - 1] is about layer
        `events.layer[i] + d`. What lies beyond the last layer is not looked at. `events.tokens` are there.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define predict")
