#!/usr/bin/env python3
"""
Fits a predictor of experts to real routing, compares its recall with those of the built-in ones on text it has not seen, then runs it
live.

usage: fit_predictor.py MODEL.gguf

1. A run of the model is recorded: which experts each token of a few texts needed. Half of the texts are for fitting.
2. For each layer a logistic regression: from the experts of the layer before, those that the token before used here, and how often each
   expert is used, to the probability that each expert is used.
3. On the other half: how many of the experts used were among as many predictions (recall@k), by a replay.
4. The same predictor in an engine, where what it expects is read ahead. The text stays the same.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

import stoker

FITTED = [
    "Once upon a time there was a little girl who",
    "The old king said to his son",
    "In the dark forest the wolf",
    "My mother told me",
]
UNSEEN = ["The sailor looked at the sea and", "One morning the cat found a", "There was a boy called Tom", "It was raining when"]

Array = npt.NDArray[np.float32]


def used(events: stoker.Events) -> Array:
    """Which experts each event uses, [n_event, n_expert] of 0 and 1."""
    table = np.zeros((events.n_event, events.n_expert), np.float32)
    table[np.repeat(np.arange(events.n_event), np.diff(events.first)), events.keys % events.n_expert] = 1
    return table


class Features:
    """For each event of a layer what is known of the next layer: [n_event, 2 * n_expert + 1]. Keeps what is known from call to call."""

    def __init__(self, n_layer: int, n_expert: int) -> None:
        self.before = np.zeros((n_layer, n_expert), np.float32)  # what each layer used last

    def of(self, events: stoker.Events, now: Array) -> Array:
        following = (events.layer + 1) % len(self.before)
        before = np.empty_like(now)
        for layer in np.unique(events.layer):
            # What the next layer used before each event of this one: its latest event so far.
            there = np.flatnonzero(events.layer == (layer + 1) % len(self.before))
            here = np.flatnonzero(events.layer == layer)
            latest = np.searchsorted(there, here) - 1
            before[here] = np.where(latest[:, None] < 0, self.before[following[here[0]]], now[there[latest]] if len(there) else 0)
        for layer in np.unique(events.layer):
            self.before[layer] = now[events.layer == layer][-1]
        return np.hstack([now, before, np.ones((len(now), 1), np.float32)])


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def fit(x: Array, y: Array, rounds: int = 300, decay: float = 1e-3) -> Array:
    """Weights of a logistic regression for every column of y, by gradient descent with momentum, [n_feature, n_expert]."""
    weights = np.zeros((x.shape[1], y.shape[1]), np.float32)
    speed = np.zeros_like(weights)
    for _ in range(rounds):
        gradient = x.T @ (sigmoid(x @ weights) - y) / len(x) + decay * weights
        speed = 0.9 * speed - 2.0 * gradient
        weights += speed
    return weights


class Logistic(stoker.BatchPredictor):
    """The fitted predictor, for one layer ahead."""

    def __init__(self, weights: Array) -> None:
        self.weights = weights  # [n_layer, n_feature, n_expert]; row l predicts layer l + 1

    def open(self) -> None:
        self.features = Features(self.n_layer, self.n_expert)

    def predict(self, events: stoker.Events) -> Array:
        x = self.features.of(events, used(events))
        table = np.zeros((events.n_event, self.depth, events.n_expert), np.float32)
        for layer in np.unique(events.layer):
            here = events.layer == layer
            table[here, 0] = sigmoid(x[here] @ self.weights[layer])
        return table


def fit_trace(trace: Path) -> Logistic:
    """Fits a predictor to a recorded run."""
    opened = stoker.Trace(trace)
    n_layer, n_expert = opened.info.n_layer, opened.info.n_expert
    events = opened.events()
    now = used(events)
    x = Features(n_layer, n_expert).of(events, now)
    weights = np.zeros((n_layer, x.shape[1], n_expert), np.float32)
    for layer in range(n_layer - 1):
        # An event of a layer is followed by that of the next one, save in the last layer.
        here = np.flatnonzero(events.layer[:-1] == layer)
        here = here[events.layer[here + 1] == layer + 1]
        weights[layer] = fit(x[here], now[here + 1])
    return Logistic(weights)


def write(model: stoker.Model, prompts: list[str], trace: Optional[Path], predictor: Any = None) -> tuple[str, stoker.Stats, float]:
    """Continues the prompts, each from an empty context. Returns the text, the counters, and the recall of what was predicted."""
    with stoker.Engine(model, ram="6M", trace=trace, predictor=predictor) as engine:
        text = ""
        for prompt in prompts:
            engine.trim(0, 0)
            text += engine.session().generate(prompt, max_tokens=80, sampling=stoker.Sampling(seed=1)).result()
        return text, engine.stats(), engine.predicted().recall


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with stoker.Model(sys.argv[1]) as model, tempfile.TemporaryDirectory() as folder:
        seen, unseen = Path(folder) / "seen.trace", Path(folder) / "unseen.trace"
        write(model, FITTED, seen)
        text, without, _ = write(model, UNSEEN, unseen, "none")
        ours = fit_trace(seen)

        print("recall@k on text that nothing was fitted to")
        recall = {}
        # The built-in ones learn as they go; those see the fitted half first, too, and all are counted on the rest.
        for name in ("popularity", "previous", "transition", "crosslayer", "tokenid", "mix"):
            recall[name] = recall_on_rest(seen, unseen, name)
        recall["ours"] = recall_on_rest(seen, unseen, ours)
        for name, value in sorted(recall.items(), key=lambda pair: -pair[1]):
            print(f"{name:<12}{value:8.1%}")

        same, with_ours, live = write(model, UNSEEN, None, ours)
        print(f"\nlive: recall {live:.1%}, {with_ours.n_prefetch_used} of {with_ours.n_prefetch} experts read ahead were used,")
        print(f"experts that were waited for: {with_ours.n_miss} instead of {without.n_miss}")
        if same != text:
            sys.exit("the text changed, which must not be")
        if not recall["ours"] > max(recall[name] for name in ("popularity", "previous", "transition")):
            sys.exit("the simple predictors were not beaten")


def recall_on_rest(seen: Path, unseen: Path, predictor: Any) -> float:
    """recall@k over the second of two traces that are replayed as one run."""
    first, both = (stoker.replay(traces, predictor=predictor, slots=64).predicted[0] for traces in ([seen], [seen, unseen]))
    return (both.n_found - first.n_found) / (both.n_lookup - first.n_lookup)


if __name__ == "__main__":
    main()
