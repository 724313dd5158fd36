"""Runs whose clients fetch increments: fewer bytes, and the same bits however the work is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedbiad import plan as plans
from fedbiad.plan import Plan
from fedbiad.runner import Stopped, resume, start
from running import SMALL, nothing, outcome, stop_after

METHODS = ["fedavg", "fedbiad+evidence"]


def plan(method: str = "fedavg", **settings: str) -> Plan:
    chosen = {"method": method, "training.increments": "0.1", "rounds": "8", **settings}
    return plans.load("digits", {**SMALL, **chosen})


def ran(chosen: Plan, path: Path) -> dict[str, Any]:
    start(chosen, path, nothing)
    return outcome(path)


@pytest.mark.parametrize("method", METHODS)
def test_wire_and_resume_change_nothing(tmp_path: Path, method: str) -> None:
    undisturbed = ran(plan(method), tmp_path / "run")
    sent = ran(plan(method, **{"engine.wire": "true"}), tmp_path / "wired")
    assert sent["model"] == undisturbed["model"]
    assert sent["rounds"] == undisturbed["rounds"]
    with pytest.raises(Stopped):
        start(plan(method), tmp_path / "stopped", nothing, stop_after(5))
    resume(tmp_path / "stopped", nothing)
    assert outcome(tmp_path / "stopped") == undisturbed


def test_wired_and_resumed(tmp_path: Path) -> None:
    chosen = plan(**{"engine.wire": "true", "training.lost_copies": "0.2"})
    undisturbed = ran(chosen, tmp_path / "run")
    with pytest.raises(Stopped):
        start(chosen, tmp_path / "stopped", nothing, stop_after(5))
    resume(tmp_path / "stopped", nothing)
    assert outcome(tmp_path / "stopped") == undisturbed


def test_downloads_are_counted_and_fewer(tmp_path: Path) -> None:
    off = plans.load("digits", {**SMALL, "method": "fedavg", "rounds": "8"})
    with_, without = ran(plan(), tmp_path / "with"), ran(off, tmp_path / "without")
    ratio = with_["summary"]["total_download"]["encoded"] / without["summary"]["total_download"]["encoded"]
    assert 0.3 < ratio < 0.8  # 12 clients fetch the model once, in 32 downloads
    assert with_["rounds"][0]["download"] == without["rounds"][0]["download"]  # no one has a copy yet
    assert with_["summary"]["total_upload"] == without["summary"]["total_upload"]
    assert "download/left" not in without["memory"]


def test_several_processes(tmp_path: Path) -> None:
    settings = {"engine.wire": "true", "engine.block": "2"}
    alone = ran(plan(**settings), tmp_path / "alone")
    assert ran(plan(**settings, **{"engine.workers": "2"}), tmp_path / "workers") == alone
