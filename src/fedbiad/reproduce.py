"""The paper's tables, run on real data: the same search for every method on validation data, then the test data.

Every run is a run directory of its own, so that a reproduction that was stopped goes on where it was. What came out is
one small JSON file a table and data set, in which a row stands as soon as its runs are finished: rows that it has
already are not run again, wherever they were run. `results.py` makes the page of it.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbiad import compare
from fedbiad.compare import Cell
from fedbiad.errors import DataError, PlanError
from fedbiad.files import safe_name, write_atomically
from fedbiad.plan import Plan, from_dict, load, to_dict
from fedbiad.rundir import CHECKPOINTS, RunDir
from fedbiad.tables import DATA, EXTRA, ONLY, SETTINGS, SPECIAL, TABLES, Setting, Variant
from fedbiad.versions import versions

TUNING_SEED = 0


@dataclass(frozen=True)
class Reproduction:
    """One table on one data set."""

    table: str
    data: str
    out: Path
    seeds: tuple[int, ...] | None = None
    rounds: int | None = None
    only: tuple[str, ...] | None = None
    """Labels of the rows wanted; None: all."""
    search_rounds: int | None = None
    """Of each run of the search; None: the setting's own."""

    @property
    def setting(self) -> Setting:
        """How the data set is reproduced."""
        place = (self.table, self.data)
        return SPECIAL[place] if place in SPECIAL else SETTINGS[self.data]

    @property
    def chosen_seeds(self) -> tuple[int, ...]:
        """The seeds asked for, or the setting's own."""
        return self.setting.seeds if self.seeds is None else self.seeds

    @property
    def rows(self) -> dict[str, Variant]:
        """The rows of the table for this data set."""
        place = (self.table, self.data)
        found = {**TABLES[self.table], **EXTRA.get(place, {})}
        return {label: found[label] for label in ONLY.get(place, tuple(found))}

    @property
    def wanted(self) -> dict[str, Variant]:
        """Those of the rows that are asked for."""
        unknown = [label for label in self.only or () if label not in self.rows]
        if unknown:
            known = "; ".join(self.rows)
            raise PlanError([f"{self.table} for {self.data} has no row {unknown[0]!r}; it has {known}"], "reproduce")
        return {label: row for label, row in self.rows.items() if self.only is None or label in self.only}

    def base(self) -> Plan:
        """The plan all runs share; image runs are short, so that only their end is kept.

        Residuals of a language model for a hundred clients would not fit into memory.
        """
        plan = load(self.setting.plan or self.data, self.setting.changes)
        rounds = self.rounds or plan.rounds
        kept = {"checkpoint_every": 5, "store": "disk"} if plan.model.name == "lstm" else {"checkpoint_every": rounds}
        return plan.replace(rounds=rounds, engine={**to_dict(plan)["engine"], **kept})

    @property
    def searched(self) -> int:
        """Rounds of each run of the search: no more than a run has."""
        return min(self.search_rounds or self.setting.search_rounds, self.base().rounds)

    def tuning(self, rows: Mapping[str, Variant] | None = None) -> dict[str, list[Cell]]:
        """For each method (of `rows`, if given), a short run at every point of the grid, judged on validation data."""
        base, setting = self.base(), self.setting
        base = base.replace(evaluate_on="validation", rounds=self.searched, seed=TUNING_SEED)
        base = base if setting.judged_by == "accuracy" else _judged_once(base)
        return {
            label: [
                self._cell(f"{label} {_point(setting, *point)}", _tuned(base, row, *point), "tuning")
                for point in setting.grid
            ]
            for label, row in (self.rows if rows is None else rows).items()
        }

    def final(self, best: Mapping[str, tuple[float, float]]) -> dict[str, list[Cell]]:
        """For each method the runs at its best point, judged on test data."""
        base = self.base()
        return {
            label: [
                self._cell(label, _tuned(base, row, *best[label]).replace(seed=seed), "test")
                for seed in self.chosen_seeds
            ]
            for label, row in self.rows.items()
            if label in best
        }

    def timing(self, best: Mapping[str, tuple[float, float]]) -> dict[str, list[Cell]]:
        """For each method a few rounds by themselves, one run after another: how long its training takes."""
        if not self.setting.timing_rounds:
            return {}
        base = _judged_once(self.base().replace(rounds=self.setting.timing_rounds))
        return {label: [self._cell(label, _tuned(base, self.rows[label], *point), "time")]
                for label, point in best.items()}  # fmt: skip

    def _cell(self, label: str, plan: Plan, stage: str) -> Cell:
        place = self.data if (self.table, self.data) not in SPECIAL else f"{self.data}-{self.table}"
        return Cell(label, plan, self.out / place / stage / f"{safe_name(label)}-seed{plan.seed}")


def _judged_once(plan: Plan) -> Plan:
    """The plan without an evaluation before its end."""
    return plan.replace(evaluate_every=plan.rounds, evaluate_last=1)


def _tuned(plan: Plan, row: Variant, rate: float, step: float) -> Plan:
    """The plan for a row of the table at a learning rate and a server step."""
    training = {**to_dict(plan)["training"], **row.training, "learning_rate": rate, "server_step": step}
    return plan.replace(method=row.method, training=training, **row.plan)


def _point(setting: Setting, rate: float, step: float) -> str:
    """A point of the grid in words; a server step that is the same for all is left out."""
    return f"lr={rate:g}" if len(setting.server_steps) == 1 else f"lr={rate:g} gamma={step:g}"


OnProgress = Callable[[str, Mapping[str, int], Mapping[str, int], str, int], None]
"""Told the stage, its runs with their rounds, the rounds there were before, the run that goes on and its rounds now."""


def reproduce(
    todo: Reproduction, jobs: int, results: Path, on_progress: OnProgress, stop: Callable[[], bool]
) -> Path | None:
    """Run what is missing and write the result file; None if asked to stop before the end."""
    if todo.data not in DATA.get(todo.table, ()):
        known = "; ".join(f"{table} for {', '.join(DATA[table])}" for table in TABLES)
        raise PlanError([f"there is {known}"], "reproduce")
    book = _Book(todo, results / f"{todo.table}-{todo.data}.json")
    setting, tuning = todo.setting, todo.tuning(book.missing())
    if not _run("search", tuning, jobs, on_progress, stop):
        return None
    scores = {label: [_found(cell, setting) for cell in cells] for label, cells in tuning.items()}
    choose = max if setting.judged_by == "accuracy" else min
    best = {label: setting.grid[choose(range(len(own)), key=own.__getitem__)] for label, own in scores.items()}
    final, timing = todo.final(best), todo.timing(best)

    def written(timed: Mapping[str, list[Cell]]) -> None:
        """Every row whose runs are finished, into the file."""
        for label, cells in final.items():
            if all(RunDir(cell.path).summary() is not None for cell in cells):
                book.add(label, cells, timed.get(label, []), scores[label], best[label])
        book.write()

    written({})
    if not _run("test", final, jobs, on_progress, stop, lambda: written({})):
        return None
    if not _run("time", timing, 1, on_progress, stop):
        return None
    written(timing)
    return book.path


class _Book:
    """The result file of a table: rows it has that were searched and tested in the same way stay as they are."""

    def __init__(self, todo: Reproduction, path: Path) -> None:
        self.todo, self.path, self.base = todo, path, todo.base()
        setting = todo.setting
        search = {"rates": list(setting.rates), "server_steps": list(setting.server_steps), "seed": TUNING_SEED,
                  "rounds": todo.searched, "judged_by": setting.judged_by}  # fmt: skip
        self.head = {"table": todo.table, "data": todo.data, "plan": to_dict(self.base), "search": search}
        self.rows: dict[str, dict[str, Any]] = {}
        if path.exists():
            before = read_result(path)
            plan = from_dict(before["plan"], str(path))
            same = {"plan": _essence(plan) == _essence(self.base), "search": {**SEARCHED, **before["search"]} == search}
            if not all(same.values()):
                other = " and ".join(key for key in same if not same[key])
                raise PlanError([f"{path} is of another {other}; move it away to run the table anew"], "reproduce")
            self.rows = {row["label"]: row for row in before["rows"]}

    def missing(self) -> dict[str, Variant]:
        """Rows asked for that are not there, or with other seeds, or without their times."""
        return {label: row for label, row in self.todo.wanted.items() if not self._whole(label, row)}

    def _whole(self, label: str, wanted: Variant) -> bool:
        row, seeds = self.rows.get(label), list(self.todo.chosen_seeds)
        if row is None or (row["seeds"], row["method"]) != (seeds, wanted.method):
            return False
        return row["lttr"] is not None or not self.todo.setting.timing_rounds

    def add(
        self, label: str, tested: list[Cell], timed: list[Cell], scores: list[float], best: tuple[float, float]
    ) -> None:
        """A row from its finished runs."""
        (row,) = compare.table(tested)
        setting = self.todo.setting
        row["method"] = self.todo.rows[label].method
        row["learning_rate"], row["server_step"] = best
        row.update(_times(timed, tested, self.base.target_accuracy))
        row["search"] = {_point(setting, *p): a for p, a in zip(setting.grid, scores, strict=True)}
        self.rows[label] = row

    def write(self) -> None:
        """The file, rows in the order of the table; nothing as long as there is none."""
        rows = [self.rows[label] for label in self.todo.rows if label in self.rows]
        if rows:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            found = {**self.head, "seeds": rows[0]["seeds"], "versions": versions(), "rows": rows}
            write_atomically(self.path, (json.dumps(found, indent=1) + "\n").encode())


SEARCHED = {"server_steps": [1.0], "judged_by": "accuracy"}
"""What searches were before files told it."""


def _essence(plan: Plan) -> dict[str, Any]:
    """What decides the rows of a table: not how the work is done."""
    return {**to_dict(plan), "engine": None}


def read_result(path: Path) -> dict[str, Any]:
    """A result file."""
    try:
        result: dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        raise DataError(f"{path} is damaged; remove it and run `fedbiad reproduce` again") from None
    return result


def _times(timed: list[Cell], tested: list[Cell], target: float | None) -> dict[str, Any]:
    """Local training time and time-to-accuracy: the rounds each seed needed, at the length of an undisturbed round.

    Without a run that was timed by itself there are only the rounds.
    """
    needed = [_rounds_to(RunDir(cell.path).records(), target) for cell in tested]
    if not timed:
        return {"lttr": None, "round_seconds": None, "rounds_to_target": needed, "time_to_accuracy": None}
    rounds = [record["seconds"] for record in RunDir(timed[0].path).records()]
    each = statistics.median(seconds["round"] for seconds in rounds)
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
    stage: str,
    groups: dict[str, list[Cell]],
    jobs: int,
    on_progress: OnProgress,
    stop: Callable[[], bool],
    on_finish: Callable[[], None] = lambda: None,
) -> bool:
    """Run the cells of a stage; whether all are finished."""
    cells = [cell for group in groups.values() for cell in group]
    totals = {cell.name: cell.plan.rounds for cell in cells}
    before = {cell.name: len(RunDir(cell.path).records()) for cell in cells}

    def tidy(cell: Cell) -> None:
        """A finished run needs no checkpoint, and residuals of a thousand clients are large."""
        shutil.rmtree(cell.path / CHECKPOINTS, ignore_errors=True)
        on_finish()

    finished = compare.run(
        cells, jobs, lambda cell, rounds: on_progress(stage, totals, before, cell.name, rounds), stop, tidy
    )
    return len(finished) == len(cells)


def _found(cell: Cell, setting: Setting) -> float:
    """What a run of the search is judged by; a run in which every client failed is the worst."""
    summary: dict[str, Any] | None = RunDir(cell.path).summary()
    key = "accuracy_last_five" if setting.judged_by == "accuracy" else "loss"
    if summary is None or summary[key] is None:
        return -1.0 if setting.judged_by == "accuracy" else math.inf
    return float(summary[key])
