#!/usr/bin/env python3
"""
What generating through the Python package costs on top of the steps: the time between a token and the next that is not spent inside
stk_step, and of that what the C library's sampler and decoder take.

usage: python_overhead.py BUILD MODEL.gguf [--tokens N] [--ram SIZE] [--threads N] [--rounds N]

A token of `Session.generate` is stk_step, sampling from the logits, and turning the token into text, called through ctypes; the rest
is the package. Greedy, as the sampler then takes least, from a prompt of random tokens. Prints CSV: a line for each round, then the
medians. Needs NumPy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]


class Timed:
    """The library with a clock around stk_step and around some others of its functions."""

    def __init__(self, library: Any, names: tuple[str, ...]) -> None:
        self._library = library
        self.ns = {"stk_step": 0, "others": 0}
        self.stk_step = self._timed(library.stk_step, "stk_step")
        for name in names:
            setattr(self, name, self._timed(getattr(library, name), "others"))

    def _timed(self, function: Any, counter: str) -> Any:
        clock = time.perf_counter_ns

        def call(*arguments: Any) -> Any:
            begin = clock()
            try:
                return function(*arguments)
            finally:
                self.ns[counter] += clock() - begin

        return call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)


def one_round(stoker: Any, engine: Any, library: Timed, n: int) -> dict[str, float]:
    """Microseconds of a token: in all, inside steps, inside other functions of the library, and in Python."""
    engine.trim(0, 0)
    session = engine.session()
    session.prefill([7 * i % 250 for i in range(16)])
    engine.reset_stats()
    library.ns = dict.fromkeys(library.ns, 0)
    begin = time.perf_counter_ns()
    generation = session.generate(max_tokens=n + 1, sampling=stoker.GREEDY)
    for _ in generation:
        pass
    total = time.perf_counter_ns() - begin
    stats = engine.stats()
    if stats.n_token < n // 2:
        sys.exit(f"the model ended after {stats.n_token} tokens: give another one")
    us = {"total_us": total, "step_us": library.ns["stk_step"], "library_us": library.ns["others"]}
    us = {name: value / stats.n_token * 1e-3 for name, value in us.items()}
    return {**us, "python_us": us["total_us"] - us["step_us"] - us["library_us"], "n_token": stats.n_token}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--ram")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    os.environ["STOKER_LIBRARY"] = str(a.build / "libstoker.so")
    sys.path.insert(0, str(TOP / "src" / "python"))
    import stoker
    from stoker import _native

    names = ("stk_sampler_sample", "stk_sampler_accept", "stk_decoder_put", "stk_token_is_end", "stk_get_logits", "stk_seq_length")
    library = Timed(_native.lib(), names)
    _native._library = library  # type: ignore[assignment]
    rounds = []
    with stoker.Engine(a.model, ram=a.ram, threads=a.threads, n_ctx=16 + a.tokens + 16) as engine:
        one_round(stoker, engine, library, a.tokens)  # warm-up
        print("round,n_token,total_us,step_us,library_us,python_us,python_percent_of_step")
        for i in range(a.rounds):
            r = one_round(stoker, engine, library, a.tokens)
            rounds.append(r)
            show(str(i), r)
    show("median", {name: statistics.median(r[name] for r in rounds) for name in rounds[0]})


def show(name: str, r: dict[str, float]) -> None:
    share = 100 * r["python_us"] / r["step_us"]
    print(f"{name},{r['n_token']:.0f},{r['total_us']:.1f},{r['step_us']:.1f},{r['library_us']:.1f},{r['python_us']:.1f},{share:.3f}", flush=True)


main()
