from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stoker

from .conftest import PROMPT

GREEDY = stoker.GREEDY


def test_generate(ember: stoker.Engine) -> None:
    session = ember.session()
    generation = session.generate(PROMPT, max_tokens=30, sampling=GREEDY)
    pieces = list(generation)
    assert "".join(pieces) == generation.text != ""
    assert generation.finish_reason == "length"
    assert len(generation.tokens) == 30
    assert generation.text == ember.model.detokenize(generation.tokens)
    assert session.tokens[-29:] == generation.tokens[:-1]
    assert ember.length() == len(session)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_text(ember_model: stoker.Model) -> None:
    texts = []
    for ram, policy in (("6M", None), ("2M", "random"), ("6M", stoker.PythonLRU)):
        with stoker.Engine(ember_model, ram=ram, policy=policy, threads=2) as engine:
            texts.append(engine.session().generate(PROMPT, max_tokens=25, sampling=stoker.Sampling(seed=11)).result())
    assert texts[0] == texts[1] == texts[2]


def test_going_on_is_the_same_as_going_through(ember_model: stoker.Model) -> None:
    with stoker.Engine(ember_model, ram="6M", threads=2) as engine:
        whole = engine.session().generate(PROMPT, max_tokens=20, sampling=GREEDY).result()
        engine.trim(0, 0)
        session = engine.session()
        first = session.generate(PROMPT, max_tokens=8, sampling=GREEDY).result()
        second = session.generate(max_tokens=12, sampling=GREEDY).result()
    assert first + second == whole


def test_stop_texts(ember: stoker.Engine) -> None:
    whole = ember.session().generate(PROMPT, max_tokens=30, sampling=GREEDY).result()
    stop = whole[12:20]
    ember.trim(0, 0)
    generation = ember.session().generate(PROMPT, max_tokens=30, sampling=GREEDY, stop=["never this", stop])
    assert "".join(generation) == whole[: whole.index(stop)]
    assert generation.finish_reason == "stop"


def test_text_that_might_become_a_stop_text_comes_later(ember: stoker.Engine) -> None:
    whole = ember.session().generate(PROMPT, max_tokens=10, sampling=GREEDY).result()
    ember.trim(0, 0)
    late = ember.session().generate(PROMPT, max_tokens=10, sampling=GREEDY, stop=whole[2:] + "!")
    assert late.result() == whole


def test_callback(ember: stoker.Engine) -> None:
    seen: list[tuple[int, str]] = []

    def on_token(token: int, text: str) -> bool:
        seen.append((token, text))
        return len(seen) < 5

    generation = ember.session().generate(PROMPT, sampling=GREEDY, on_token=on_token)
    assert generation.result() == "".join(text for _, text in seen)
    assert generation.finish_reason == "callback"
    assert len(seen) == 5


def test_what_a_callback_raises(ember: stoker.Engine) -> None:
    def on_token(token: int, text: str) -> None:
        raise KeyError(token)

    session = ember.session()
    with pytest.raises(KeyError):
        session.generate(PROMPT, on_token=on_token).result()
    assert session.generate(max_tokens=3).result()


def test_the_context_ends(ember_model: stoker.Model) -> None:
    with stoker.Engine(ember_model, ram="6M", n_ctx=24, threads=2) as engine:
        session = engine.session()
        generation = session.generate(PROMPT, max_tokens=100, sampling=GREEDY)
        generation.result()
        assert generation.finish_reason == "context"
        assert len(session) == 24
        with pytest.raises(stoker.ContextFullError, match="n_ctx"):
            session.prefill("more")
        session.trim(5)
        session.prefill("more")
        assert len(session) == engine.length() > 5


def test_prefill(ember_model: stoker.Model) -> None:
    with stoker.Engine(ember_model, ram="6M", n_batch=7, n_logits=4, threads=2) as engine:
        session = engine.session()
        ids = session.tokenize(PROMPT)
        rows = session.prefill(PROMPT, all_logits=True)
        assert rows is not None
        assert rows.shape == (len(ids), ember_model.info.n_vocab)
        assert session.tokens == ids
        engine.trim(0, 0)
        again = engine.session()
        assert again.prefill(np.array(ids)) is None
        np.testing.assert_array_equal(engine.logits(), rows[-1])


@pytest.mark.slow
def test_two_sessions_by_turns(ember_model: stoker.Model) -> None:
    with stoker.Engine(ember_model, ram="6M", threads=2) as engine:
        alone = engine.session().generate(PROMPT, max_tokens=10, sampling=GREEDY).result()
    with stoker.Engine(ember_model, ram="6M", threads=2, n_seq=2, n_ctx=256) as engine:
        a, b = engine.session(0), engine.session(1)
        a.prefill(PROMPT)
        b.prefill("The dog")
        with pytest.raises(stoker.InvalidArgumentError, match="seq"):
            engine.session(2)
        ga = a.generate("", max_tokens=10, sampling=GREEDY)
        b_text = b.generate(" ran", max_tokens=6, sampling=GREEDY).result()
        assert b_text
        engine.trim(0, 0)
        del ga
        assert engine.session(0).generate(PROMPT, max_tokens=10, sampling=GREEDY).result() == alone


def test_misuse(ember: stoker.Engine) -> None:
    session = ember.session()
    with pytest.raises(stoker.InvalidArgumentError, match="prompt"):
        session.generate("").result()
    with pytest.raises(stoker.InvalidArgumentError, match="empty"):
        session.prefill([])
    with pytest.raises(stoker.InvalidArgumentError, match="stop"):
        session.generate("a", stop="")
    with pytest.raises(stoker.InvalidArgumentError):
        session.generate("a", max_tokens=-1)
    session.prefill("a")
    with pytest.raises(stoker.StateError, match="trim"):
        ember.session()


def test_sampler(ember_model: stoker.Model) -> None:
    logits = np.zeros(ember_model.info.n_vocab, np.float32)
    logits[77] = 5
    with stoker.Sampler(ember_model, GREEDY) as sampler:
        assert sampler.sample(logits) == 77
        assert sampler.sample(logits.astype(np.float64)) == 77
        with pytest.raises(stoker.InvalidArgumentError, match="shape"):
            sampler.sample(logits[:5])
        with pytest.raises(stoker.InvalidArgumentError):
            sampler.sample(np.full_like(logits, np.nan))
        sampler.accept(77)
    with pytest.raises(stoker.InvalidArgumentError):
        stoker.Sampler(ember_model, stoker.Sampling(temperature=-1))
    with pytest.raises(stoker.InvalidArgumentError):
        stoker.Sampler(ember_model, stoker.Sampling(top_k=2**40))
    with stoker.Sampler(10, stoker.Sampling(temperature=1, top_k=0, seed=5)) as sampler:
        drawn = {sampler.sample(np.zeros(10, np.float32)) for _ in range(200)}
    assert drawn == set(range(10))


@pytest.mark.parametrize(
    ("prompt", "options", "says"),
    [
        (3.5, {}, "token ids are a flat sequence of integers, not 3.5"),
        (None, {}, "token ids are a flat sequence of integers, not None"),
        ([[1, 2]], {}, "token ids are a flat sequence of integers"),
        ([1.5], {}, "token ids are a flat sequence of integers; found 1.5"),
        ("a", {"sampling": 0.8}, "sampling is a stoker.Sampling or Sampler, not float"),
        ("a", {"on_token": 5}, "on_token is a function"),
        ("a", {"max_tokens": 2.5}, "max_tokens is an integer"),
    ],
)
def test_wrong_arguments_are_named_at_once(ember: stoker.Engine, prompt: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        ember.session().generate(prompt, **options)
    assert ember.length() == 0
