from __future__ import annotations

import concurrent.futures
import pickle
from pathlib import Path
from typing import Any, Callable

import pytest

import stoker


def test_replay(trace: Path) -> None:
    own = stoker.replay(trace)
    assert own.complete
    assert own.hit_rate == own.stats.n_hit / own.stats.n_lookup
    assert own.tokens_per_second == 0
    everything = stoker.replay(trace, ram="1G")
    assert everything.stats.n_evict == 0
    assert everything.hit_rate > own.hit_rate
    assert stoker.replay(trace, slots=own.n_slot).n_slot == own.n_slot
    slow, fast = stoker.replay(trace, io="emu:50M,1ms"), stoker.replay(trace, io="emu:5G,10us")
    assert 0 < slow.tokens_per_second < fast.tokens_per_second
    assert slow.stats.n_lookup == own.stats.n_lookup


def test_verify(trace: Path, mixed_trace: Path) -> None:
    for path in (trace, mixed_trace):
        assert stoker.replay(path, verify=True).complete
    with pytest.raises(stoker.InvalidArgumentError):
        stoker.replay(trace, verify=True, ram="1M")


def test_model_sizes_an_imported_trace(trace: Path, ember_model: stoker.Model, tmp_path: Path) -> None:
    """Traces of other tools take an expert's size from a model; with its sizes they read what the run's own trace says."""
    table = tmp_path / "plain.csv"
    stoker.convert([trace], table, format="csv")
    plain = tmp_path / "unsized.csv"
    plain.write_text("".join(line for line in table.read_text().splitlines(True) if "expert_bytes" not in line))
    own, sized = stoker.replay(trace, slots=48, predictor="none"), stoker.replay(plain, slots=48, model=ember_model)
    assert (own.stats.n_miss, own.stats.bytes) == (sized.stats.n_miss, sized.stats.bytes)
    assert stoker.replay(plain, slots=48).stats.bytes != own.stats.bytes
    with pytest.raises(stoker.InvalidArgumentError, match="4 of 16"):
        stoker.replay(plain, slots=48, model_shape="tiny")


def test_a_cut_trace(trace: Path, tmp_path: Path) -> None:
    raw = trace.read_bytes()
    cut = tmp_path / "cut.trace"
    cut.write_bytes(raw[: len(raw) * 2 // 3])
    result = stoker.replay(cut)
    assert not result.complete
    with pytest.raises(stoker.StateError, match="cut off"):
        stoker.replay(cut, verify=True)


def test_errors(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(stoker.ReadWriteError):
        stoker.replay(tmp_path / "nothing")
    (tmp_path / "text").write_text("this is no trace" * 20)
    with pytest.raises(stoker.FormatError):
        stoker.replay(tmp_path / "text")
    with pytest.raises(stoker.BudgetError):
        stoker.replay(trace, ram="10K")
    with pytest.raises(stoker.InvalidArgumentError, match="exclude"):
        stoker.replay(trace, ram="1M", slots=3)
    with pytest.raises(stoker.InvalidArgumentError):
        stoker.replay(trace, policy="nothing")
    with pytest.raises(stoker.CanceledError):
        stoker.replay(trace, progress=lambda *_: False)


GEMMA = Path(__file__).resolve().parents[3] / "traces" / "samples" / "gemma.route.csv.zst"


@pytest.mark.skipif(not GEMMA.exists(), reason="the sample traces are not here")
def test_tiers() -> None:
    tiers = {"vram": "2G", "ram": "4G"}
    hybrid = stoker.replay(GEMMA, tiers=tiers, cost="4090")
    t = hybrid.tiers_decode
    assert t is not None
    assert hybrid.tokens_per_second > 0
    assert 0 < hybrid.vram_bytes <= 2 << 30 < hybrid.ram_bytes <= 4 << 30
    assert 0 < t.n_vram <= t.n_lookup
    assert t.n_gpu + t.n_fetch + t.n_bypass + t.n_cpu >= t.n_lookup
    static = stoker.replay(GEMMA, tiers=tiers, cost="4090", mode="static", uses_from=GEMMA)
    assert static.tiers_decode is not None
    assert static.tiers_decode.n_fetch == 0
    plain = stoker.replay(GEMMA, tiers={"ram": "4G"})
    assert plain == stoker.replay(GEMMA, ram="4G")
    assert plain.tiers_decode is None
    again = pickle.loads(pickle.dumps(hybrid))
    assert again.tiers_decode.n_vram == t.n_vram


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: stoker.replay(None), "a trace is a path or a Trace"),  # type: ignore[arg-type]
        (lambda: stoker.replay(GEMMA, fraction="x"), "fraction is a number"),  # type: ignore[arg-type]
        (lambda: stoker.replay(GEMMA, io=5), "io is a str"),  # type: ignore[arg-type]
        (lambda: stoker.replay(GEMMA, ram="1G", progress=5), "progress is a function"),  # type: ignore[arg-type]
        (lambda: stoker.sweep(GEMMA, 5), "configs are dicts"),  # type: ignore[arg-type]
        (lambda: stoker.sweep(GEMMA, [5]), "a configuration is a dict"),  # type: ignore[list-item]
        (lambda: stoker.sweep(GEMMA, [{}], workers="a"), "workers is an integer"),  # type: ignore[arg-type]
        (lambda: stoker.sweep(GEMMA, [{}], executor=5), "executor is a concurrent.futures.Executor"),  # type: ignore[arg-type]
        (lambda: stoker.sweep(GEMMA, [{}], progress=5), "progress is a function"),  # type: ignore[arg-type]
        (lambda: stoker.convert(5, "x"), "traces are a list of paths"),  # type: ignore[arg-type]
        (lambda: stoker.convert("y", "x"), "traces are a list of paths"),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        call()


@pytest.mark.parametrize("tiers", [{"nvme": "1G"}, "vram=1G", ["ram"], 5])
def test_wrong_tiers(tiers: Any) -> None:
    with pytest.raises(stoker.InvalidArgumentError, match="tiers are"):
        stoker.replay(GEMMA, tiers=tiers)


def test_results_travel(trace: Path) -> None:
    result = stoker.replay(trace)
    again = pickle.loads(pickle.dumps(result))
    assert again == result
    assert again.stats.as_dict() == result.stats.as_dict()
    error = pickle.loads(pickle.dumps(stoker.PolicyError("why", None, 3, result)))
    assert (str(error), error.n_fault, error.result) == ("why", 3, result)


def points(trace: Path) -> list[dict[str, object]]:
    return stoker.grid(policy=["lru", "random", stoker.PythonLRU], ram=["2M", "6M"])


def test_a_grid_serves_many_sweeps() -> None:
    grid = stoker.grid(policy=["lru", "random"], ram=("2M", "6M"), seed=3)
    assert [len(list(grid)) for _ in range(2)] == [4, 4]
    assert grid[1] == {"policy": "lru", "ram": "6M", "seed": 3}


def check(trace: Path, found: list[stoker.SweepPoint]) -> None:
    assert [point.config for point in found] == points(trace)
    for point in found:
        assert point.unwrap() == stoker.replay(trace, **point.config)
    assert found[0].unwrap().stats.n_miss == found[4].unwrap().stats.n_miss


@pytest.mark.slow
def test_sweep_over_processes(trace: Path) -> None:
    done: list[tuple[int, int]] = []
    found = stoker.sweep(trace, points(trace), workers=2, progress=lambda n, of: done.append((n, of)))
    check(trace, found)
    assert done[-1] == (6, 6)


def test_sweep_over_an_executor(trace: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        check(trace, stoker.sweep(trace, points(trace), executor=pool))
        found = stoker.sweep(trace, [{"ram": "1K"}, {"trace": str(trace)}, {"policy": Broken}], executor=pool)
    assert isinstance(found[0].error, stoker.BudgetError)
    with pytest.raises(stoker.BudgetError):
        found[0].unwrap()
    assert found[1].unwrap().complete
    assert isinstance(found[2].error, stoker.PolicyError)
    assert found[2].result is not None


class Broken(stoker.Policy):
    def victim(self, busy: stoker.Busy) -> int:
        raise ValueError("broken")


@pytest.mark.slow
def test_sweep_over_dask(trace: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        done: list[int] = []
        check(trace, stoker.sweep(trace, points(trace), executor=client.get_executor(), progress=lambda n, _: done.append(n)))
        assert done[-1] == 6
