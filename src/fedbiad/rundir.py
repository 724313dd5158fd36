"""A run directory: the whole plan, the versions, one line a round, checkpoints, and at the end the summary."""

from __future__ import annotations

import fcntl
import json
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedbiad.checkpoint import Checkpoint, Checkpoints
from fedbiad.errors import RunDirError
from fedbiad.experiment import Record
from fedbiad.files import append_line, remove_drafts, write_atomically
from fedbiad.plan import Plan, from_dict, to_toml
from fedbiad.versions import versions

PLAN, VERSIONS, ROUNDS, SUMMARY, CHECKPOINTS, LOCK, STATES = (
    "plan.toml", "versions.json", "rounds.jsonl", "summary.json", "checkpoints", "lock", "states",
)  # fmt: skip


class RunDir:
    """A directory that holds a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / CHECKPOINTS)

    @classmethod
    def create(cls, path: Path, plan: Plan) -> RunDir:
        """A new run; the plan is written last, so that a directory with a plan is a whole one."""
        check_free(path)
        (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        write_atomically(path / VERSIONS, _json(versions()))
        write_atomically(path / PLAN, to_toml(plan.written_out()).encode())
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """An existing run."""
        if not (path / PLAN).is_file():
            raise RunDirError(f"{path} holds no run (no {PLAN}); start one with `fedbiad run PLAN --out {path}`")
        return cls(path)

    def plan(self) -> Plan:
        """The plan the run was started with."""
        where = self.path / PLAN
        try:
            return from_dict(tomllib.loads(where.read_text()), str(where))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunDirError(f"{where} is damaged: {error}; the run cannot be resumed") from None

    def changed_versions(self) -> list[str]:
        """What differs from the software the run was started with; exact resume needs the same."""
        then = self._read_json(VERSIONS) or {}
        return [f"{name} {then.get(name)} -> {now}" for name, now in versions().items() if then.get(name) != now]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory against a second process; the lock ends with the process, however it ends."""
        with (self.path / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunDirError(f"{self.path} is in use by another process; wait for it or stop it") from None
            yield

    def load(self) -> tuple[Checkpoint | None, list[Record], list[Path]]:
        """The newest whole checkpoint, the records up to it, and damaged checkpoints passed over.

        Cuts rounds.jsonl back to the checkpoint, so that going on neither doubles nor tears a line.
        """
        for directory in (self.path, self.path / CHECKPOINTS):
            remove_drafts(directory)
        last, damaged = self.checkpoints.load()
        upto = last.round if last else 0
        kept = [record for record in self.records() if record["round"] <= upto]
        if [record["round"] for record in kept] != list(range(1, upto + 1)):
            raise RunDirError(f"{self.path / ROUNDS} lacks rounds before the checkpoint of round {upto}; start anew")
        write_atomically(self.path / ROUNDS, b"".join(_line(record) for record in kept))
        return last, kept, damaged

    def records(self) -> list[Record]:
        """The rounds written so far; a torn last line does not count."""
        path = self.path / ROUNDS
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            raise RunDirError(f"{path} is damaged; the rounds in it cannot be read") from None

    def append(self, record: Record) -> None:
        """Write one round."""
        append_line(self.path / ROUNDS, _line(record).decode().rstrip("\n"))

    def finish(self, summary: Record) -> None:
        """Write the summary: the run is complete."""
        write_atomically(self.path / SUMMARY, _json(summary))

    def summary(self) -> Record | None:
        """The summary of a finished run."""
        return self._read_json(SUMMARY)

    def _read_json(self, name: str) -> Record | None:
        path = self.path / name
        if not path.exists():
            return None
        try:
            found: Record = json.loads(path.read_text())
        except ValueError:
            raise RunDirError(f"{path} is damaged; remove it, then `fedbiad resume {self.path}`") from None
        return found


def check_free(path: Path) -> None:
    """Refuse a directory that holds another run or anything else."""
    for place in (path, *path.parents):
        if place.exists() and not place.is_dir():
            raise RunDirError(f"{place} is a file; choose another --out")
    if (path / PLAN).exists():
        hint = f"`fedbiad resume {path}` goes on with it"
        raise RunDirError(f"{path} already holds a run; {hint}, or choose another --out")
    present = [entry.name for entry in path.iterdir()] if path.exists() else []
    # what a run killed before its plan was written leaves behind
    foreign = [name for name in present if name not in (VERSIONS, LOCK, CHECKPOINTS) and not name.startswith(".")]
    if foreign:
        raise RunDirError(f"{path} is not empty ({foreign[0]}); choose another --out")


def _line(record: Record) -> bytes:
    return json.dumps(record, allow_nan=True).encode() + b"\n"


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + os.linesep).encode()
