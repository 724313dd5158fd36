"""Run directories: nothing foreign is touched, nothing torn is read, one process at a time."""

from __future__ import annotations

import dataclasses
import fcntl
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbiad import rundir
from fedbiad.errors import RunDirError
from fedbiad.files import DRAFT
from fedbiad.rundir import RunDir, check_free
from fedbiad.state import MemoryStore
from running import small_plan, snapshot


def record(round_: int, **more: Any) -> dict[str, Any]:
    return {"round": round_, "accuracy": 0.1 + round_ / 7, "failed": [], "resampled_share": None, **more}


def with_rounds(path: Path, records: int, checkpoints: tuple[int, ...]) -> RunDir:
    """A run that wrote this many records and these checkpoints."""
    run = RunDir.create(path, small_plan())
    for r in range(1, records + 1):
        run.append(record(r))
    for r in checkpoints:
        run.checkpoints.save(r, {"w": torch.full((2,), float(r))}, {}, MemoryStore(dict))
    return run


class TestCreate:
    def test_holds_the_whole_plan_and_the_versions(self, tmp_path: Path) -> None:
        run = RunDir.create(tmp_path / "deep" / "run", small_plan("feddrop", seed=3))
        assert run.plan() == small_plan("feddrop", seed=3).written_out()
        assert run.plan().methods == {"feddrop": dataclasses.asdict(run.plan().resolved_method())}
        assert RunDir.open(run.path).plan() == run.plan()
        assert run.records() == []
        assert run.summary() is None

    def test_an_empty_directory_will_do(self, tmp_path: Path) -> None:
        RunDir.create(tmp_path, small_plan())
        assert (tmp_path / "plan.toml").is_file()

    def test_refuses_another_run_and_says_how_to_go_on(self, tmp_path: Path) -> None:
        RunDir.create(tmp_path / "run", small_plan())
        before = snapshot(tmp_path)
        with pytest.raises(RunDirError, match=r"already holds a run; `fedbiad resume .*run` goes on.*another --out"):
            RunDir.create(tmp_path / "run", small_plan("fedavg"))
        assert snapshot(tmp_path) == before

    def test_refuses_what_is_not_empty(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("mine")
        with pytest.raises(RunDirError, match=r"not empty \(thesis\.tex\); choose another --out"):
            RunDir.create(tmp_path, small_plan())
        assert snapshot(tmp_path) == {"thesis.tex": b"mine"}

    def test_refuses_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        with pytest.raises(RunDirError, match="is a file; choose another --out"):
            RunDir.create(tmp_path / "file", small_plan())
        assert snapshot(tmp_path) == {"file": b"mine"}

    def test_refuses_a_place_below_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        with pytest.raises(RunDirError, match="choose another --out"):
            check_free(tmp_path / "file" / "run")

    def test_the_plan_is_written_last(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        order: list[str] = []
        monkeypatch.setattr(rundir, "write_atomically", lambda path, _: order.append(path.name))
        RunDir.create(tmp_path, small_plan())
        assert order[-1] == "plan.toml"
        assert (tmp_path / "checkpoints").is_dir()

    def test_what_a_killed_start_leaves_is_taken_over(self, tmp_path: Path) -> None:
        RunDir.create(tmp_path, small_plan())
        (tmp_path / "plan.toml").unlink()
        (tmp_path / f"{DRAFT}x").write_bytes(b"half a pl")
        assert RunDir.create(tmp_path, small_plan("fedavg")).plan().method == "fedavg"


class TestOpen:
    @pytest.mark.parametrize("name", ["", "nowhere"])
    def test_what_holds_no_run(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(
            RunDirError, match=r"holds no run \(no plan\.toml\); start one with `fedbiad run PLAN --out"
        ):
            RunDir.open(tmp_path / name)
        assert snapshot(tmp_path) == {}

    @pytest.mark.parametrize("content", [b"rounds = ", b"\xff"])
    def test_a_damaged_plan(self, tmp_path: Path, content: bytes) -> None:
        run = RunDir.create(tmp_path, small_plan())
        (tmp_path / "plan.toml").write_bytes(content)
        with pytest.raises(RunDirError, match=r"plan\.toml is damaged"):
            run.plan()


class TestRecords:
    def test_come_back_as_they_were(self, tmp_path: Path) -> None:
        run = with_rounds(tmp_path, 3, ())
        assert run.records() == [record(1), record(2), record(3)]

    @pytest.mark.parametrize("torn", [b"{", b'{"round": 3, "accu', b'{"round": 3}'])
    def test_a_torn_last_line_does_not_count(self, tmp_path: Path, torn: bytes) -> None:
        run = with_rounds(tmp_path, 2, (2,))
        with (tmp_path / "rounds.jsonl").open("ab") as file:
            file.write(torn)
        assert run.records() == [record(1), record(2)]
        run.load()
        run.append(record(3))
        assert run.records() == [record(1), record(2), record(3)]

    def test_damage_before_the_last_line_is_refused(self, tmp_path: Path) -> None:
        run = with_rounds(tmp_path, 2, (2,))
        path = tmp_path / "rounds.jsonl"
        path.write_bytes(b"x" + path.read_bytes())
        with pytest.raises(RunDirError, match=r"rounds\.jsonl is damaged"):
            run.records()


class TestLoad:
    def test_a_new_run_has_nothing(self, tmp_path: Path) -> None:
        assert with_rounds(tmp_path, 0, ()).load() == (None, [], [])

    @pytest.mark.parametrize(("records", "at"), [(3, 3), (5, 3), (3, 1)])
    def test_records_beyond_the_checkpoint_are_cut(self, tmp_path: Path, records: int, at: int) -> None:
        run = with_rounds(tmp_path, records, (at,))
        last, kept, damaged = run.load()
        assert last is not None
        assert (last.round, damaged) == (at, [])
        assert kept == run.records() == [record(r) for r in range(1, at + 1)]

    def test_without_a_checkpoint_all_are_cut(self, tmp_path: Path) -> None:
        run = with_rounds(tmp_path, 2, ())
        assert run.load() == (None, [], [])
        assert run.records() == []

    @pytest.mark.parametrize("rounds", [(), (1,), (1, 3), (2, 3), (1, 2, 2, 3)])
    def test_missing_or_doubled_rounds_are_refused(self, tmp_path: Path, rounds: tuple[int, ...]) -> None:
        run = with_rounds(tmp_path, 0, (3,))
        for r in rounds:
            run.append(record(r))
        before = snapshot(tmp_path)
        with pytest.raises(RunDirError, match="lacks rounds before the checkpoint of round 3; start anew"):
            run.load()
        assert snapshot(tmp_path) == before

    def test_a_damaged_checkpoint_is_passed_over_with_its_records(self, tmp_path: Path) -> None:
        run = with_rounds(tmp_path, 4, (3, 4))
        (newest,) = (tmp_path / "checkpoints").glob("000004-*")
        newest.write_bytes(b"")
        last, kept, damaged = run.load()
        assert last is not None
        assert (last.round, len(kept), damaged) == (3, 3, [newest])

    def test_leftover_drafts_are_removed(self, tmp_path: Path) -> None:
        run = with_rounds(tmp_path, 1, (1,))
        drafts = [tmp_path / f"{DRAFT}a", tmp_path / "checkpoints" / f"{DRAFT}b"]
        for draft in drafts:
            draft.write_bytes(b"half")
        run.load()
        assert not any(draft.exists() for draft in drafts)
        assert (tmp_path / "plan.toml").exists()


class TestLock:
    def test_a_second_opener_is_refused(self, tmp_path: Path) -> None:
        run = with_rounds(tmp_path, 0, ())
        refused = pytest.raises(RunDirError, match="in use by another process; wait for it or stop it")
        with run.locked(), refused, RunDir.open(tmp_path).locked():
            raise AssertionError("locked twice")

    def test_it_ends_with_the_holder(self, tmp_path: Path) -> None:
        run = with_rounds(tmp_path, 0, ())
        with pytest.raises(ValueError, match="any"), run.locked():
            raise ValueError("any")
        with run.locked(), (tmp_path / "lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (tmp_path / "lock").open() as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


class TestVersions:
    def test_are_recorded(self, tmp_path: Path) -> None:
        run = with_rounds(tmp_path, 0, ())
        found = json.loads((tmp_path / "versions.json").read_text())
        assert set(found) >= {"fedbiad", "torch", "numpy", "python"}
        assert found["torch"] == torch.__version__
        assert run.changed_versions() == []

    def test_changes_are_reported(self, tmp_path: Path) -> None:
        run = with_rounds(tmp_path, 0, ())
        path = tmp_path / "versions.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "torch": "0.1"}))
        assert run.changed_versions() == [f"torch 0.1 -> {torch.__version__}"]


def test_a_summary_ends_the_run(tmp_path: Path) -> None:
    run = with_rounds(tmp_path, 1, (1,))
    run.finish({"accuracy": 0.25, "seconds": 1.5})
    assert run.summary() == {"accuracy": 0.25, "seconds": 1.5}
