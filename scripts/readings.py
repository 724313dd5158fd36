"""The measurements behind docs/readings.md.

    readings.py run [STUDY ...]   run what is missing (resumable, two at a time), write results/readings.json
    readings.py render            write the tables of docs/readings.md from results/readings.json

Studies: `untuned` (the plans as they are, test data), `tuning` (the same learning rates for every method, validation
data), `tuned` (the best of them, test data) and `options` (every option of FedBIAD singly, validation data). Posterior
noise is on in `untuned` and in the rows of `options` about it only: it changes nothing measurable and costs time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedbiad import compare
from fedbiad.files import write_atomically
from fedbiad.plan import Plan, load, to_dict
from fedbiad.rundir import RunDir

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "readings.json"
PAGE = ROOT / "docs" / "readings.md"
METHODS = ("fedavg", "feddrop", "fedbiad", "fedbiad-letter")
STUDIES = {"untuned": ("mnist", "fmnist"), "tuning": ("fmnist",), "tuned": ("fmnist",), "options": ("fmnist",)}
RATES = (0.015, 0.03, 0.06, 0.12, 0.24)
SEEDS = (0, 1, 2)
OPTION_SEEDS = (0,)

OPTIONS: dict[str, dict[str, Any]] = {
    "default (noise = 0)": {},
    "aggregation = zeros": {"aggregation": "zeros"},
    "aggregation = old": {"aggregation": "old"},
    "scaling = none": {"scaling": "none"},
    "rows = weight-rows": {"rows": "weight-rows"},
    "scope = global": {"scope": "global"},
    "trend = local": {"trend": "local"},
    "resample = anew": {"resample": "anew"},
    "upload = final": {"upload": "final"},
    "resample = anew, upload = final": {"resample": "anew", "upload": "final"},
    "stage_two = top": {"stage_two": "top"},
    "score = holds": {"score": "holds"},
    "score = holds, stage_two = top": {"score": "holds", "stage_two": "top"},
    "score = holds, stage_two = above": {"score": "holds", "stage_two": "above"},
    "stage_boundary = 60 (no stage two)": {"stage_boundary": 60},
    "stage_boundary = 10": {"stage_boundary": 10},
    "stage_boundary = 10, stage_two = top": {"stage_boundary": 10, "stage_two": "top"},
    "stage_boundary = 10, score = holds, stage_two = top": {
        "stage_boundary": 10,
        "score": "holds",
        "stage_two": "top",
    },
    "noise = posterior": {"noise": "posterior"},
}
"""What is changed in the default reading, one row each; only the last row has noise."""


def main() -> None:
    """Run or render."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "render"))
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=f"of {', '.join(STUDIES)}; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    if arguments.action == "render":
        render()
        return
    unknown = [study for study in arguments.studies if study not in STUDIES]
    if unknown:
        parser.error(f"no such study: {', '.join(unknown)}")
    for study in arguments.studies or STUDIES:
        for data in STUDIES[study]:
            run(study, data, arguments.jobs)


def run(study: str, data: str, jobs: int) -> None:
    """Run one study on one data set and keep its rows."""
    plans, seeds = variants(study, data)
    cells = compare.cells(plans, seeds, ROOT / "runs" / "readings" / study / data)
    seen: set[Path] = set()

    def progress(cell: compare.Cell, rounds: int) -> None:
        if rounds == cell.plan.rounds and cell.path not in seen:
            seen.add(cell.path)
            print(f"{study} {data}: {cell.name} done", file=sys.stderr, flush=True)

    compare.run(cells, jobs, progress, lambda: False)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    base = to_dict(load(data))
    rows = compare.table(cells)
    for row in rows:
        runs = [RunDir(cell.path).records() for cell in cells if cell.label == row["label"]]
        row["kept_rows_at_the_end"] = statistics.mean(r["kept_rows_share"] for records in runs for r in records[-5:])
        row["accuracy_before_stage_two"] = statistics.mean(r["accuracy"] for records in runs for r in records[50:55])
    kept.setdefault(study, {})[data] = {"plan": base, "rows": rows}
    write_atomically(RESULTS, (json.dumps(kept, indent=1) + "\n").encode())


def variants(study: str, data: str) -> tuple[dict[str, Plan], tuple[int, ...]]:
    """The labelled plans of a study and its seeds."""
    plan = load(data)
    validation = plan.replace(evaluate_on="validation")
    no_noise = {name: {"noise": 0.0} for name in ("fedbiad", "fedbiad-letter")}
    silent = validation.replace(methods=no_noise)
    if study == "untuned":
        return {name: plan.replace(method=name) for name in METHODS}, SEEDS
    if study == "options":
        others = {name: silent.replace(method=name) for name in METHODS if name != "fedbiad"}
        options = {
            label: validation.replace(methods={"fedbiad": {"noise": 0.0, **changes}})
            for label, changes in OPTIONS.items()
        }
        return {**others, **options}, OPTION_SEEDS
    if study == "tuning":
        return {f"{m} lr={lr}": with_rate(silent, m, lr) for m in METHODS for lr in RATES}, (0,)
    if study == "tuned":
        test = plan.replace(methods=no_noise)
        return {name: with_rate(test, name, best_rate(data, name)) for name in METHODS}, SEEDS
    raise ValueError(study)


def with_rate(plan: Plan, method: str, rate: float) -> Plan:
    """The plan for a method at a learning rate."""
    return plan.replace(method=method, training={**to_dict(plan)["training"], "learning_rate": rate})


def best_rate(data: str, method: str) -> float:
    """The learning rate of best validation accuracy (mean of the last five rounds)."""
    rows = json.loads(RESULTS.read_text())["tuning"][data]["rows"]
    own = [row for row in rows if row["label"].startswith(f"{method} lr=")]
    best = max(own, key=lambda row: float(row["accuracy_last_five"]))
    return float(best["label"].partition("lr=")[2])


def render() -> None:
    """Put each table between its markers in the page."""
    results = json.loads(RESULTS.read_text())
    text = PAGE.read_text()
    for name in re.findall(r"<!-- begin (\w+) -->", text):
        before, _, rest = text.partition(f"<!-- begin {name} -->\n")
        after = rest[rest.index(f"<!-- end {name} -->") :]
        table = "\n".join(TABLES[name](results))
        text = f"{before}<!-- begin {name} -->\n{table}\n{after}"
    write_atomically(PAGE, text.encode())


def _compared(study: str, results: dict[str, Any]) -> list[str]:
    """One row a label, the data sets side by side: last round, mean of the last five, upload, checks that resampled."""
    rows = {data: {row["label"]: row for row in results[study][data]["rows"]} for data in sorted(STUDIES[study])[::-1]}
    heads = [f"{data}: last round | last five | upload | resampled" for data in rows]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---:|" * 4 * len(rows)]
    for label in next(iter(rows.values())):
        cells = [cell for own in rows.values() for cell in _figures(own[label])]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def _figures(row: dict[str, Any]) -> list[str]:
    upload = f"{row['upload_per_client']['paper'] / 1e3:.1f} kB"
    resampled = "" if row["resampled_share"] is None else f"{row['resampled_share']:.0%}"
    return [_percent(row, "accuracy"), _percent(row, "accuracy_last_five"), upload, resampled]


def _untuned(results: dict[str, Any]) -> list[str]:
    lines = [*_compared("untuned", results), ""]
    for data in STUDIES["untuned"]:
        found = results["untuned"][data]
        letter = next(row for row in found["rows"] if row["label"] == "fedbiad-letter")
        lines.append(
            f"In stage two (rounds 56 to 60) the letter holds {letter['kept_rows_at_the_end']:.3f} of the rows on "
            f"{data}, where {1 - found['plan']['dropout_rate']:.1f} are meant: whole scores tie with the quantile. "
            f"Its mean accuracy in the five rounds before was {100 * letter['accuracy_before_stage_two']:.2f}."
        )
    return lines


def _tuning(results: dict[str, Any]) -> list[str]:
    lines = ["| fmnist | " + " | ".join(f"lr {lr}" for lr in RATES) + " |", "|---|" + "---:|" * len(RATES)]
    rows = {row["label"]: row for row in results["tuning"]["fmnist"]["rows"]}
    for method in METHODS:
        found = [rows[f"{method} lr={lr}"]["accuracy_last_five"] for lr in RATES]
        shown = [f"**{100 * a:.2f}**" if a == max(found) else f"{100 * a:.2f}" for a in found]
        lines.append(f"| {method} | " + " | ".join(shown) + " |")
    return lines


def _percent(row: dict[str, Any], key: str) -> str:
    spread = row[f"{key}_std"]
    return f"{100 * row[key]:.2f}" + ("" if spread is None else f" ± {100 * spread:.2f}")


TABLES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "untuned": _untuned,
    "options": lambda results: _compared("options", results),
    "tuning": _tuning,
    "tuned": lambda results: _compared("tuned", results),
}

if __name__ == "__main__":
    main()
