"""What the runs came to: the kept settings, the agreement of the accuracies, the table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

OURS = "ours"
TOLERANCE = 0.015
"""How far apart accuracies of the same work may lie."""


@dataclass(frozen=True)
class Run:
    """One run of one peer, as its script printed it, and how busy the machine was before."""

    peer: str
    version: str
    epochs: int
    rounds: int
    seconds: float
    rounds_per_second: float
    accuracy: float
    threads: int
    workers: int
    evaluations: dict[int, float]
    repeat: int = 0
    load: float = 0.0

    @property
    def setting(self) -> tuple[int, int]:
        """Threads and workers."""
        return self.threads, self.workers


@dataclass(frozen=True)
class Agreement:
    """The peers' accuracies after the same round."""

    epochs: int
    round: int
    accuracies: dict[str, float]

    @property
    def spread(self) -> float:
        """The best minus the worst."""
        return max(self.accuracies.values()) - min(self.accuracies.values())

    @property
    def holds(self) -> bool:
        """Whether they did the same work, as far as accuracies can tell."""
        return self.spread <= TOLERANCE


@dataclass(frozen=True)
class Row:
    """A line of the table; `ratio` is None where ours did not run."""

    peer: str
    version: str
    epochs: int
    setting: tuple[int, int]
    median: float
    lowest: float
    highest: float
    ratio: float | None


def read_line(output: str, repeat: int, load: float) -> Run | None:
    """The run in a script's output: its last line that is one; simulators print other things, too."""
    for line in reversed(output.splitlines()):
        if not line.startswith('{"peer"'):
            continue
        found: dict[str, Any] = json.loads(line)
        found["evaluations"] = {int(number): value for number, value in found["evaluations"].items()}
        return Run(**found, repeat=repeat, load=load)
    return None


def fastest_setting(runs: Iterable[Run]) -> tuple[int, int]:
    """The threads and workers of the fastest run."""
    return max(runs, key=lambda run: run.rounds_per_second).setting


def rows(runs: Sequence[Run], epochs: int) -> list[Row]:
    """A line for each peer at its fastest setting, the fastest peer first."""
    found = []
    for peer in dict.fromkeys(run.peer for run in runs if run.epochs == epochs):
        own = [run for run in runs if run.peer == peer and run.epochs == epochs]
        setting = _kept_setting(own)
        speeds = [run.rounds_per_second for run in own if run.setting == setting]
        version = own[0].version
        found.append(Row(peer, version, epochs, setting, statistics.median(speeds), min(speeds), max(speeds), None))
    ours = next((row.median for row in found if row.peer == OURS), None)
    found = [Row(**{**vars(row), "ratio": None if ours is None else ours / row.median}) for row in found]
    return sorted(found, key=lambda row: -row.median)


def _kept_setting(runs: Sequence[Run]) -> tuple[int, int]:
    """The setting that was run in the last repeat, or the fastest of those."""
    last = max(run.repeat for run in runs)
    return fastest_setting(run for run in runs if run.repeat == last)


def agreement(runs: Sequence[Run], epochs: int) -> Agreement | None:
    """The peers' mean accuracies after the last round that all of them were judged in; None if there is none."""
    own = [run for run in runs if run.epochs == epochs]
    common = set.intersection(*(set(run.evaluations) for run in own)) if own else set()
    if not common:
        return None
    last = max(common)
    accuracies = {
        peer: statistics.mean(run.evaluations[last] for run in own if run.peer == peer)
        for peer in dict.fromkeys(run.peer for run in own)
    }
    return Agreement(epochs, last, accuracies)


def table(found: Sequence[Row]) -> str:
    """The lines as text; the ratio says how many times as fast ours is."""
    head = ("simulator", "version", "threads x workers", "rounds/s", "lowest to highest", "ours / it")
    lines = [head] + [
        (
            row.peer,
            row.version,
            f"{row.setting[0]} x {row.setting[1]}",
            f"{row.median:.2f}",
            f"{row.lowest:.2f} to {row.highest:.2f}",
            "-" if row.ratio is None else f"{row.ratio:.2f}",
        )
        for row in found
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shape = "  ".join(f"{{:{'<' if i < 3 else '>'}{width}}}" for i, width in enumerate(widths))
    return "\n".join(shape.format(*line) for line in lines)
