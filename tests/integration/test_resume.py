"""However a run is stopped, killed or damaged, going on ends bit for bit where it would have ended undisturbed."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedbiad import runner
from fedbiad.compressors import COMPRESSORS
from fedbiad.errors import RunDirError, RunError
from fedbiad.experiment import Record
from fedbiad.methods import METHODS
from fedbiad.rundir import RunDir
from fedbiad.runner import Stopped, resume, start
from running import checkpoints, nothing, outcome, small_plan, snapshot, stop_after

ROUNDS = 5
WRITES = 2 + 1 + 2 * ROUNDS + 1
"""Of a whole run: versions and plan, rounds.jsonl, a line and a checkpoint a round, the summary."""

Undisturbed = Callable[[str], dict[str, Any]]
NAMES = [*METHODS, *COMPRESSORS, "fedbiad+dgc", "feddrop+stc", "fjord:paper+signsgd:paper"]
each_method = pytest.mark.parametrize("method", NAMES)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The outcome of a whole run, made once for each method."""
    known: dict[str, dict[str, Any]] = {}

    def run(method: str) -> dict[str, Any]:
        if method not in known:
            path = tmp_path_factory.mktemp("undisturbed") / method
            start(small_plan(method), path, nothing)
            known[method] = outcome(path)
        return known[method]

    return run


def stopped(path: Path, method: str = "fedbiad", after: int = 3, every: int = 1) -> Path:
    """A run that was asked to stop after a round."""
    with pytest.raises(Stopped, match=rf"stopped after round {after}; go on with `fedbiad resume {path}`"):
        start(small_plan(method, engine={"checkpoint_every": every}), path, nothing, stop_after(after))
    return path


def resumed(path: Path) -> dict[str, Any]:
    """Go on to the end, without any complaint."""
    warnings: list[str] = []
    resume(path, nothing, warn=warnings.append)
    assert warnings == []
    return outcome(path)


def test_a_whole_run_leaves_what_it_should(undisturbed: Undisturbed) -> None:
    found = undisturbed("fedbiad")
    assert [record["round"] for record in found["rounds"]] == list(range(1, ROUNDS + 1))
    assert found["summary"]["accuracy"] == found["rounds"][-1]["accuracy"]
    assert found["round"] == ROUNDS


def test_methods_and_seeds_come_to_different_ends(undisturbed: Undisturbed, tmp_path: Path) -> None:
    start(small_plan("fedbiad", seed=1), tmp_path / "run", nothing)
    models = [undisturbed(method)["model"] for method in NAMES] + [outcome(tmp_path / "run")["model"]]
    assert all(models[i] != models[j] for i in range(len(models)) for j in range(i))


class TestStopped:
    @each_method
    @pytest.mark.parametrize("every", [1, 3])
    @pytest.mark.parametrize("after", [1, 4])
    def test_after_a_round(self, tmp_path: Path, undisturbed: Undisturbed, method: str, every: int, after: int) -> None:
        path = stopped(tmp_path / "run", method, after, every)
        assert RunDir(path).summary() is None
        assert len(RunDir(path).records()) == after
        assert checkpoints(path)[-1].name.startswith(f"{after:06d}-")
        assert resumed(path) == undisturbed(method)

    @each_method
    def test_after_every_round(self, tmp_path: Path, undisturbed: Undisturbed, method: str) -> None:
        path = stopped(tmp_path / "run", method, after=1, every=3)
        for _ in range(ROUNDS - 2):
            with pytest.raises(Stopped):
                resume(path, nothing, stop_after(1))
        assert resumed(path) == undisturbed(method)

    def test_only_the_rounds_left_are_run(self, tmp_path: Path) -> None:
        path, seen = stopped(tmp_path / "run", after=3), []
        resume(path, lambda record: seen.append(record["round"]))
        assert seen == [4, 5]

    def test_a_stop_in_the_last_round_is_an_ordinary_end(self, tmp_path: Path, undisturbed: Undisturbed) -> None:
        start(small_plan(), tmp_path / "run", nothing, stop_after(ROUNDS))
        assert outcome(tmp_path / "run") == undisturbed("fedbiad")

    def test_checkpoints_come_when_asked_for(self, tmp_path: Path) -> None:
        seen: list[list[str]] = []
        plan = small_plan(engine={"checkpoint_every": 3})
        start(plan, tmp_path / "run", lambda _: seen.append([p.name[:6] for p in checkpoints(tmp_path / "run")]))
        assert seen == [[], [], ["000003"], ["000003"], ["000003", "000005"]]


class TestDamaged:
    @pytest.mark.parametrize("method", ["fedbiad", "fedbiad-letter"])
    def test_newest_checkpoint(self, tmp_path: Path, undisturbed: Undisturbed, method: str) -> None:
        path = stopped(tmp_path / "run", method)
        newest = checkpoints(path)[-1]
        newest.write_bytes(newest.read_bytes()[:-1] + b"?")
        warnings: list[str] = []
        resume(path, nothing, warn=warnings.append)
        assert warnings == [f"checkpoint {newest} is damaged and passed over; going on from round 2"]
        assert outcome(path) == undisturbed(method)

    def test_all_checkpoints(self, tmp_path: Path, undisturbed: Undisturbed) -> None:
        path, seen = stopped(tmp_path / "run"), []
        for checkpoint in checkpoints(path):
            checkpoint.write_bytes(b"")
        resume(path, lambda record: seen.append(record["round"]), warn=nothing)
        assert seen == [1, 2, 3, 4, 5]
        assert outcome(path) == undisturbed("fedbiad")

    def test_records_that_are_lost_are_not_made_up(self, tmp_path: Path) -> None:
        path = stopped(tmp_path / "run")
        (path / "rounds.jsonl").unlink()
        with pytest.raises(RunDirError, match="start anew"):
            resume(path, nothing)


class TestKilled:
    @pytest.mark.parametrize("torn", [0, 1, 50])
    @pytest.mark.parametrize("method", ["feddrop", "fedbiad"])
    def test_between_line_and_checkpoint(
        self, tmp_path: Path, undisturbed: Undisturbed, method: str, torn: int
    ) -> None:
        path = stopped(tmp_path / "run", method)
        checkpoints(path)[-1].unlink()
        lines = (path / "rounds.jsonl").read_bytes()
        (path / "rounds.jsonl").write_bytes(lines[: len(lines) - torn])
        (path / "checkpoints" / ".draft-x").write_bytes(b"half a checkpoint")
        assert resumed(path) == undisturbed(method)
        assert all(name.endswith(".safetensors") for name in map(str, checkpoints(path)))  # the half one is gone

    def test_between_the_last_checkpoint_and_the_summary(self, tmp_path: Path, undisturbed: Undisturbed) -> None:
        path, seen = tmp_path / "run", list[Record]()
        start(small_plan(), path, nothing)
        (path / "summary.json").unlink()
        resume(path, seen.append)
        assert seen == []
        assert outcome(path) == undisturbed("fedbiad")

    def test_before_the_first_checkpoint(self, tmp_path: Path, undisturbed: Undisturbed) -> None:
        path = tmp_path / "run"
        RunDir.create(path, small_plan())
        assert resumed(path) == undisturbed("fedbiad")

    def test_with_real_signals(self, tmp_path: Path) -> None:
        kill_test = script("kill_test")
        assert kill_test.kill_until(3, ["digits"], random.Random(0), tmp_path) >= 3


def script(name: str) -> ModuleType:
    """A module from the scripts directory."""
    path = Path(__file__).parents[2] / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def no_data(_: object) -> None:
    raise AssertionError("data were loaded")


class TestFinished:
    def test_gives_the_summary_and_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path, seen = tmp_path / "run", list[Record]()
        summary = start(small_plan(rounds=2), path, nothing)
        before = snapshot(path)
        monkeypatch.setattr(runner, "build", no_data)
        assert resume(path, seen.append) == summary == json.loads((path / "summary.json").read_text())
        assert seen == []
        assert snapshot(path) == before

    def test_is_not_started_over(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        start(small_plan(rounds=1), tmp_path, nothing)
        before = snapshot(tmp_path)
        monkeypatch.setattr(runner, "build", no_data)
        with pytest.raises(RunDirError, match="already holds a run"):
            start(small_plan(rounds=1), tmp_path, nothing)
        assert snapshot(tmp_path) == before


class FullDisk:
    """`os.fsync` that fails at the n-th write and every one after, leaving the line or file half written."""

    def __init__(self, at: int) -> None:
        self.writes, self.at, self.real = 0, at, os.fsync

    def __call__(self, handle: int) -> None:
        self.writes += 1
        if self.writes >= self.at:
            os.ftruncate(handle, max(os.fstat(handle).st_size - 7, 0))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.real(handle)


class TestFullDisk:
    def test_every_write_is_counted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        disk = FullDisk(at=1000)
        monkeypatch.setattr(os, "fsync", disk)
        start(small_plan(), tmp_path / "run", nothing)
        assert disk.writes == WRITES

    @pytest.mark.parametrize("at", range(3, WRITES + 1))
    def test_at_any_write_of_the_rounds(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Undisturbed, at: int
    ) -> None:
        expected, path = undisturbed("fedbiad"), tmp_path / "run"
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", FullDisk(at))
            with pytest.raises(RunError, match=rf"disk is full .*free some space, then `fedbiad resume {path}`"):
                start(small_plan(), path, nothing)
        assert not list(path.rglob(".draft-*"))
        assert resumed(path) == expected

    @pytest.mark.parametrize("at", [1, 2])
    def test_before_the_plan_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Undisturbed, at: int
    ) -> None:
        expected, path = undisturbed("fedbiad"), tmp_path / "run"
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", FullDisk(at))
            with pytest.raises(RunError, match="disk is full"):
                start(small_plan(), path, nothing)
        start(small_plan(), path, nothing)
        assert outcome(path) == expected

    def test_other_failures_are_not_called_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(_: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        RunDir.create(tmp_path, small_plan())
        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(RunDirError, match=os.strerror(errno.EIO)):
            resume(tmp_path, nothing)


def test_a_run_in_progress_is_left_alone(tmp_path: Path) -> None:
    path = stopped(tmp_path / "run")
    before = snapshot(path)
    with RunDir(path).locked(), pytest.raises(RunDirError, match="in use by another process"):
        resume(path, nothing)
    assert snapshot(path) == before


def test_other_software_is_reported(tmp_path: Path) -> None:
    path, warnings = stopped(tmp_path / "run"), list[str]()
    versions = json.loads((path / "versions.json").read_text())
    (path / "versions.json").write_text(json.dumps({**versions, "numpy": "1.0"}))
    resume(path, nothing, warn=warnings.append)
    assert len(warnings) == 1
    assert warnings[0].startswith("numpy 1.0 -> ")
    assert "results may differ in the last bits" in warnings[0]
