#!/usr/bin/env python3
"""
Generates text with a model that is larger than its budget, and shows what the expert cache did meanwhile.

usage: generate.py MODEL.gguf [PROMPT] [RAM]

The text is the same for every RAM: only the time differs.
"""

from __future__ import annotations

import sys

import stoker


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    path = sys.argv[1]
    prompt = sys.argv[2] if len(sys.argv) > 2 else "Once upon a time there was a little girl who"
    ram = sys.argv[3] if len(sys.argv) > 3 else "6M"

    with stoker.Model(path) as model, stoker.Engine(model, ram=ram) as engine:
        info = model.info
        print(f"{info.name}: {info.n_layer} layers of {info.n_expert} experts, {info.n_expert_used} for each token")
        print(f"{engine.memory.n_slot} of {engine.memory.n_expert} experts fit into {ram}\n\n{prompt}", end="", flush=True)

        session = engine.session()
        generation = session.generate(prompt, max_tokens=80, sampling=stoker.Sampling(seed=7), stop=["\n\n"])
        for piece in generation:
            print(piece, end="", flush=True)

        stats = engine.stats()
        print(f"\n\n[{generation.finish_reason}] {len(generation.tokens)} tokens, {stats.tokens_per_second:.1f} tok/s")
        print(f"hit rate {stats.hit_rate:.1%}, {stats.bytes / 1e6:.1f} MB of experts read")

        # What the last step looked like from inside.
        logits = engine.logits()
        best = logits.argsort()[::-1][:3]
        print("it might have gone on with:", ", ".join(repr(model.token_bytes(int(t)).decode(errors="replace")) for t in best))
        ids, weights = engine.routing(0)
        print("experts of the first layer:", ", ".join(f"{e} ({w:.2f})" for e, w in zip(ids[-1], weights[-1])))
        resident = engine.residency().sum(axis=1)
        print("experts in the cache, by layer:", *resident)


main()
