"""Tuning from Python: the result is the profile's, and engines and replays take it."""

from __future__ import annotations

from pathlib import Path

import pytest

import stoker

from .conftest import EMBER

IO = "emu:400M,50us"


def test_result_is_the_profile(trace: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    profile, report = tmp_path / "p.json", tmp_path / "r.html"
    with stoker.Model(EMBER) as model:
        result = stoker.tune(
            trace, ram="6M", io=IO, model=model, profile=profile, report=report, threads=2, progress=lambda *a: seen.append(a)
        )
    content = result.read_profile()
    assert result.timed
    assert result.tok_s > 0
    assert result.n_replay >= result.n_config > 50
    assert (content["policy"], content["scope"]) == (result.policy, result.scope)
    assert content["model"]["name"] == "ember 40M"
    assert content["expected"]["margin"] == pytest.approx(result.margin)
    assert report.read_text().startswith("<!DOCTYPE html>")
    assert any(what == "tune" for what, _, _ in seen)
    with stoker.Engine(EMBER, profile=profile) as engine:
        assert engine.memory.policy == result.policy
        assert engine.memory.scope == result.scope
        assert engine.memory.predictor == result.predictor
        assert engine.memory.predict_depth == result.predict_depth
    with stoker.Engine(EMBER, profile=profile, policy="lfu", predictor="none", scope="global") as engine:
        assert (engine.memory.policy, engine.memory.predictor, engine.memory.scope) == ("lfu", "none", "global")
    assert stoker.replay(trace, profile=profile, io=IO).policy == result.policy.split(":")[0]


def test_errors(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(stoker.BudgetError):
        stoker.tune(trace, ram=4096)
    with pytest.raises(stoker.CanceledError):
        stoker.tune(trace, progress=lambda what, done, total: what != "tune" or done < 5)
    with pytest.raises(stoker.InvalidArgumentError):
        stoker.tune(trace).read_profile()
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    with pytest.raises(stoker.FormatError, match="wrong.json"):
        stoker.Engine(EMBER, profile=wrong)
