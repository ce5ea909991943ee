from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

import stoker

from .conftest import EMBER, TINY


def test_step_and_results(tiny: stoker.Engine) -> None:
    info = tiny.model.info
    assert tiny.step([1, 2, 3], logits="last") == 3
    logits = tiny.logits()
    assert logits.shape == (info.n_vocab,)
    assert logits.dtype == np.float32
    assert tiny.hidden().shape == (info.n_embd,)
    assert tiny.length() == 3
    with pytest.raises(stoker.StateError, match="did not ask"):
        tiny.logits(0)
    with pytest.raises(stoker.InvalidArgumentError, match="entry 3"):
        tiny.logits(3)
    ids, weights = tiny.routing(0)
    assert ids.shape == weights.shape == (3, info.n_expert_used)
    assert ids.max() < info.n_expert
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)


def test_the_output_does_not_depend_on_the_cache() -> None:
    tokens = [(7 * i) % 131 for i in range(40)]
    rows = []
    with stoker.Model(TINY) as model:
        for ram, threads in ((model.info.ram_bytes_min, 1), (None, 2)):
            with stoker.Engine(model, ram=ram, n_ctx=64, threads=threads, n_logits=40) as engine:
                engine.step(tokens, logits="all")
                rows.append(np.stack([engine.logits(i) for i in range(40)]))
    np.testing.assert_array_equal(rows[0], rows[1])


def test_sequences(tiny: stoker.Engine) -> None:
    tiny.step([5, 6, 5, 6], seq=[0, 0, 1, 1], pos=[0, 1, 0, 1], logits=[False, True, False, True])
    np.testing.assert_array_equal(tiny.logits(1), tiny.logits(3))
    assert tiny.length(0) == tiny.length(1) == 2
    tiny.trim(1, 1)
    assert tiny.length(1) == 1
    with pytest.raises(stoker.InvalidArgumentError, match="sequence 2"):
        tiny.length(2)


def test_a_failed_step_moves_nothing(tiny: stoker.Engine) -> None:
    tiny.step([1])
    for kwargs in ({"pos": [7]}, {"seq": [9]}, {"seq": [0, 0]}, {"logits": [True, True]}, {"logits": "some"}):
        with pytest.raises(stoker.InvalidArgumentError):
            tiny.step([2], **kwargs)  # type: ignore[arg-type]
    for tokens in ([], [10**6], [-1], [2**40]):
        with pytest.raises(stoker.InvalidArgumentError):
            tiny.step(tokens)
    for tokens in ("text", [1.5], ["a"], [[1, 2]], [True], np.ones((2, 2), np.int32), 3):
        with pytest.raises(TypeError):
            tiny.step(tokens)  # type: ignore[arg-type]
    assert tiny.length() == 1
    with pytest.raises(stoker.ContextFullError):
        while True:
            tiny.step([1] * 16)
    assert 112 <= tiny.length() <= 128


def test_arrays_without_a_copy(tiny: stoker.Engine) -> None:
    tiny.step([1, 2])
    view = tiny.logits(copy=False)
    assert not view.flags.writeable
    np.testing.assert_array_equal(view, tiny.logits())
    part = view[3:7]
    del view
    with pytest.raises(stoker.StateError, match="without a copy"):
        tiny.step([3])
    assert tiny.length() == 2
    kept = part.copy()
    del part
    gc.collect()
    tiny.step([3])
    assert kept.shape == (4,)
    hidden = tiny.hidden(copy=False)
    assert np.isfinite(hidden).all()


def test_an_array_outlives_its_engine() -> None:
    engine = stoker.Engine(TINY, ram="1M", threads=1)
    engine.step([1, 2])
    copy, view = engine.logits(), engine.logits(copy=False)
    engine.close()
    assert engine.closed
    np.testing.assert_array_equal(copy, view)
    model = engine.model
    assert not model.closed
    del view
    gc.collect()
    assert model.closed


def test_experiments(tiny: stoker.Engine) -> None:
    k, n_expert = tiny.model.info.n_expert_used, tiny.model.info.n_expert
    tiny.force_route(range(k))
    tiny.step([1, 2, 3])
    ids, weights = tiny.routing(0)
    assert (ids == np.arange(k)).all()
    assert len(np.unique(weights)) == 1
    tiny.force_route(list(range(1, k + 1)), layer=1)
    tiny.step([4])
    assert (tiny.routing(1)[0] == np.arange(1, k + 1)).all()
    tiny.force_route(None)
    for bad in ([n_expert] * k, [0] * k, list(range(k + 1)), [-1] * k, [2**16] * k):
        with pytest.raises(stoker.InvalidArgumentError):
            tiny.force_route(bad)
    tiny.force_placement("cpu")
    tiny.force_placement("auto")
    with pytest.raises(stoker.InvalidArgumentError, match="moon"):
        tiny.force_placement("moon")


def test_residency(tiny: stoker.Engine) -> None:
    info = tiny.model.info
    assert not tiny.residency().any()
    tiny.step([1])
    resident = tiny.residency()
    assert resident.shape == (info.n_layer, info.n_expert)
    last = info.n_layer - 1
    assert resident[last][tiny.routing(last)[0][0]].all()
    np.testing.assert_array_equal(resident[0], tiny.residency(0))
    tiny.drop_experts()
    assert not tiny.residency().any()
    with pytest.raises(stoker.InvalidArgumentError, match="layer 99"):
        tiny.residency(99)


def test_counters_and_memory(tiny: stoker.Engine) -> None:
    tiny.step([1, 2])
    stats = tiny.stats()
    assert stats.n_step == 1
    assert stats.n_token == 2
    assert stats.n_hit + stats.n_miss == stats.n_lookup > 0
    assert 0 <= stats.hit_rate <= 1
    assert stats.tokens_per_second > 0
    assert "n_miss" in repr(stats)
    tiny.reset_stats()
    assert tiny.stats().n_step == 0
    assert tiny.stats().hit_rate == 0
    assert tiny.memory.ram_bytes <= tiny.model.info.ram_bytes_all
    assert tiny.memory.n_threads == 1
    assert tiny.n_ctx == 128


def test_budget() -> None:
    with pytest.raises(stoker.BudgetError, match="too small"):
        stoker.Engine(TINY, ram=1000)
    with pytest.raises(MemoryError):
        stoker.Engine(TINY, ram="1K")


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "nothing"},
        {"cpu": "z80"},
        {"io": "tape"},
        {"kv": "f64"},
        {"kv": ("f16",)},
        {"float_mode": "quick"},
        {"n_ctx": -1},
        {"n_batch": 2**32},
        {"ram": "much"},
        {"trace": TINY},
    ],
)
def test_bad_options(options: dict[str, object]) -> None:
    with pytest.raises(stoker.InvalidArgumentError):
        stoker.Engine(TINY, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{"policy": 5}, {"policy": object}, {"policy": stoker.Engine}, {"ram": 1.5}, {"n_ctx": "8"}, {"seed": None}]
)
def test_wrong_types(options: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        stoker.Engine(TINY, **options)  # type: ignore[arg-type]


def test_kv_types() -> None:
    with stoker.Engine(TINY, ram="1M", kv="f32", threads=1) as one, stoker.Engine(TINY, ram="1M", kv=("f16", "f32"), threads=1) as two:
        assert one.memory.kv_bytes > two.memory.kv_bytes


def test_float_mode() -> None:
    with stoker.Engine(TINY, ram="1M", threads=1) as exact, stoker.Engine(TINY, ram="1M", threads=1, float_mode="fast") as fast:
        assert exact.memory.float_mode == 0
        assert fast.memory.float_mode in (0, 1)  # a permission: as the CPU allows
        few = exact.step([1, 2, 3]), fast.step([1, 2, 3])
        assert (few[0] == few[1]).all()


def test_progress() -> None:
    seen: list[tuple[str, int, int]] = []
    stoker.Engine(EMBER, ram="6M", progress=lambda what, done, total: seen.append((what, done, total))).close()
    assert seen
    assert seen[-1][1] <= seen[-1][2]
    with pytest.raises(stoker.CanceledError):
        stoker.Engine(EMBER, ram="6M", progress=lambda *_: False)

    def fails(*_: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        stoker.Engine(EMBER, ram="6M", progress=fails)


def test_cancel(tiny: stoker.Engine) -> None:
    tiny.cancel()
    with pytest.raises(stoker.CanceledError):
        tiny.step([1])
    tiny.step([1])
    assert tiny.length() == 1


def test_cancel_from_another_thread(ember_model: stoker.Model) -> None:
    with stoker.Engine(ember_model, ram=ember_model.info.ram_bytes_min, threads=1, io="emu:2M,1ms") as engine:
        threading.Timer(0.1, engine.cancel).start()
        with pytest.raises(stoker.CanceledError):
            for _ in range(100):
                engine.step([1])


def test_trace_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "run.trace"
    with stoker.Engine(TINY, ram="1M", threads=1, trace=path) as engine:
        engine.step([1, 2, 3])
    assert stoker.replay(path, verify=True).complete


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(stoker.ReadWriteError):
        stoker.Engine(TINY, ram="1M", trace=tmp_path / "no" / "run.trace")


def test_resizing_and_a_warm_start(tmp_path: Path) -> None:
    trace, warm = tmp_path / "run.trace", tmp_path / "run.warm"
    with stoker.Model(EMBER) as model:
        least = model.info.ram_bytes_min
        with stoker.Engine(model, ram=4 * least, n_ctx=64, threads=2, trace=trace, warm=warm) as engine:
            for i in range(20):
                if i % 5 == 4:
                    engine.resize((2 + i % 3) * least)
                    assert engine.memory.ram_bytes <= (2 + i % 3) * least
                engine.step([7 + i])
            with pytest.raises(stoker.BudgetError, match=str(least)):
                engine.resize(least - 1)
            resident = engine.residency()
            engine.save_residency(tmp_path / "now.warm")
        assert stoker.replay(trace, verify=True).complete
        for path in (warm, tmp_path / "now.warm"):
            with stoker.Engine(model, ram=engine.memory.ram_bytes, n_ctx=64, threads=2, warm=path, watch=False) as engine:
                assert engine.memory.n_warm == resident.sum()
                np.testing.assert_array_equal(engine.residency(), resident)
    with stoker.Model(TINY) as other, pytest.raises(stoker.InvalidArgumentError, match="another model"):
        stoker.Engine(other, n_ctx=64, warm=warm)


def test_policies_and_predictors_are_listed_and_take_their_parameters() -> None:
    policies = {m.name: m for m in stoker.list_policies()}
    predictors = {m.name: m for m in stoker.list_predictors()}
    decay = policies["lrfu"].params[0]
    assert (decay.name, decay.initial) == ("decay", 0.96)
    assert decay.least < decay.initial < decay.most
    assert policies["belady"].replay_only
    assert not policies["lru"].replay_only
    assert {"depth", "keep"} == {p.name for p in predictors["history"].params}
    with stoker.Engine(TINY, n_ctx=64, policy="lrfu:decay=0.9", predictor="history:keep=0.5") as engine:
        engine.step([1, 2, 3])
    with stoker.Model(TINY) as model:
        for policy, predictor in (("lrfu:decay=7", "none"), ("lrfu:x=1", "none"), ("lru", "history:x=1")):
            with pytest.raises(stoker.InvalidArgumentError, match="decay|keep"):
                stoker.Engine(model, n_ctx=64, ram=model.info.ram_bytes_min, policy=policy, predictor=predictor)
