"""Runs found on disk, read, and put side by side: a section a data set, a group a label, a run a seed."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbiad.errors import FedbiadError, RunDirError
from fedbiad.experiment import Record
from fedbiad.methods import METHODS
from fedbiad.plan import Plan, to_dict
from fedbiad.report.rounds import Round, check
from fedbiad.rundir import PLAN, ROUNDS, RunDir


@dataclass(frozen=True)
class Run:
    """One run directory."""

    path: Path
    plan: Plan
    records: list[Record]
    rounds: list[Round]
    summary: Record | None

    @property
    def finished(self) -> bool:
        """Whether the run wrote its summary."""
        return self.summary is not None

    @property
    def timed(self) -> bool:
        """Whether every round has the times of clients and links."""
        told = (r.seconds.get(name) is not None for r in self.rounds for name in ("local", "round"))
        return bool(self.rounds) and all(told)


@dataclass(frozen=True)
class Group:
    """Runs of one plan with different seeds."""

    label: str
    runs: tuple[Run, ...]

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs a mean is taken of: the finished ones, or all that have a round if none is finished."""
        finished = tuple(run for run in self.runs if run.finished and run.rounds)
        return finished or tuple(run for run in self.runs if run.rounds)


@dataclass(frozen=True)
class Section:
    """All groups of one data set, judged on the same part of it."""

    data: str
    evaluate_on: str
    groups: tuple[Group, ...]
    repeated: tuple[Path, ...]

    @property
    def id(self) -> str:
        """Its anchor in the page."""
        return f"{self.data}-{self.evaluate_on}"

    @property
    def title(self) -> str:
        """The data set, and what is judged on if that is not the test set."""
        return self.data if self.evaluate_on == "test" else f"{self.data} ({self.evaluate_on} data)"

    @property
    def runs(self) -> list[Run]:
        """All runs, group by group."""
        return [run for group in self.groups for run in group.runs]


def find(directories: Sequence[Path]) -> list[Path]:
    """The run directories named, or one or two levels below what is named."""
    found: dict[Path, Path] = {}
    for directory in directories:
        if not directory.is_dir():
            raise RunDirError(f"{directory} is no directory; name a run directory, or a directory of them")
        depths = (directory.glob(f"{below}{PLAN}") for below in ("", "*/", "*/*/"))
        here = next((paths for depth in depths if (paths := sorted(path.parent for path in depth))), [])
        if not here:
            hint = f"start one with `fedbiad run PLAN --out {directory / 'run'}`"
            raise RunDirError(f"{directory} holds no run (no {PLAN} in it, nor in its subdirectories); {hint}")
        found |= {path.resolve(): path for path in here}
    if not found:
        raise RunDirError("no directory named; name a run directory, or a directory of them")
    return list(found.values())


def read(path: Path) -> Run:
    """A run, finished or not."""
    place = RunDir.open(path)
    hint = f"name directories without {path}, or remove it and run its plan again"
    try:
        records = place.records()
    except RunDirError as error:
        raise RunDirError(f"{error}; {hint}") from None
    try:
        rounds = check(records)
    except ValueError as problem:
        raise RunDirError(f"{path / ROUNDS} is damaged, or of another version ({problem}); {hint}") from None
    return Run(path, place.plan(), records, rounds, place.summary())


def sections(runs: Sequence[Run]) -> list[Section]:
    """A section for each data set and part of it that is judged on; groups in the order of the methods."""
    apart: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        apart.setdefault((run.plan.data.name, run.plan.evaluate_on), []).append(run)
    parts = []
    for (data, evaluate_on), own in sorted(apart.items()):
        same: dict[str, dict[int, Run]] = {}
        # of a plan and seed run twice, the longer counts: a second copy would feign a spread of zero
        for run in sorted(own, key=lambda run: (not run.finished, -len(run.rounds))):
            same.setdefault(_identity(run.plan), {}).setdefault(run.plan.seed, run)
        kept = [tuple(seeds[seed] for seed in sorted(seeds)) for seeds in same.values()]
        used = {run.path for group in kept for run in group}
        groups = [Group(label, group) for label, group in zip(_labels(kept), kept, strict=True)]
        repeated = tuple(run.path for run in own if run.path not in used)
        parts.append(Section(data, evaluate_on, tuple(sorted(groups, key=_order)), repeated))
    if not parts:
        raise FedbiadError("no run to report on")
    return parts


def differences(runs: Iterable[Run]) -> list[str]:
    """In what plans differ beside method and seed; options are compared between runs of one method only."""
    values: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in _settings(run.plan).items():
            values.setdefault(key, {})[value] = None
    return [f"{key} ({', '.join(each)})" for key, each in values.items() if len(each) > 1]


def _settings(plan: Plan) -> dict[str, str]:
    tables = {key: value for key, value in _essence(plan).items() if key not in ("method", "options")}
    flat = {key: value for key, value in _options(plan).items() if not key.endswith(".dropout_rate")}
    for key, value in tables.items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {key: value}
    return {key: json.dumps(value, default=str).strip('"') for key, value in flat.items()}


def _identity(plan: Plan) -> str:
    return json.dumps(_essence(plan), sort_keys=True, default=str)


def _essence(plan: Plan) -> dict[str, Any]:
    """What decides the result of a run but for the seed: not how the work is done, nor how the plan is called."""
    left_out = ("engine", "methods", "compressors", "seed", "name", "watch")
    return {**{key: value for key, value in to_dict(plan).items() if key not in left_out}, "options": _options(plan)}


def _options(plan: Plan) -> dict[str, Any]:
    """Every option of the method and of the compressor by its dotted key."""
    method, compressor = plan.resolved()
    found = {f"methods.{plan.parsed_name.method}.{key}": value for key, value in dataclasses.asdict(method).items()}
    if compressor is not None:
        name = f"compressors.{plan.parsed_name.compressor}"
        found |= {f"{name}.{key}": value for key, value in dataclasses.asdict(compressor).items()}
    return found


def _labels(groups: Sequence[tuple[Run, ...]]) -> list[str]:
    """The methods' names if they tell the groups apart, else the directories' without the seed, else numbered."""
    methods = [group[0].plan.method for group in groups]
    names = [re.sub(r"-seed\d+$", "", group[0].path.resolve().name) for group in groups]
    for labels in (methods, names):
        if len(set(labels)) == len(labels):
            return labels
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def _order(group: Group) -> tuple[int, str, str]:
    """By method, each without a compressor first."""
    name = group.runs[0].plan.parsed_name
    return (list(METHODS).index(name.method), name.compressor or "", group.label)
