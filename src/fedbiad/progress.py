"""What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedbiad.experiment import Record


def megabytes(count: float) -> str:
    """Bytes as decimal megabytes, as the paper counts."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def figures(record: Record) -> str:
    """Accuracy, loss, megabytes uploaded and the share of checks that changed the pattern."""
    parts = [] if record["accuracy"] is None else [f"acc {record['accuracy']:.2%}", f"loss {record['loss']:.3f}"]
    parts.append(f"up {megabytes(record['total_upload']['encoded'])}")
    if record["resampled_share"] is not None:
        parts.append(f"resampled {record['resampled_share']:.0%}")
    if record["failed"]:
        parts.append(f"left out: {', '.join(map(str, record['failed'][:3]))}{' ...' if record['failed'][3:] else ''}")
    return "  ".join(parts)


def bars(console: Console) -> Progress:
    """Rounds done, time spent, time left, and a line of figures."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[figures]}"), console=console,
    )  # fmt: skip


class Reporter:
    """Shows the rounds of one run on standard error."""

    def __init__(self, label: str, rounds: int, done: int = 0, quiet: bool = False) -> None:
        self._label, self._rounds, self._done, self._quiet = label, rounds, done, quiet
        self._began = time.monotonic()
        self._live = sys.stderr.isatty() and not quiet
        self._progress = bars(Console(stderr=True)) if self._live else None
        self._task: Any = None
        if self._progress:
            self._task = self._progress.add_task(label, total=rounds, completed=done, figures="")

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._progress:
            self._progress.stop()

    def __call__(self, record: Record) -> None:
        """Show one round."""
        if self._progress:
            self._progress.update(self._task, completed=record["round"], figures=figures(record))
        elif not self._quiet:
            line = f"{self._label}  round {record['round']}/{self._rounds}  {figures(record)}"
            print(f"{line}  {self._left(record['round'])}", file=sys.stderr, flush=True)

    def _left(self, round_: int) -> str:
        each = (time.monotonic() - self._began) / max(round_ - self._done, 1)
        minutes, seconds = divmod(int(each * (self._rounds - round_) + 0.5), 60)
        return f"left {minutes}:{seconds:02d}"


class StageProgress:
    """Shows how far the runs of a stage are: one bar on a terminal, a line for every finished run elsewhere."""

    def __init__(self, label: str, quiet: bool = False) -> None:
        self._label, self._quiet = label, quiet
        self._live = sys.stderr.isatty() and not quiet
        self._progress = bars(Console(stderr=True, quiet=not self._live))
        self._task = self._progress.add_task(label, total=None, figures="")
        self._done: dict[str, int] = {}
        self._stage = ""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._progress.stop()

    def __call__(self, stage: str, totals: Mapping[str, int], before: Mapping[str, int], run: str, rounds: int) -> None:
        """The runs of the stage with their rounds, the rounds there were before, and how far one of them is now."""
        if stage != self._stage:
            self._stage, self._done = stage, dict(before)
        if rounds == totals[run] and self._done[run] < rounds and not self._live and not self._quiet:
            print(f"{self._label} {stage}: {run} done", file=sys.stderr, flush=True)
        self._done[run] = rounds
        self._progress.update(
            self._task, description=f"{self._label} {stage}", total=sum(totals.values()),
            completed=sum(self._done.values()), figures=run,
        )  # fmt: skip
