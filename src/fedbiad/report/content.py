"""The numbers behind the charts, as plain lists: what is not a finite number is None."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np

from fedbiad import network
from fedbiad.experiment import LAST
from fedbiad.methods import FedBIAD
from fedbiad.report.rounds import Bytes, Round
from fedbiad.report.runs import Group, Run, Section

COUNTS = ("encoded", "paper", "transport")
MAP_ROWS = 512
"""A map of kept rows with more lines than this is averaged over neighbouring rows."""


def section_data(part: Section) -> dict[str, Any]:
    """Everything the scripts draw for one section."""
    return {
        "id": part.id,
        "counts": counts(part),
        "target": target(part),
        "groups": [_group(group) for group in part.groups],
        # runs that learn scores first: theirs is the pattern with a story
        "runs": sorted(
            (data for group in part.groups for run in group.runs if (data := _rows(group, run))),
            key=lambda data: not (data["watched"] and any(r["score"] for r in data["watched"]["rounds"])),
        ),
    }


def counts(part: Section) -> list[str]:
    """The counts of bytes that every round of the section has."""
    rounds = [r for run in part.runs for r in run.rounds]
    return [name for name in COUNTS if rounds and all(getattr(r.total_upload, name) is not None for r in rounds)]


def target(part: Section) -> float | None:
    """The accuracy times are taken to: the plans', else the largest whole percentage that all counted runs reach."""
    stated = [run.plan.target_accuracy for run in part.runs if run.plan.target_accuracy is not None]
    if stated:
        return stated[0]
    counted = [run for group in part.groups for run in group.counted]
    best = [max((r.accuracy for r in run.rounds if finite(r.accuracy)), default=None) for run in counted]
    reached = [value for value in best if value is not None]
    return math.floor(100 * min(reached) + 1e-9) / 100 if reached and len(reached) == len(best) else None


def per_client(run: Run, direction: str, count: str) -> float | None:
    """Mean over the rounds of the bytes a client sends or is sent in a round."""
    sent: list[tuple[Bytes, int]] = [(getattr(r, direction), r.clients) for r in run.rounds]
    values = [getattr(size, count) / clients for size, clients in sent if getattr(size, count) is not None]
    return float(np.mean(values)) if values and len(values) == len(sent) else None


def time_to(run: Run, accuracy: float | None) -> float | None:
    """Seconds to this accuracy, None if it is not reached or times are missing."""
    return network.time_to_accuracy(run.records, accuracy) if run.timed and accuracy is not None else None


def local_time(run: Run) -> float | None:
    """LTTR in seconds."""
    return network.lttr(run.records) if run.timed else None


def finite(value: float | None) -> TypeGuard[float]:
    """Whether this is a number one can draw."""
    return value is not None and math.isfinite(value)


def _group(group: Group) -> dict[str, Any]:
    accuracy = _curve(group, lambda r: r.accuracy)
    return {
        "label": group.label,
        "accuracy": accuracy,
        "loss": _curve(group, lambda r: r.train_loss),
        "uploaded": {count: _uploaded(group, accuracy["x"], count) for count in COUNTS},
        "frontier": _frontier(group),
        "lttr": [{"seed": run.plan.seed, "seconds": local_time(run)} for run in group.counted if run.timed],
        "times": [_times(run) for run in group.counted if run.timed],
    }


def _curve(group: Group, value: Callable[[Round], float | None]) -> dict[str, list[Any]]:
    """By round: mean, least and greatest over the runs that have a value there, and how many they are."""
    found: dict[int, list[float]] = {}
    for run in group.runs:
        for r in run.rounds:
            own = value(r)
            if finite(own):
                found.setdefault(r.round, []).append(own)
    columns = [(x, float(np.mean(y)), min(y), max(y), len(y)) for x, y in sorted(found.items())]
    names = ("x", "mean", "low", "high", "n")
    return {name: [_short(column[i]) for column in columns] for i, name in enumerate(names)}


def _uploaded(group: Group, rounds: Sequence[int], count: str) -> list[float | None]:
    """Megabytes all clients together uploaded up to each round, mean over the runs judged there."""
    totals: list[float | None] = []
    for number in rounds:
        there = [run.rounds[number - 1] for run in group.runs if len(run.rounds) >= number]
        sizes = [getattr(r.total_upload, count) for r in there if finite(r.accuracy)]
        totals.append(None if None in sizes else _short(float(np.mean(sizes)) / 1e6))
    return totals


def _frontier(group: Group) -> dict[str, Any] | None:
    """What the finished runs of a group came to: bytes of a client and round, mean accuracy of the last rounds."""
    judged = [[r.accuracy for r in run.rounds if finite(r.accuracy)][-LAST:] for run in group.counted]
    ends = [float(np.mean(own)) for own in judged if own]
    if not ends:
        return None
    sizes = {count: [per_client(run, "upload", count) for run in group.counted] for count in COUNTS}
    known = {count: [size for size in own if size is not None] for count, own in sizes.items()}
    return {
        "sizes": {count: _short(float(np.mean(own))) if own else None for count, own in known.items()},
        "mean": float(np.mean(ends)), "low": min(ends), "high": max(ends), "n": len(ends),
    }  # fmt: skip


def _times(run: Run) -> dict[str, Any]:
    elapsed = np.cumsum([r.seconds["round"] or 0.0 for r in run.rounds])
    accuracy = [r.accuracy if finite(r.accuracy) else None for r in run.rounds]
    return {"seed": run.plan.seed, "seconds": [_short(float(t)) for t in elapsed], "accuracy": accuracy}


def _rows(group: Group, run: Run) -> dict[str, Any] | None:
    """Kept rows and the watched client of a run, if it dropped rows or watched one."""
    kept, watched = _kept(run.rounds), [r for r in run.rounds if r.watched is not None]
    if kept is None and not watched:
        return None
    seen, method = [_watched(r) for r in watched], run.plan.resolved_method()
    return {
        "name": f"{group.label}, seed {run.plan.seed}" + ("" if run.finished else " (unfinished)"),
        "kept": kept,
        "stage": method.stage_boundary if isinstance(method, FedBIAD) else None,
        "watched": {"client": seen[0]["client"], "rounds": seen} if seen else None,
    }


def _kept(rounds: Sequence[Round]) -> dict[str, Any] | None:
    """Percent of a round's clients that uploaded each row [rows, rounds]; None where all rows are always uploaded."""
    told = [r for r in rounds if r.row_holders]
    if not told or len({len(r.row_holders or ()) for r in told}) != 1:
        return None
    share = np.array([r.row_holders for r in told], dtype=np.float64).T / [r.clients for r in told]
    if (share >= 1.0).all():
        return None
    bins = np.array_split(np.arange(len(share)), min(len(share), MAP_ROWS))
    percent = [np.rint(100 * share[rows].mean(0)).clip(0, 100).astype(int).tolist() for rows in bins]
    return {
        "x": [r.round for r in told], "rows": len(share), "each": len(bins[0]),
        "y": [int(rows[0]) for rows in bins], "percent": percent,
    }  # fmt: skip


def _watched(r: Round) -> dict[str, Any]:
    assert r.watched is not None
    score = r.watched.score
    return {
        "round": r.round, "client": r.watched.client, "losses": [_short(loss) for loss in r.watched.losses],
        "changed": r.watched.resampled_at, "score": None if score is None else [_short(value) for value in score],
    }  # fmt: skip


def _short(value: float | None) -> float | None:
    """Six digits are more than a screen shows; whole numbers stay whole."""
    if not finite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")
