"""Models and traces for the tests. The library is that of STOKER_LIBRARY or of the build tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker

TOP = Path(__file__).resolve().parents[3]
EMBER = TOP / "tests" / "data" / "ember-q4_k_m.gguf"
TINY = TOP / "tests" / "data" / "tiny" / "qwen3moe-f32.gguf"
PROMPT = "Once upon a time there was a little girl who"


@pytest.fixture(scope="session")
def ember_model() -> Iterator[stoker.Model]:
    with stoker.Model(EMBER) as model:
        yield model


@pytest.fixture
def ember(ember_model: stoker.Model) -> Iterator[stoker.Engine]:
    """A trained model with room for a quarter of its experts."""
    with stoker.Engine(ember_model, ram="6M", threads=2) as engine:
        yield engine


@pytest.fixture
def tiny() -> Iterator[stoker.Engine]:
    """A random model of the least size, two sequences, the least RAM."""
    with stoker.Model(TINY) as model, stoker.Engine(model, ram=model.info.ram_bytes_min, n_seq=2, n_ctx=128, threads=1) as engine:
        yield engine


def record(path: Path, policy: stoker._hooks.PolicyLike = None, ram: str = "6M", max_tokens: int = 60) -> stoker.Stats:
    """Records a run of the trained model."""
    with stoker.Engine(EMBER, ram=ram, threads=2, trace=path, policy=policy) as engine:
        engine.session().generate(PROMPT, max_tokens=max_tokens, sampling=stoker.Sampling(seed=3)).result()
        return engine.stats()


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real trace: the trained model writes a text."""
    path = tmp_path_factory.mktemp("traces") / "ember.trace"
    record(path, max_tokens=200)
    return path


@pytest.fixture(scope="session")
def mixed_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts and decoding of two sequences by turns, a failed and a cancelled step, a cold start, the least RAM."""
    path = tmp_path_factory.mktemp("traces") / "mixed.trace"
    with stoker.Model(TINY) as model:
        ram = model.info.ram_bytes_min
        with stoker.Engine(model, ram=ram, n_seq=2, n_ctx=256, threads=1, trace=path, io="emu:4G,10us,reorder,eio=90") as engine:
            failed = 0
            for i in range(12):
                for seq, n in ((0, 1 + i % 5), (1, 9 if i % 4 == 0 else 1)):
                    if i == 5:
                        engine.cancel()
                    try:
                        engine.step([(i * 37 + j * 11) % 131 for j in range(n)], seq=[seq] * n)
                    except (stoker.ReadWriteError, stoker.CanceledError):
                        failed += 1
                if i == 8:
                    engine.drop_experts()
            assert failed
    return path
