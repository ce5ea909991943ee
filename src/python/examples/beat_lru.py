#!/usr/bin/env python3
"""
Writes an eviction policy in a few lines, compares it with LRU on real routing, then runs it live.

usage: beat_lru.py MODEL.gguf

1. A run of the model is recorded: which experts each token of a text needed.
2. The recorded run is replayed with several policies and budgets, in parallel.
3. The best one is put into an engine. The text stays the same; fewer experts are read.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Optional

import stoker

PROMPTS = ["Once upon a time there was a little girl who", "The old king said to his son", "In the dark forest the wolf"]


class TenLines(stoker.Policy):
    """The expert leaves that was used least, where old uses count less and less: half after 120 events of the cache."""

    def open(self) -> None:
        self.value = dict.fromkeys(range(self.n_key), (0.0, 0))  # by its last use: worth, and when
        self.resident: set[int] = set()
        self.now = 0

    def worth(self, key: int) -> float:
        worth, when = self.value[key]
        return worth * 0.5 ** ((self.now - when) / 120)

    def touch(self, event: stoker.Event) -> None:
        self.now += 1
        for key in event.keys:
            self.value[key] = (self.worth(key) + 1, self.now)

    def inserted(self, key: int, why: stoker.Why) -> None:
        self.resident.add(key)

    def evicted(self, key: int) -> None:
        self.resident.remove(key)

    def victim(self, busy: stoker.Busy) -> Optional[int]:
        return min((key for key in self.resident if key not in busy), key=self.worth, default=None)


def write(model: stoker.Model, policy: object, trace: Optional[Path]) -> tuple[str, stoker.Stats]:
    """
    Continues the prompts, each from an empty context; nothing is read ahead, so that what hits is the policy's doing. Returns the text and
    the counters.
    """
    with stoker.Engine(model, ram="6M", policy=policy, predictor="none", trace=trace) as engine:
        text = ""
        for prompt in PROMPTS:
            engine.trim(0, 0)
            text += engine.session().generate(prompt, max_tokens=100, sampling=stoker.Sampling(seed=1)).result()
        return text, engine.stats()


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with stoker.Model(sys.argv[1]) as model, tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "run.trace"
        text, with_lru = write(model, "lru", trace)

        policies = ["lru", "random", TenLines, stoker.DecayedFrequency]
        budgets = ["3M", "6M", "12M"]
        points = stoker.sweep(trace, stoker.grid(policy=policies, ram=budgets))
        print("hit rate by budget".ljust(24), *(ram.rjust(8) for ram in budgets))
        for i, policy in enumerate(policies):
            name = policy if isinstance(policy, str) else policy.__name__
            row = points[i * len(budgets) : (i + 1) * len(budgets)]
            print(name.ljust(24), *(f"{point.unwrap().hit_rate:8.1%}" for point in row))

        same, with_ours = write(model, TenLines, None)
        print(f"\nlive at 6M: LRU reads {with_lru.bytes / 1e6:.0f} MB, ours {with_ours.bytes / 1e6:.0f} MB")
        if same != text:
            sys.exit("the text changed, which must not be")
        if not with_ours.hit_rate > with_lru.hit_rate:
            sys.exit("LRU was not beaten")


if __name__ == "__main__":  # the sweep's processes import this file
    main()
