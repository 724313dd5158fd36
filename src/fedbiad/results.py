"""docs/results.md from the result files: the paper's figures beside ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from fedbiad.errors import DataError
from fedbiad.files import write_atomically
from fedbiad.picture import encoded, frontier_picture, picture_name
from fedbiad.progress import megabytes
from fedbiad.reproduce import Reproduction, read_result
from fedbiad.tables import NAMES

Result = dict[str, Any]

PRINTED: dict[tuple[str, str], dict[str, tuple[float, float, str]]] = {
    ("table1", "mnist"): {
        "FedAvg": (95.06, 0.03, "531 KB"),
        "FedDrop": (95.03, 0.05, "424 KB"),
        "AFD": (94.49, 0.10, "424 KB"),
        "FedMP": (95.09, 0.03, "477 KB"),
        "FjORD": (94.93, 0.08, "437 KB"),
        "HeteroFL": (94.98, 0.06, "432 KB"),
        "FedBIAD": (95.20, 0.11, "424 KB"),
    },
    ("table1", "fmnist"): {
        "FedAvg": (81.18, 1.09, "1.1 MB"),
        "FedDrop": (81.12, 0.47, "530 KB"),
        "AFD": (82.37, 0.37, "530 KB"),
        "FedMP": (82.40, 0.26, "862 KB"),
        "FjORD": (82.64, 0.10, "718 KB"),
        "HeteroFL": (82.68, 0.51, "685 KB"),
        "FedBIAD": (83.59, 0.13, "530 KB"),
    },
    ("table1", "ptb"): {
        "FedAvg": (28.54, 0.15, "29.8 MB"),
        "FedDrop": (27.81, 0.21, "23.8 MB"),
        "AFD": (28.67, 0.03, "22.4 MB"),
        "FedMP": (28.76, 0.20, "22.7 MB"),
        "FjORD": (27.88, 0.18, "21.4 MB"),
        "HeteroFL": (26.80, 0.42, "20.4 MB"),
        "FedBIAD": (29.85, 0.15, "16.4 MB"),
    },
    ("table1", "wikitext2"): {"FedAvg": (31.86, 0.05, "75.3 MB"), "FedBIAD": (33.16, 0.97, "39.1 MB")},
    ("table1", "reddit"): {
        "FedAvg": (31.68, 0.54, "29.8 MB"),
        "FedDrop": (31.84, 0.08, "24.1 MB"),
        "AFD": (32.26, 0.11, "22.5 MB"),
        "FedMP": (31.06, 0.19, "22.7 MB"),
        "FjORD": (31.35, 0.38, "21.4 MB"),
        "HeteroFL": (31.24, 0.11, "20.4 MB"),
        "FedBIAD": (33.93, 0.28, "16.4 MB"),
    },
    ("table2", "mnist"): {
        "FedPAQ": (94.90, 0.09, "129 KB"),
        "SignSGD": (92.04, 0.55, "16 KB"),
        "STC": (90.56, 0.17, "3 KB"),
        "DGC": (94.84, 0.11, "3 KB"),
        "AFD+DGC": (94.39, 0.20, "2 KB"),
        "Fjord+DGC": (94.93, 0.03, "2 KB"),
        "FedBIAD+DGC": (95.22, 0.11, "2 KB"),
    },
    ("table2", "fmnist"): {
        "FedPAQ": (78.64, 0.02, "258 KB"),
        "SignSGD": (76.57, 0.43, "33 KB"),
        "STC": (81.13, 0.43, "6 KB"),
        "DGC": (80.64, 0.09, "4 KB"),
        "AFD+DGC": (81.96, 0.43, "3 KB"),
        "Fjord+DGC": (82.16, 0.56, "3 KB"),
        "FedBIAD+DGC": (82.96, 0.03, "3 KB"),
    },
}
"""Accuracy in per cent, its spread and the upload a round, as the paper prints them."""

TITLES = {
    "table1": "Table 1: dropout methods",
    "table2": "Table 2: sketched compression",
    "heavy": "Heavy local training: five epochs a round",
    "readings": "Readings of FedBIAD",
    "frontier": "The frontier: accuracy against encoded bytes",
}
HEAD = """# Results

Made by `fedbiad results` from the files in `results/`, which `fedbiad reproduce TABLE` writes. Nothing here is typed in
but the paper's own figures.

"""


def write_results(source: Path, out: Path) -> Path:
    """The page from all result files in a directory."""
    paths = [source / f"{table}-{data}.json" for table in TITLES for data in NAMES]
    found = [read_result(path) for path in paths if path.exists()]
    if not found:
        raise DataError(f"{source} holds no result file; make one with `fedbiad reproduce table1`")
    out.parent.mkdir(parents=True, exist_ok=True)
    for result in found:
        if result["table"] == "frontier":
            write_atomically(out.parent / picture_name(result), frontier_picture(result).encode())
    write_atomically(out, (HEAD + "\n".join(line for result in found for line in section(result))).encode())
    return out


def section(result: Result) -> list[str]:
    """One table of one data set."""
    plan, search = result["plan"], result["search"]
    lines = [f"## {TITLES[result['table']]}, {NAMES[result['data']]}", ""]
    size, top = plan["data"].get("image_size"), plan.get("top", 1)
    inputs = f", inputs of {size} x {size}" if size else ""
    spread = "mean ± sample standard deviation of the" if len(result["seeds"]) > 1 else "the"
    rates, steps = search["rates"], search.get("server_steps", [1.0])
    searched = [f"{what} (of {', '.join(f'{value:g}' for value in values)})"
                for what, values in (("learning rate", rates), ("server step", steps)) if len(values) > 1]  # fmt: skip
    fixed = f"Learning rate {rates[0]:g} for all. " if len(rates) == 1 else ""
    judged = "loss after" if search.get("judged_by") == "loss" else "mean of the last five of"
    lines += _paragraph(
        f"{plan['rounds']} rounds, {plan['data']['clients']} clients, p = {plan['dropout_rate']}{inputs}; seed"
        f"{'s' if len(result['seeds']) > 1 else ''} {', '.join(map(str, result['seeds']))}, {spread} last round's test "
        f"accuracy{f' (top {top})' if top > 1 else ''}. {_model(plan)}{fixed}Every method by the same search of "
        f"{' and '.join(searched)}: best {judged} {search['rounds']} rounds on validation data, seed "
        f"{search['seed']}. Upload and download of one "
        f"client and round: `paper` counts 32-bit values, 64-bit positions and 1-bit labels, `encoded` is the length "
        f"of the real message. Torch {result['versions']['torch']}."
    )
    if result["table"] == "frontier":
        lines += ["", f"![{NAMES[result['data']]}: accuracy against encoded bytes]({picture_name(result)})"]
    columns = [name for name, _ in _cells(result, result["rows"][0])]
    lines += ["", "| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    lines += ["| " + " | ".join(cell for _, cell in _cells(result, row)) + " |" for row in result["rows"]]
    target = plan.get("target_accuracy")
    timed = _timed(result)
    notes = ""
    if timed:
        notes = (
            "LTTR: median local training time of a client over a few rounds of the method by itself, with the engine "
            "of the day on which its row was run."
        )
    if timed and target is not None:
        notes += (
            f" TTA: mean number of rounds until {100 * target:.0f} % accuracy, times the length of such a round on the "
            "paper's links (slowest client and aggregation); - where a seed never got there."
        )
    notes += " A learning rate with * is at the end of the grid." if len(search["rates"]) > 1 else ""
    if top > 1:
        notes += _overfitted(result["rows"])
    wanted = Reproduction(result["table"], result["data"], Path()).rows
    missing = wanted.keys() - {row["label"] for row in result["rows"]}
    notes += f" Not run: {'; '.join(sorted(missing))}." if missing else ""
    return [*lines, "", *_paragraph(notes), "", *_order(result), ""]


def _overfitted(rows: Sequence[Result]) -> str:
    """Whose loss on test data was clearly lower before the end."""
    lowest = [(row, row["lowest_loss"]) for row in rows if row.get("lowest_loss") is not None]
    found = [f"{row['label']} {best['loss']:.3f} in round {best['round']:.0f}" for row, best in lowest
             if best["loss"] < 0.995 * row["loss"]]  # fmt: skip
    if not lowest:
        return ""
    return f" NLL was lower before the end: {', '.join(found)}." if found else " No NLL was lower before the end."


def _model(plan: Result) -> str:
    """A language model and its local training, in words."""
    model = plan.get("model", {})
    if model.get("name") != "lstm":
        return ""
    data, training = plan["data"], plan["training"]
    words = "" if data.get("vocabulary") is None else f", the {data['vocabulary']:,} most frequent words"
    return (
        f"LSTM of {model['layers']} x {model['hidden'][0]}, embedding {model['embedding']}{words}; "
        f"{training['iterations']} local iterations of {training['batch']} x {data['bptt']} tokens. "
    )


def _cells(result: Result, row: Result) -> list[tuple[str, str]]:
    """The columns of a row: name and content. NLL for language, TTA where there is a target."""
    plan, search = result["plan"], result["search"]
    theirs = PRINTED.get((result["table"], result["data"]))
    printed = (theirs or {}).get(row["label"])
    accuracy, size = ("-", "-") if printed is None else (f"{printed[0]:.2f} ± {printed[1]:.2f}", printed[2])
    up, down, tta, rate = (row[key] for key in (
        "upload_per_client", "download_per_client", "time_to_accuracy", "learning_rate",
    ))  # fmt: skip
    rates = search["rates"]
    end = "*" if len(rates) > 1 and rate in (min(rates), max(rates)) else ""
    cells = [
        ("method", f"{row['label']} (`{row['method']}`)"), *([("paper: accuracy", accuracy)] if theirs else []),
        ("ours: accuracy", _percent(row, "accuracy") + _other_seeds(result, row)),
        ("mean of last five", _percent(row, "accuracy_last_five")),
    ]  # fmt: skip
    if plan.get("top", 1) > 1:
        cells += [("NLL", f"{row['loss']:.3f}"), ("perplexity", f"{math.exp(row['loss']):.0f}")]
    cells += [("lr", f"{rate:g}{end}")]
    if len(search.get("server_steps", [1.0])) > 1:
        cells += [("server step", f"{row['server_step']:g}")]
    cells += [
        *([("paper: upload", size)] if theirs else []), ("ours: `paper`", megabytes(up["paper"])),
        ("ours: `encoded`", megabytes(up["encoded"])), *_share(result, row), ("download", megabytes(down["encoded"])),
    ]  # fmt: skip
    if _timed(result):
        cells += [("LTTR", "-" if row["lttr"] is None else f"{1e3 * row['lttr']:.2f} ms")]
        if plan.get("target_accuracy") is not None:
            cells += [("TTA", "-" if tta is None else f"{tta:.1f} s")]
    return cells


def _timed(result: Result) -> bool:
    """Whether runs were timed by themselves."""
    return any(row["lttr"] is not None for row in result["rows"])


def _other_seeds(result: Result, row: Result) -> str:
    """The seeds of a row, where they are not those of the table."""
    own = row["seeds"] if "seeds" in row else result["seeds"]
    return "" if own == result["seeds"] else f" (seed{'s' if len(own) > 1 else ''} {', '.join(map(str, own))})"


def _share(result: Result, row: Result) -> list[tuple[str, str]]:
    """The encoded upload against that of the first row, where that is the point of the table."""
    if result["table"] != "frontier":
        return []
    return [("of FedAvg's", f"{100 * encoded(row) / encoded(result['rows'][0]):.3g} %")]


def _order(result: Result) -> list[str]:
    """Where the paper's order does not come out: pairs it orders the other way by more than both spreads."""
    printed = PRINTED.get((result["table"], result["data"]), {})
    ours = {row["label"]: (100 * row["accuracy"], 100 * (row["accuracy_std"] or 0.0)) for row in result["rows"]}
    best = max(ours, key=lambda label: ours[label][0])
    if not printed:
        return _paragraph(f"Best here: {best}.")
    said = max(printed, key=lambda label: printed[label][0])
    other = []
    for one, two in combinations([label for label in ours if label in printed], 2):
        high, low = (one, two) if printed[one][0] > printed[two][0] else (two, one)
        theirs = printed[high][0] - printed[low][0] > printed[high][1] + printed[low][1]
        turned = ours[low][0] - ours[high][0] > ours[low][1] + ours[high][1]
        if theirs and turned:
            other.append(f"{high} above {low}")
    text = f"Best in the paper: {said}; here: {best}."
    if other:
        text += " The paper has, beyond both spreads, what comes out the other way here beyond both: "
        return _paragraph(text + ", ".join(other) + ".")
    return _paragraph(text + " No pair comes out the other way beyond both spreads.")


def _percent(row: Result, key: str) -> str:
    spread = row[f"{key}_std"]
    return f"{100 * row[key]:.2f}" + ("" if spread is None else f" ± {100 * spread:.2f}")


def _paragraph(text: str, width: int = 120) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]
