"""Several plans side by side: every cell is an ordinary run in its own process and directory.

A comparison that was stopped goes on where it was; finished runs are taken as they are.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbiad.errors import FedbiadError, RunDirError, RunError
from fedbiad.experiment import Record
from fedbiad.files import safe_name
from fedbiad.plan import Plan, to_dict, to_toml
from fedbiad.rundir import PLAN, ROUNDS, RunDir

INTERRUPTED = 130

COUNTS = ("upload_per_client", "download_per_client", "total_upload", "total_download")

STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Two-sided 95 % points of Student's t for 2, 3, ... 10 pairs."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison: its label (usually the method), its plan (with the seed), its directory."""

    label: str
    plan: Plan
    path: Path

    @property
    def name(self) -> str:
        """The label and the seed."""
        return f"{self.label} seed {self.plan.seed}"


def cells(plans: dict[str, Plan], seeds: Sequence[int], out: Path) -> list[Cell]:
    """Every labelled plan with every seed, seed by seed."""
    return [
        Cell(label, plan.replace(seed=seed), out / f"{safe_name(label)}-seed{seed}")
        for seed in seeds
        for label, plan in plans.items()
    ]


def check(todo: Sequence[Cell]) -> None:
    """Refuse directories that hold a run of another plan, before anything is started."""
    for cell in todo:
        if (cell.path / PLAN).exists():
            found, wanted = _essence(RunDir(cell.path).plan()), _essence(cell.plan)
            differing = [key for key in wanted if found.get(key) != wanted[key]]
            if differing:
                raise RunDirError(
                    f"{cell.path} holds a run of another plan (it differs in {', '.join(differing)}); "
                    f"choose another --out, e.g. {cell.path.parent}-2, or remove it"
                )


def _essence(plan: Plan) -> dict[str, Any]:
    """What decides the result of a run: not how the work is done, nor the options of methods that do not run."""
    options = [None if part is None else dataclasses.asdict(part) for part in plan.resolved()]
    return {**to_dict(plan), "engine": None, "watch": None, "methods": None, "compressors": None, "options": options}


def run(
    todo: Sequence[Cell],
    jobs: int,
    on_progress: Callable[[Cell, int], None],
    stop: Callable[[], bool],
    on_finish: Callable[[Cell], None] = lambda _: None,
) -> list[Record]:
    """Run all cells, `jobs` at a time; returns their summaries in order, or raises after the first that failed."""
    check(todo)
    waiting = [cell for cell in todo if RunDir(cell.path).summary() is None]
    active: list[tuple[Cell, subprocess.Popen[bytes], Path]] = []
    told = False
    with tempfile.TemporaryDirectory(prefix="fedbiad-") as scratch:
        try:
            while (waiting and not stop()) or active:
                while waiting and len(active) < jobs and not stop():
                    cell = waiting.pop(0)
                    active.append((cell, *_launch(cell, Path(scratch))))
                time.sleep(0.2)
                if stop() and not told:
                    told = True
                    for _, process, _ in active:
                        process.terminate()  # ends after its current round
                for entry in list(active):
                    cell, process, log = entry
                    on_progress(cell, _rounds_done(cell))
                    code = process.poll()
                    if code is not None:
                        active.remove(entry)
                        if code == 0:
                            on_finish(cell)
                        if code not in (0, INTERRUPTED) and not told:
                            raise RunError(f"{cell.name} failed:\n{_why(code, log)}")
        finally:
            for _, process, _ in active:
                process.terminate()
            for _, process, _ in active:
                process.wait()
    summaries = [RunDir(cell.path).summary() for cell in todo]
    return [summary for summary in summaries if summary is not None]


def _launch(cell: Cell, scratch: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start (or go on with) one run as a process of its own; its messages go to a file."""
    name = cell.path.name
    log = scratch / f"{name}.log"
    if (cell.path / PLAN).exists():
        engine = cell.plan.engine
        address = [] if engine.address is None else ["--ray-address", engine.address]
        arguments = ["resume", str(cell.path), "--transport", engine.transport, *address]
    else:
        plan = scratch / f"{name}.toml"
        plan.write_text(to_toml(cell.plan))
        arguments = ["run", str(plan), "--out", str(cell.path)]
    command = [sys.executable, "-m", "fedbiad", *arguments, "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(cell.plan.engine.threads)}
    with log.open("wb") as stream:
        # a session of its own: Ctrl-C reaches this process alone, which then tells the runs to end
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=stream, env=environment, start_new_session=True
        )
    return process, log


def _why(code: int, log: Path) -> str:
    """What a process that failed has said, and if a signal ended it, which."""
    said = log.read_text().strip()
    if code < 0:
        name = signal.Signals(-code).name
        memory = " (out of memory? try fewer --jobs)" if name == "SIGKILL" else ""
        said = f"{said}\nended by {name}{memory}; the same command goes on with what is missing".strip()
    return said


def _rounds_done(cell: Cell) -> int:
    path = cell.path / ROUNDS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def table(todo: Sequence[Cell]) -> list[dict[str, Any]]:
    """One row a label: means over the seeds and their spread (sample standard deviation)."""
    rows: list[dict[str, Any]] = []
    for label in dict.fromkeys(cell.label for cell in todo):
        own = [cell for cell in todo if cell.label == label]
        found = [summary for cell in own if (summary := RunDir(cell.path).summary()) is not None]
        if len(found) < len(own):
            raise FedbiadError(f"{label}: {len(own) - len(found)} of {len(own)} runs are not finished")
        last_five = [summary["accuracy_last_five"] for summary in found]
        rows.append({
            "label": label,
            "seeds": [cell.plan.seed for cell in own],
            **_mean_and_spread("accuracy", [summary["accuracy"] for summary in found]),
            **_mean_and_spread("accuracy_last_five", last_five),
            **{key: _mean(found, key) for key in ("loss", "resampled_share", "failed_updates", "eval_samples", "lttr",
                                                  "seconds")},
            **{key: _mean_counts([summary[key] for summary in found]) for key in COUNTS},
            "time_to_accuracy": _mean(found, "time_to_accuracy", all_needed=True),
            "target_accuracy": found[0]["target_accuracy"],
            "lowest_loss": _mean_of([lowest_loss(RunDir(cell.path).records()) for cell in own]),
        })  # fmt: skip
    return rows


def lowest_loss(records: Sequence[Record]) -> dict[str, float] | None:
    """The least loss of the rounds that were judged, and the round."""
    judged = [record for record in records if record["loss"] is not None]
    if not judged:
        return None
    best = min(judged, key=lambda record: float(record["loss"]))
    return {"loss": float(best["loss"]), "round": float(best["round"])}


def _mean_of(found: Sequence[dict[str, float] | None]) -> dict[str, float] | None:
    known = [one for one in found if one is not None]
    return {key: float(np.mean([one[key] for one in known])) for key in known[0]} if known else None


def verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Each label against the first: points of accuracy (last five rounds) and share of the upload, with the noise."""
    first, *others = rows
    lines = []
    for row in others:
        points = 100 * (row["accuracy_last_five"] - first["accuracy_last_five"])
        share = row["upload_per_client"]["encoded"] / first["upload_per_client"]["encoded"]
        lines.append(f"{row['label']} uploads {percent(share)} of {first['label']}'s bytes at {points:+.2f} points "
                     f"({_significance(row, first)})")  # fmt: skip
    return lines


def _significance(row: dict[str, Any], first: dict[str, Any]) -> str:
    """Whether a difference is beyond chance; seeds are paired: they share data, partition and selected clients."""
    pairs = zip(row["accuracy_last_five_values"], first["accuracy_last_five_values"], strict=True)
    gaps = [own - other for own, other in pairs]
    if len(gaps) < 2:
        a, n = first["accuracy_last_five"], first["eval_samples"]
        return f"one seed; two standard errors of {n:,.0f} samples are {200 * np.sqrt(2 * a * (1 - a) / n):.2f} points"
    margin = STUDENT[min(len(gaps), len(STUDENT) + 1) - 2] * float(np.std(gaps, ddof=1)) / np.sqrt(len(gaps))
    beyond = abs(float(np.mean(gaps))) > margin
    return f"{'beyond' if beyond else 'within'} the noise: ±{100 * margin:.2f} at 95 %, {len(gaps)} seeds"


def _mean_and_spread(name: str, values: list[float]) -> dict[str, Any]:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {name: float(np.mean(values)), f"{name}_std": spread, f"{name}_values": values}


def percent(share: float) -> str:
    """A share in per cent with as many digits as it needs."""
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g} %"


def _mean(summaries: list[Record], key: str, all_needed: bool = False) -> float | None:
    values = [summary[key] for summary in summaries if summary.get(key) is not None]
    return float(np.mean(values)) if values and (len(values) == len(summaries) or not all_needed) else None


def _mean_counts(counts: list[Record]) -> Record:
    """The mean of byte counts, name by name."""
    return {name: _mean(counts, name, all_needed=True) for name in counts[0]}
