"""The timeline of the queues: what it has, whose it is, and that it adds up."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

import stoker

from .conftest import TINY

KINDS = [kind.name for kind in stoker.work_kinds()]


def sums(work: np.ndarray) -> dict[str, int]:
    ns = work["end_ns"] - work["begin_ns"]
    return {name: int(ns[work["kind"] == i].sum()) for i, name in enumerate(KINDS)}


def of_drive(work: np.ndarray) -> np.ndarray:
    return work[np.isin(work["kind"], [i for i, kind in enumerate(stoker.work_kinds()) if kind.queue == "nvme"])]


def test_kinds() -> None:
    assert {kind.queue for kind in stoker.work_kinds()} == {"cpu", "nvme"}
    assert len(set(KINDS)) == len(KINDS)


def test_a_replay(trace: Path) -> None:
    with stoker.Timeline() as timeline:
        assert timeline.n_lost == 0
        assert not len(timeline.work())
        result = stoker.replay(trace, io="emu:1G,50us", timeline=timeline)
        work = timeline.work()
        assert work.dtype == stoker.WORK
        assert timeline.n_lost == 0
        found = sums(work)
        assert found["experts"] == result.stats.expert_ns
        assert found["waiting for reads"] == pytest.approx(result.stats.wait_ns, rel=1e-5)  # fractions of a ns
        assert found["packing"] == pytest.approx(result.stats.arrive_ns, rel=1e-4)
        reads = of_drive(work)
        assert found["reads ahead"] > 0
        assert 0 < reads["bytes"].sum() <= result.stats.read_bytes  # some are given up, and the last step's go on after it
        assert reads["layer"].max() < 6
        assert reads["expert"].max() < 32
        assert work["end_ns"].max() <= result.virtual_ns
        assert (work["end_ns"] > work["begin_ns"]).all()
        with pytest.raises(stoker.InvalidArgumentError, match="without times"):
            stoker.replay(trace, timeline=timeline)


def test_every_byte_that_is_waited_for(trace: Path) -> None:
    with stoker.Timeline() as timeline:
        result = stoker.replay(trace, io="emu:1G,50us", predictor="none", timeline=timeline)
        assert of_drive(timeline.work())["bytes"].sum() == result.stats.read_bytes > 0
        assert sums(timeline.work())["reads ahead"] == 0


def test_a_few_steps(trace: Path) -> None:
    with stoker.Timeline(first_step=5, n_step=2) as timeline:
        stoker.replay(trace, io="emu:1G,50us", timeline=timeline)
        work = timeline.work()
        assert sorted(set(work["step"].tolist())) == [5, 6]
        assert work["begin_ns"].min() == 0
    with stoker.Timeline(10) as timeline:
        stoker.replay(trace, io="emu:1G,50us", timeline=timeline)
        assert len(timeline.work()) == 10
        assert timeline.n_lost > 10
    for bad in ({"n_max": 0}, {"n_max": -1}, {"n_step": 2**64}):
        with pytest.raises(stoker.InvalidArgumentError):
            stoker.Timeline(**bad)


def test_live(tiny: stoker.Engine) -> None:
    timeline = stoker.Timeline()
    tiny.step([1])
    tiny.reset_stats()
    tiny.set_timeline(timeline)
    tiny.step([2, 3])
    tiny.step([4])
    stats = tiny.stats()
    tiny.set_timeline(None)
    work = timeline.work()
    tiny.step([5])
    assert len(timeline.work()) == len(work)
    assert sums(work)["experts"] == stats.expert_ns
    assert sums(work)["dense part"] == stats.dense_ns
    assert set(work["step"].tolist()) == {1, 2}
    timeline.close()
    with pytest.raises(stoker.StateError, match="closed"):
        timeline.work()


def test_whose_it_is(trace: Path, tiny: stoker.Engine) -> None:
    with stoker.Timeline() as timeline, stoker.Engine(TINY, ram="1M", threads=1) as other:
        tiny.set_timeline(timeline)
        with pytest.raises(stoker.StateError, match="open engine"):
            timeline.close()
        with pytest.raises(stoker.StateError, match="another engine"):
            other.set_timeline(timeline)
        with pytest.raises(stoker.StateError, match="belongs to an engine"):
            stoker.replay(trace, io="emu:1G,50us", timeline=timeline)
        with pytest.raises(TypeError, match=r"stoker\.Timeline"):
            tiny.set_timeline(timeline.work())  # type: ignore[arg-type]
        tiny.step([1])
        tiny.close()
        assert len(timeline.work())
        other.set_timeline(timeline)
        other.step([1])
        other.set_timeline(None)
    with pytest.raises(stoker.StateError, match="closed"):
        other.set_timeline(timeline)


def test_an_engine_keeps_its_timeline(tiny: stoker.Engine) -> None:
    tiny.set_timeline(stoker.Timeline())
    gc.collect()
    tiny.step([1, 2])
    timeline = tiny._timeline
    assert timeline is not None
    tiny.set_timeline(None)
    with timeline:
        assert len(timeline.work())


def test_a_forked_process_has_none() -> None:
    with stoker.Timeline() as timeline:
        child = os.fork()
        if child == 0:
            try:
                timeline.work()
            except stoker.StateError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
