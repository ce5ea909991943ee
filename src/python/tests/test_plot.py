from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
import stoker.plot

matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
matplotlib.use("agg")


def lines(ax: Any) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in ax.lines}


def test_hit_rates(trace: Path, tmp_path: Path) -> None:
    points = [
        stoker.SweepPoint(config, stoker.replay(trace, **config))
        for config in stoker.grid(policy=["lru", stoker.ScoreLRU], ram=["2M", "6M"])
    ]
    points.append(stoker.SweepPoint({"ram": 1}, None, ValueError("no")))
    ax = stoker.plot.hit_rates(points)
    curves = lines(ax)
    assert set(curves) == {"lru", "score-lru"}
    assert curves["lru"] == curves["score-lru"] == [100 * points[0].unwrap().hit_rate, 100 * points[1].unwrap().hit_rate]
    stoker.plot.save(ax, str(tmp_path / "a.png"), "hit rates")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_expert_map(tiny: stoker.Engine) -> None:
    tiny.step([1])
    ax = stoker.plot.expert_map(tiny.residency(), label="resident")
    np.testing.assert_array_equal(ax.images[0].get_array(), tiny.residency())
    with pytest.raises(ValueError, match="n_layer"):
        stoker.plot.expert_map([1, 2])
    matplotlib.pyplot.close("all")


def test_step_times(tiny: stoker.Engine) -> None:
    tiny.step([1])
    stats = tiny.stats()
    ax = stoker.plot.step_times({"a": stats, "b": stats})
    total = sum(bar.get_width() for bar in ax.patches if bar.get_y() < 0.5)
    assert total == pytest.approx(stats.step_ns * 1e-6, rel=0.05)
    matplotlib.pyplot.close("all")


def test_timeline(trace: Path) -> None:
    with stoker.Timeline(n_step=3) as timeline:
        stoker.replay(trace, io="emu:1G,50us", timeline=timeline)
        work = timeline.work()
        ax = stoker.plot.timeline(timeline)
    names = {collection.get_label() for collection in ax.collections} - {None}
    assert {"dense part", "experts", "reads"} <= names
    assert [label.get_text() for label in ax.get_yticklabels()] == ["cpu", "nvme"]
    bars = sum(len(collection.get_paths()) for collection in ax.collections)
    assert bars == len(work)
    # Bars of one row do not overlap.
    boxes = [path.get_extents() for collection in ax.collections for path in collection.get_paths()]
    for row in {box.y0 for box in boxes}:
        at = sorted((box.x0, box.x1) for box in boxes if box.y0 == row)
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in zip(at, at[1:]))
    few = stoker.plot.timeline(work, steps=(0, 1))
    assert sum(len(collection.get_paths()) for collection in few.collections) == (work["step"] == 0).sum()
    with pytest.raises(ValueError, match="nothing on this timeline"):
        stoker.plot.timeline(work, steps=(90, 91))
    matplotlib.pyplot.close("all")
