"""Every wrong moment to use an object is a clear error; nothing leaks."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import stoker

from .conftest import TINY


def rss_bytes() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def n_open() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
def test_a_thousand_times() -> None:
    """Memory, files and threads after 1,000 engines are those after the first hundred."""

    class Plain(stoker.PythonLRU):
        pass

    def once(i: int) -> None:
        with stoker.Model(TINY) as model, stoker.Engine(model, ram=model.info.ram_bytes_min, n_ctx=64, threads=1, policy=Plain) as engine:
            if i % 10 == 0:
                engine.step([1, 2, 3])
                engine.logits(copy=False).sum()
            with stoker.Sampler(model):
                pass

    for i in range(100):
        once(i)
    gc.collect()
    before = rss_bytes(), n_open(), len(os.listdir("/proc/self/task"))
    for i in range(900):
        once(i)
    gc.collect()
    after = rss_bytes(), n_open(), len(os.listdir("/proc/self/task"))
    assert after[1:] == before[1:]
    assert after[0] - before[0] < 8 << 20


def test_after_close() -> None:
    model = stoker.Model(TINY)
    engine = stoker.Engine(model, ram="1M", threads=1)
    session, sampler = engine.session(), stoker.Sampler(model)
    engine.step([1])
    view = engine.logits(copy=False)
    with pytest.raises(stoker.StateError, match="engine"):
        model.close()
    engine.close()
    with pytest.raises(stoker.StateError, match="closed"):
        engine.step([1])
    assert np.isfinite(view).all()
    del view  # it kept the engine's memory
    gc.collect()
    engine.close()
    engine.cancel()
    sampler.close()
    model.close()
    for use in (
        lambda: engine.step([1]),
        lambda: engine.logits(),
        lambda: engine.routing(0),
        lambda: engine.stats(),
        lambda: engine.residency(),
        lambda: engine.session(),
        lambda: session.prefill([1]),
        lambda: session.generate("a").result(),
        lambda: sampler.accept(1),
        lambda: model.tokenize("a"),
        lambda: model.metadata,
        lambda: stoker.Engine(model),
        lambda: engine.__enter__().stats(),
    ):
        with pytest.raises(stoker.StateError, match="is closed"):
            use()
    assert "closed" in repr(engine)
    assert "closed" in repr(model)


def test_before_the_first_step() -> None:
    with stoker.Engine(TINY, ram="1M", threads=1) as engine:
        for use in (lambda: engine.logits(), lambda: engine.hidden(), lambda: engine.routing(0)):
            with pytest.raises(stoker.StateError, match="no step"):
                use()


def test_two_threads() -> None:
    with stoker.Engine(TINY, ram="1M", threads=1, io="emu:1M,20ms") as engine:
        errors: list[BaseException] = []
        started = threading.Event()

        def run() -> None:
            started.set()
            engine.step([1] * 20)

        thread = threading.Thread(target=run)
        thread.start()
        started.wait()
        while thread.is_alive() and not engine.closed:
            try:
                engine.stats()
                if errors:  # the step has begun: it is not closed under its feet
                    engine.close()
            except stoker.StateError as error:
                errors.append(error)
        thread.join()
    assert errors
    assert "in use" in str(errors[0])


def test_threads_share_a_model() -> None:
    with stoker.Model(TINY.parents[1] / "ember-q4_k_m.gguf") as model:
        want, errors = model.tokenize("Once upon a time"), []

        def run() -> None:
            for _ in range(300):
                if model.tokenize("Once upon a time") != want:
                    errors.append(1)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors


def test_fork() -> None:
    with stoker.Model(TINY) as model, stoker.Engine(model, ram="1M", threads=2) as engine:
        engine.step([1, 2])
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tried here
            child = os.fork()
        if child == 0:
            said = "nothing"
            try:
                engine.step([3])
            except stoker.StateError as error:
                said = str(error)
            engine.cancel()
            engine.close()
            os.write(writing, said.encode())
            os._exit(0)
        os.close(writing)
        said = os.read(reading, 4096).decode()
        os.close(reading)
        assert os.waitpid(child, 0)[1] == 0
        assert "forked" in said
        engine.step([3])
        assert engine.length() == 3


def test_forgetting_to_close_is_said_and_done() -> None:
    engine = stoker.Engine(TINY, ram="1M", threads=2)
    model = engine.model
    n_thread = len(os.listdir("/proc/self/task"))
    with pytest.warns(ResourceWarning, match="unclosed engine"):
        del engine
        gc.collect()
    assert len(os.listdir("/proc/self/task")) < n_thread
    assert model.closed


def test_no_pickling() -> None:
    import pickle

    with stoker.Model(TINY) as model, pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(model)


def test_a_failed_open_leaves_nothing(tmp_path: Path) -> None:
    before = n_open()
    for _ in range(20):
        with pytest.raises(stoker.StokerError):
            stoker.Engine(TINY, ram=1)
        with pytest.raises(stoker.StokerError):
            stoker.Model(tmp_path / "no")
    gc.collect()
    assert n_open() == before
