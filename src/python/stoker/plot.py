"""
Plots with matplotlib, which is optional: `pip install stoker[plot]`. Each function draws into `ax`, or into a new figure, and
returns the axes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

import numpy as np
import numpy.typing as npt

from ._structs import Stats
from .replay import SweepPoint
from .timeline import Timeline, work_kinds


def _axes(ax: Any, size: tuple[float, float]) -> Any:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error
    return plt.subplots(figsize=size, layout="constrained")[1]


def _name(config: Mapping[str, Any]) -> str:
    policy = config.get("policy") or "as recorded"
    if isinstance(policy, str):
        return policy
    return getattr(policy, "name", "") or getattr(policy, "__name__", type(policy).__name__)


def hit_rates(points: Iterable[SweepPoint], ax: Any = None) -> Any:
    """Hit rate over the budget, a curve for each policy. Points that failed are left out."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for point in points:
        if point.result is not None:
            curves.setdefault(_name(point.config), []).append((point.result.ram_bytes, point.result.hit_rate))
    ax = _axes(ax, (6, 4))
    for name, curve in curves.items():
        ram, rate = np.array(sorted(curve)).T
        ax.plot(ram / 2**20, 100 * rate, marker="o", markersize=3, label=name)
    ax.set(xlabel="expert slots in MiB", ylabel="hit rate in %", ylim=(0, 100))
    ax.legend()
    return ax


def expert_map(values: npt.ArrayLike, ax: Any = None, label: str = "uses") -> Any:
    """A value for each expert, [n_layer, n_expert]: how often it was used (`Events.uses`), or `Engine.residency()`."""
    table = np.asarray(values, np.float64)
    if table.ndim != 2:
        raise ValueError(f"values of shape {table.shape}; a table [n_layer, n_expert] is needed")
    ax = _axes(ax, (8, 3))
    image = ax.imshow(table, aspect="auto", interpolation="nearest", origin="lower")
    ax.set(xlabel="expert", ylabel="layer")
    ax.figure.colorbar(image, ax=ax, label=label)
    return ax


PARTS = {
    "dense part": "dense_ns",
    "experts": "expert_ns",
    "packing": "arrive_ns",
    "waiting for reads": "wait_ns",
    "trace": "trace_ns",
}


def step_times(runs: Mapping[str, Stats], ax: Any = None) -> Any:
    """Where the time of a token went, a bar for each named run: ms for each part, the rest of the step as "other"."""
    ax = _axes(ax, (7, 1.2 + 0.4 * len(runs)))
    left: npt.NDArray[np.float64] = np.zeros(len(runs))
    n_token = np.array([max(stats.n_token, 1) for stats in runs.values()])
    for part, field in PARTS.items():
        ms = np.array([getattr(stats, field) for stats in runs.values()]) / n_token * 1e-6
        ax.barh(list(runs), ms, left=left, label=part)
        left = left + ms
    rest = np.maximum(np.array([stats.step_ns for stats in runs.values()]) / n_token * 1e-6 - left, 0)
    ax.barh(list(runs), rest, left=left, label="other", color="lightgray")
    ax.set(xlabel="ms for each token")
    ax.legend(ncols=3, fontsize="small")
    return ax


def _lanes(begin: npt.NDArray[np.uint64], end: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """A lane for each interval, sorted by begin, such that none overlap: the lowest that is free."""
    lanes = np.zeros(len(begin), np.intp)
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # until when, and the lane
    n_lane = 0
    for i, (a, b) in enumerate(zip(begin.tolist(), end.tolist())):
        while busy and busy[0][0] <= a:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, n_lane)
            n_lane += 1
        lanes[i] = heapq.heappop(free)
        heapq.heappush(busy, (b, int(lanes[i])))
    return lanes


COLORS = {
    "dense part": "tab:gray",
    "experts": "tab:blue",
    "packing": "tab:cyan",
    "waiting for reads": "mistyrose",
    "reads": "tab:orange",
    "reads ahead": "tab:green",
}


def timeline(work: Union[Timeline, npt.NDArray[np.void]], ax: Any = None, steps: Optional[tuple[int, int]] = None) -> Any:
    """
    What the queues did over time: a row for what the CPU does, and as many for the drive as it has reads at a time.

    :param work: a `Timeline`, or what its `work()` gave, or a part of that.
    :param steps: only steps from the first number to before the second.
    """
    table = work.work() if isinstance(work, Timeline) else work
    if steps is not None:
        table = table[(table["step"] >= steps[0]) & (table["step"] < steps[1])]
    if not len(table):
        raise ValueError("there is nothing on this timeline: was it set before the steps, and were there steps enough for its first_step?")
    table = table[np.argsort(table["begin_ns"], kind="stable")]
    kinds = work_kinds()
    ax = _axes(ax, (10, 3))
    labels, bottom = [], 0
    for queue in dict.fromkeys(kind.queue for kind in kinds):
        of_queue = table[np.isin(table["kind"], [i for i, kind in enumerate(kinds) if kind.queue == queue])]
        lanes = _lanes(of_queue["begin_ns"], of_queue["end_ns"])
        n_lane = int(lanes.max()) + 1 if len(lanes) else 1
        labels.append((bottom + n_lane / 2, queue))
        for number in np.unique(of_queue["kind"]).tolist():
            name = kinds[number].name
            for lane in range(n_lane):
                rows = of_queue[(of_queue["kind"] == number) & (lanes == lane)]
                if not len(rows):
                    continue
                spans = np.column_stack([rows["begin_ns"], rows["end_ns"] - rows["begin_ns"]]) * 1e-6
                known = {collection.get_label() for collection in ax.collections}
                label = name if name not in known else f"_{name}"
                ax.broken_barh(spans, (bottom + lane + 0.1, 0.8), facecolors=COLORS.get(name), label=label)
        bottom += n_lane
    ax.set(xlabel="ms", ylim=(bottom, 0))
    ax.set_yticks([at for at, _ in labels], [name for _, name in labels])
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=len(kinds), fontsize="small", frameon=False)
    return ax


def save(ax: Any, path: str, title: Optional[str] = None) -> None:
    """Writes the figure of `ax` to a file and closes it."""
    import matplotlib.pyplot as plt

    if title:
        ax.set_title(title)
    ax.figure.savefig(path, dpi=120)
    plt.close(ax.figure)
