"""The paper's tables, run on real data: the same search for every method on validation data, then the test data.

Every run is a run directory of its own, so that a reproduction that was stopped goes on where it was. What came out is
one small JSON file a table and data set; `results.py` makes the page of it.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbiad import compare
from fedbiad.compare import Cell
from fedbiad.errors import PlanError
from fedbiad.files import safe_name, write_atomically
from fedbiad.plan import Plan, load, to_dict
from fedbiad.rundir import CHECKPOINTS, RunDir, versions

RATES = (0.03, 0.06, 0.12, 0.24)
"""Learning rates tried for every method."""
TUNING_ROUNDS = 20
TUNING_SEED = 0
TIMING_ROUNDS = 7
"""Rounds whose median length is told; runs of other methods beside them would stretch it."""

TABLES: dict[str, dict[str, str]] = {
    "table1": {
        "FedAvg": "fedavg",
        "FedDrop": "feddrop",
        "AFD": "afd:paper",
        "FedMP": "fedmp:paper",
        "FjORD": "fjord:paper",
        "HeteroFL": "heterofl:paper",
        "FedBIAD": "fedbiad",
    },
    "table2": {
        "FedPAQ": "fedpaq:paper",
        "SignSGD": "signsgd:paper",
        "STC": "stc:paper",
        "DGC": "dgc:paper",
        "AFD+DGC": "afd:paper+dgc:paper",
        "Fjord+DGC": "fjord:paper+dgc:paper",
        "FedBIAD+DGC": "fedbiad+dgc:paper",
    },
}
"""The methods of each table under the paper's names."""

SIZES = {"mnist": 32, "fmnist": 32}
"""The data sets, and the side of their images: the upload sizes printed for the image models imply 32 x 32 inputs."""


@dataclass(frozen=True)
class Reproduction:
    """One table on one data set."""

    table: str
    data: str
    out: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    rounds: int | None = None

    def base(self) -> Plan:
        """The plan all runs share; a run is short, so that only its end is kept."""
        plan = load(self.data, {"data.image_size": str(SIZES[self.data])})
        rounds = self.rounds or plan.rounds
        return plan.replace(rounds=rounds, engine={**to_dict(plan)["engine"], "checkpoint_every": rounds})

    def tuning(self) -> dict[str, list[Cell]]:
        """For each method, a short run with every learning rate, judged on validation data."""
        base = self.base()
        base = base.replace(evaluate_on="validation", rounds=min(TUNING_ROUNDS, base.rounds), seed=TUNING_SEED)
        return {
            label: [self._cell(f"{label} lr={rate}", with_rate(base, name, rate), "tuning") for rate in RATES]
            for label, name in TABLES[self.table].items()
        }

    def final(self, rates: dict[str, float]) -> dict[str, list[Cell]]:
        """For each method the runs at its best learning rate, judged on test data."""
        base = self.base()
        return {
            label: [self._cell(label, with_rate(base, name, rates[label]).replace(seed=s), "test") for s in self.seeds]
            for label, name in TABLES[self.table].items()
        }

    def timing(self, rates: dict[str, float]) -> dict[str, list[Cell]]:
        """For each method a few rounds by themselves, one run after another: how long its training takes."""
        base = self.base().replace(rounds=TIMING_ROUNDS)
        return {
            label: [self._cell(label, with_rate(base, name, rates[label]), "time")]
            for label, name in TABLES[self.table].items()
        }

    def _cell(self, label: str, plan: Plan, stage: str) -> Cell:
        return Cell(label, plan, self.out / self.data / stage / f"{safe_name(label)}-seed{plan.seed}")


def with_rate(plan: Plan, method: str, rate: float) -> Plan:
    """The plan for a method at a learning rate."""
    return plan.replace(method=method, training={**to_dict(plan)["training"], "learning_rate": rate})


OnProgress = Callable[[str, Mapping[str, int], Mapping[str, int], str, int], None]
"""Told the stage, its runs with their rounds, the rounds there were before, the run that goes on and its rounds now."""


def reproduce(
    todo: Reproduction, jobs: int, results: Path, on_progress: OnProgress, stop: Callable[[], bool]
) -> Path | None:
    """Run what is missing and write the result file; None if asked to stop before the end."""
    if todo.table not in TABLES or todo.data not in SIZES:
        raise PlanError([f"there are the tables {', '.join(TABLES)} for {', '.join(SIZES)}"], "reproduce")
    tuning = todo.tuning()
    if not _run("search", tuning, jobs, on_progress, stop):
        return None
    scores = {label: [_last_five(cell) for cell in cells] for label, cells in tuning.items()}
    rates = {label: RATES[max(range(len(RATES)), key=own.__getitem__)] for label, own in scores.items()}
    final = todo.final(rates)
    if not _run("test", final, jobs, on_progress, stop):
        return None
    timing = todo.timing(rates)
    if not _run("time", timing, 1, on_progress, stop):
        return None
    base = todo.base()
    rows = compare.table([cell for cells in final.values() for cell in cells])
    for row in rows:
        row["method"] = TABLES[todo.table][row["label"]]
        row["learning_rate"] = rates[row["label"]]
        row.update(_times(timing[row["label"]][0], final[row["label"]], base.target_accuracy))
        row["search"] = dict(zip(map(str, RATES), scores[row["label"]], strict=True))
    found = {
        "table": todo.table, "data": todo.data, "plan": to_dict(base), "seeds": list(todo.seeds),
        "search": {"rates": RATES, "rounds": min(TUNING_ROUNDS, base.rounds), "seed": TUNING_SEED},
        "versions": versions(), "rows": rows,
    }  # fmt: skip
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{todo.table}-{todo.data}.json"
    write_atomically(path, (json.dumps(found, indent=1) + "\n").encode())
    return path


def _times(timed: Cell, tested: list[Cell], target: float | None) -> dict[str, Any]:
    """Local training time and time-to-accuracy: the rounds each seed needed, at the length of an undisturbed round."""
    rounds = [record["seconds"] for record in RunDir(timed.path).records()]
    each = statistics.median(seconds["round"] for seconds in rounds)
    needed = [_rounds_to(RunDir(cell.path).records(), target) for cell in tested]
    reached = [count for count in needed if count is not None]
    return {
        "lttr": statistics.median(seconds["local"] for seconds in rounds),
        "round_seconds": each,
        "rounds_to_target": needed,
        "time_to_accuracy": each * statistics.mean(reached) if len(reached) == len(needed) else None,
    }


def _rounds_to(records: Sequence[Mapping[str, Any]], target: float | None) -> int | None:
    """The first round of at least this accuracy."""
    good = (record["round"] for record in records if target is not None and (record["accuracy"] or 0.0) >= target)
    return next(good, None)


def _run(
    stage: str, groups: dict[str, list[Cell]], jobs: int, on_progress: OnProgress, stop: Callable[[], bool]
) -> bool:
    """Run the cells of a stage; whether all are finished."""
    cells = [cell for group in groups.values() for cell in group]
    totals = {cell.name: cell.plan.rounds for cell in cells}
    before = {cell.name: len(RunDir(cell.path).records()) for cell in cells}
    finished = compare.run(
        cells, jobs, lambda cell, rounds: on_progress(stage, totals, before, cell.name, rounds), stop, _tidy
    )
    return len(finished) == len(cells)


def _tidy(cell: Cell) -> None:
    """A finished run needs no checkpoint, and residuals of a thousand clients are large."""
    shutil.rmtree(cell.path / CHECKPOINTS, ignore_errors=True)


def _last_five(cell: Cell) -> float:
    summary: dict[str, Any] | None = RunDir(cell.path).summary()
    return -1.0 if summary is None else float(summary["accuracy_last_five"])
