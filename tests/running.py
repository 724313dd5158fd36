"""Small runs on the digits, and what must be the same after two of them."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedbiad import plan as plans
from fedbiad.checkpoint import Checkpoints
from fedbiad.cli import main
from fedbiad.compressors import COMPRESSORS
from fedbiad.methods import METHODS
from fedbiad.plan import Plan

SMALL = {
    "rounds": "5",
    "data.clients": "12",
    "model.hidden": "[16]",
    "training.selected": "4",
    "training.iterations": "8",
    "methods.fedbiad.stage_boundary": "2",
    "methods.fedbiad-letter.stage_boundary": "2",
    "compressors.evidence.budget": "0.05",
}
"""The digits with few clients and rounds; both stages of FedBIAD, and a check of the loss trend after iteration 6.

A thousand weights are too few for the usual budget of evidence coding: it would be below a message's header."""

EVERY = ["+".join(filter(None, pair)) for pair in zip_longest(METHODS, COMPRESSORS)]
"""Every method and every compressor: some methods with one, the others by themselves."""


def small_plan(method: str = "fedbiad", **changes: Any) -> Plan:
    """The small plan; `changes` are top-level keys."""
    return plans.load("digits", SMALL).replace(method=method, **changes)


def settings(**changes: str) -> list[str]:
    """The small plan as arguments of the command."""
    return [part for key, value in {**SMALL, **changes}.items() for part in ("--set", f"{key}={value}")]


def nothing(_: object) -> None:
    """For rounds and warnings that no one looks at."""


def stop_after(rounds: int) -> Callable[[], bool]:
    """Asks a run to stop after this many of its rounds."""
    left = rounds

    def stop() -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    return stop


def checkpoints(directory: Path) -> list[Path]:
    """A run's checkpoints, oldest first."""
    return sorted((directory / "checkpoints").iterdir())


def outcome(directory: Path) -> dict[str, Any]:
    """What a run came to, without the times: model, what server and clients remember, rounds and summary."""
    rounds = [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((directory / "summary.json").read_text())
    for record in (*rounds, summary):
        del record["seconds"]
    for timed in ("lttr", "time_to_accuracy"):
        del summary[timed]
    last, damaged = Checkpoints(directory / "checkpoints").load()
    assert last is not None
    assert not damaged
    model = {name: value.numpy().tobytes() for name, value in last.u.items()}
    memory = {name: value.tobytes() for name, value in (*last.server.items(), *last.states.items())}
    return {"round": last.round, "model": model, "memory": memory, "rounds": rounds, "summary": summary}


def snapshot(directory: Path) -> dict[str, bytes | None]:
    """Every file and directory below, with content."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it printed."""

    code: object
    out: str
    err: str


def fedbiad(*arguments: str) -> Ended:
    """The command, in this process; an exception that is not turned into an exit code passes through."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with (
            patch.object(sys, "argv", ["fedbiad", *arguments]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as end:
        return Ended(end.code, out.getvalue(), err.getvalue())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    raise AssertionError("main() returned")
