"""Profiles, what the machine can do, cost files, synthetic and packed models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stoker

from .conftest import EMBER, TINY


def test_profile(tiny: stoker.Engine) -> None:
    tiny.step([1, 2])
    before = tiny.profile()
    assert before.n_step == before.n_token == len(before.spans) == 0
    assert not before.stage_ns.any()
    tiny.set_profile(True)
    tiny.step([3, 4])
    tiny.step([5])
    profile = tiny.profile()
    assert (profile.n_step, profile.n_token) == (2, 3)
    assert profile.stages == stoker.stage_names()
    assert {"embed", "gate_up", "barrier"} <= set(profile.stages)
    assert profile.stage_ns.shape == (tiny.model.info.n_layer + 1, len(profile.stages))
    assert sum(profile.by_stage.values()) == profile.stage_ns.sum() > 0
    assert profile.by_stage["output"] == profile.stage_ns[-1, profile.stages.index("output")] > 0
    assert profile.bytes > 0
    assert profile.float_ops > 0
    spans = profile.spans
    assert len(spans) > tiny.model.info.n_layer
    assert spans["stage"].max() < len(profile.stages)
    assert spans["layer"].max() == tiny.model.info.n_layer
    assert (np.diff(spans["begin_ns"].astype(np.int64)) >= 0).all()
    kept = profile.stage_ns.copy()
    tiny.step([6])
    np.testing.assert_array_equal(profile.stage_ns, kept)
    tiny.set_profile(False)
    assert tiny.profile().n_step == 0


@pytest.mark.slow
def test_parts_of_an_engine(tiny: stoker.Engine) -> None:
    tiny.step([1])
    logits = tiny.logits()
    assert tiny.residency().any()
    assert 0 < tiny.measure_layer() < 1e9
    np.testing.assert_array_equal(tiny.logits(), logits)
    assert tiny.measure_drive() > 0
    assert not tiny.residency().any()
    tiny.trim(0, 0)
    tiny.step([1])
    np.testing.assert_array_equal(tiny.logits(), logits)


def test_machine() -> None:
    machine = stoker.machine()
    assert 1 <= machine.n_threads <= machine.n_core <= machine.n_cpu
    assert machine.available_bytes > 0
    assert machine.cpu in ("ref", "avx2", "avxvnni", "avx512")


def test_doctor(tmp_path: Path) -> None:
    here, there = stoker.doctor(), stoker.doctor(EMBER)
    assert len(there) > len(here) > 0
    assert {finding.level for finding in there} <= {"ok", "note", "problem"}
    assert all(finding.topic and finding.found for finding in there)
    with pytest.raises(stoker.ReadWriteError, match="nothing"):
        stoker.doctor(tmp_path / "nothing.gguf")


@pytest.mark.slow
def test_limits() -> None:
    limits = stoker.measure_limits(threads=1, cpu="ref")
    assert (limits.n_threads, limits.cpu) == (1, "ref")
    assert limits.read_bytes_per_s > 1e6
    assert limits.int8_ops_per_s > 1e6
    assert limits.float_ops_per_s > 1e6
    with pytest.raises(stoker.InvalidArgumentError, match="z80"):
        stoker.measure_limits(cpu="z80")


def test_a_calibration_that_is_canceled_leaves_nothing(tmp_path: Path, ember_model: stoker.Model) -> None:
    seen: list[str] = []
    for model in (None, ember_model, EMBER):
        with pytest.raises(stoker.CanceledError):
            stoker.calibrate(tmp_path / "x.cost", model, threads=1, progress=lambda what, *_: seen.append(what) or False)  # type: ignore[func-returns-value]
    assert len(seen) == 3
    assert not list(tmp_path.iterdir())
    with pytest.raises(stoker.InvalidArgumentError, match="file of the model"):
        stoker.calibrate(EMBER, ember_model)


def test_files_that_are_no_cost_files(tmp_path: Path) -> None:
    with pytest.raises(stoker.FormatError):
        stoker.check_cost(TINY)
    with pytest.raises(stoker.ReadWriteError):
        stoker.check_cost(tmp_path / "nothing.cost")
    with pytest.raises(stoker.StokerError):
        stoker.Engine(TINY, ram="1M", threads=1, cost=TINY)


def test_synth(tmp_path: Path) -> None:
    one, two, other = (tmp_path / name for name in ("one.gguf", "two.gguf", "other.gguf"))
    stoker.synth(one, "tiny", "Q4_0", seed=5)
    stoker.synth(two, "tiny", "Q4_0", seed=5)
    stoker.synth(other, "tiny", "Q4_0", seed=6)
    assert one.read_bytes() == two.read_bytes() != other.read_bytes()
    with stoker.Engine(one, ram="64M", n_ctx=64, threads=1) as engine:
        engine.step(engine.model.tokenize("any text"))
        assert np.isfinite(engine.logits()).all()


def test_synth_follows_a_trace(tmp_path: Path, trace: Path) -> None:
    path = tmp_path / "x.gguf"
    stoker.synth(path, "tiny", "F32", route_from=trace)
    events = iter(stoker.Trace(trace))
    with stoker.Engine(path, n_ctx=64, threads=1) as engine:
        engine.step([0])
        first = next(events)
        assert set(engine.routing(first.model_layer)[0][0]) == set(first.ids[0])


def test_synth_refuses(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    with pytest.raises(stoker.InvalidArgumentError, match="mixtral-8x7b"):
        stoker.synth(path, "teapot", "Q4_0")
    with pytest.raises(stoker.InvalidArgumentError, match="Q4_K_M"):
        stoker.synth(path, "tiny", "Q9")
    with pytest.raises(stoker.CanceledError):
        stoker.synth(path, "tiny", "Q4_0", progress=lambda *_: False)
    assert not list(tmp_path.iterdir())


def test_pack(tmp_path: Path) -> None:
    path = tmp_path / "packed.gguf"
    seen: list[tuple[str, int, int]] = []
    with stoker.Model(TINY) as plain:
        plain.pack(path, progress=lambda what, done, total: seen.append((what, done, total)))
        with pytest.raises(stoker.InvalidArgumentError, match="not a packed model"):
            plain.check_packed()
        with pytest.raises(stoker.InvalidArgumentError, match="a file of the model"):
            plain.pack(TINY)
        with pytest.raises(stoker.CanceledError):
            plain.pack(tmp_path / "other.gguf", progress=lambda *_: False)
        classes, info = plain.expert_classes, plain.info
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert {what for what, _, _ in seen} == {"packing"}
    assert all(done <= total == path.stat().st_size for _, done, total in seen)
    with stoker.Model(path) as packed:
        packed.check_packed()
        assert packed.info.packed == 1
        assert info.packed == 0
        assert packed.expert_classes == classes
        assert sum(kind.n_layer for kind in classes) == info.n_moe_layer
        assert all(kind.gate_bytes + kind.up_bytes + kind.down_bytes == kind.bytes for kind in classes)
        with pytest.raises(stoker.InvalidArgumentError, match="packed already"):
            packed.pack(tmp_path / "other.gguf")
    logits = []
    for model in (TINY, path):
        with stoker.Engine(model, ram="2M", n_ctx=64, threads=1) as engine:
            engine.step([1, 2, 3])
            logits.append(engine.logits().tobytes())
    assert logits[0] == logits[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with stoker.Model(path) as damaged, pytest.raises(stoker.FormatError, match="damaged"):
        damaged.check_packed()
