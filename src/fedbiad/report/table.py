"""A section's words and its table, as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from fedbiad.experiment import LAST
from fedbiad.progress import megabytes
from fedbiad.report.content import counts, finite, local_time, per_client, target, time_to
from fedbiad.report.runs import Group, Run, Section, differences

MEANING = {
    "encoded": "the length of the message as it is encoded for sending, pattern and headers included",
    "paper": "the size by the paper's rules, 32 bits a value, 64 a position, 1 a label of a row, no headers",
    "transport": "what the transport moved, its own framing included",
}
Cell = tuple[str, str]
"""A heading and a cell's text."""


def section_html(part: Section, number: int) -> str:
    """Heading, facts, table and notes; the charts are drawn into the last element."""
    rows = [_row(part, group) for group in part.groups]
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading, _ in rows[0])
    body = "".join(_tr([text for _, text in row]) for row in rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in _notes(part))
    return f"""<section id="{escape(part.id)}" aria-labelledby="{escape(part.id)}-title">
<h2 id="{escape(part.id)}-title">{escape(heading_of(part))}</h2>
<p class="facts">{escape(_facts(part))}</p>
<div class="scroll" tabindex="0" role="region" aria-label="Table of results"><table>
<thead><tr>{head}</tr></thead>
<tbody>{body}</tbody></table></div>
<ul class="notes">{notes}</ul>
<div class="charts" data-section="{number}"></div>
{_examples(part)}</section>"""


def _examples(part: Section) -> str:
    """Next words a language model expected before and after training, one table a group that recorded some."""
    tables = []
    for group in part.groups:
        run = next((r for r in group.runs if r.summary and r.summary.get("examples")), None)
        if run is None or run.summary is None:
            continue
        head = "".join(f'<th scope="col">{name}</th>' for name in ("context", "truth", "before", "after"))
        body = "".join(_example(example) for example in run.summary["examples"])
        about = f"Next words: {group.label}, seed {run.plan.seed}"
        tables.append(f"""<figure class="words"><h3>{escape(about)}</h3>
<div class="scroll" tabindex="0" role="region" aria-label="{escape(about)}"><table>
<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<figcaption>The three likeliest next words with their probabilities, before the first and after the last round; a
word in bold is the truth.</figcaption></figure>
""")
    return "".join(tables)


def _example(example: dict[str, Any]) -> str:
    truth = example["truth"]

    def guesses(stage: str) -> str:
        shown = [(escape(word), f" {100 * chance:.2g}&nbsp;%") for word, chance in example[stage]]
        return "<br>".join(f"<b>{w}</b>{p}" if w == escape(truth) else w + p for w, p in shown)

    context = escape(" ".join(example["context"]))
    cells = "".join(f"<td>{cell}</td>" for cell in (escape(truth), guesses("before"), guesses("after")))
    return f'<tr><th scope="row">… {context}</th>{cells}</tr>'


def heading_of(part: Section) -> str:
    """Data set, rounds, clients and p."""
    plans = [run.plan for run in part.runs]
    rounds = _either(plan.rounds for plan in plans)
    clients = _either(f"{plan.selected_clients} of {plan.data.clients}" for plan in plans)
    return f"{part.title}: {rounds} rounds, {clients} clients a round, p = {_either(p.dropout_rate for p in plans)}"


def _facts(part: Section) -> str:
    samples = {run.summary["eval_samples"] for run in part.runs if run.summary and run.summary.get("eval_samples")}
    size = f" ({_either(f'{count:,}' for count in sorted(samples))} samples)" if samples else ""
    on = "the test set" if part.evaluate_on == "test" else "VALIDATION data held back from training"
    numbers = [len(group.runs) for group in part.groups]
    seeds = f"{_either(sorted(numbers))} seed{'' if numbers == [1] * len(numbers) else 's'} a row"
    warning = "; one seed shows no spread, and small differences may be chance" if max(numbers) == 1 else ""
    return f"Accuracy is judged on {on}{size}. {seeds}{warning}."


def _row(part: Section, group: Group) -> list[Cell]:
    runs, names, aim = group.counted, counts(part), target(part)
    unfinished = [run for run in group.runs if not run.finished]
    mark = " (unfinished)" if len(unfinished) == len(group.runs) else " *" if unfinished else ""
    cells = [
        ("method", group.label + mark),
        ("seeds", ", ".join(str(run.plan.seed) for run in group.runs)),
        ("accuracy, last round", _spread([_accuracy(run, 1) for run in runs], 100, "%")),
        (f"mean of last {_last(part)}", _spread([_accuracy(run, LAST) for run in runs], 100, "%")),
    ]
    for name in names:
        cells.append((f"upload, {name}", _size([per_client(run, "upload", name) for run in runs])))
        if name == names[0]:
            cells.append(("of first", _share(part, group, name)))
    cells += [(f"download, {name}", _size([per_client(run, "download", name) for run in runs])) for name in names]
    if any(run.timed for run in part.runs):
        cells.append(("LTTR", _seconds([local_time(run) for run in runs])))
        if aim is not None:
            cells.append((f"TTA to {100 * aim:g} %", _reached([time_to(run, aim) for run in runs])))
    return cells


def _tr(texts: Sequence[str]) -> str:
    first, *others = (escape(text) for text in texts)
    return f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{text}</td>" for text in others) + "</tr>"


def _notes(part: Section) -> list[str]:
    notes = (
        ["± is the sample standard deviation over the seeds."] if any(len(g.counted) > 1 for g in part.groups) else []
    )
    notes.append("Upload and download are bytes a client and round; “of first” is the upload over the first row's.")
    notes += [f"Count “{name}”: {MEANING[name]}." for name in counts(part)]
    if any(run.timed for run in part.runs):
        notes.append(_time_note(part))
    for group in part.groups:
        late = [run for run in group.runs if not run.finished]
        progress = ", ".join(f"seed {run.plan.seed} at round {len(run.rounds)} of {run.plan.rounds}" for run in late)
        if late and len(late) < len(group.runs):
            notes.append(f"* {group.label} is not finished: {progress}; its row is of the finished seeds only.")
        elif late:
            notes.append(f"{group.label} is not finished: {progress}; its row is of what is there.")
    differing = differences(part.runs)
    if differing:
        notes.append(f"The plans differ beside method and seed: {'; '.join(differing)}.")
    if part.repeated:
        names = ", ".join(str(path) for path in part.repeated)
        notes.append(f"Left out, being the same plan and seed as another run: {names}.")
    return notes


def _time_note(part: Section) -> str:
    links = _either(sorted({_link(run) for run in part.runs}))
    return (
        "LTTR: seconds a client trains in a round, mean over clients and rounds, as measured where the run was made. "
        "TTA: time to accuracy; a round is its slowest client's download, training and upload, then the server's "
        f"aggregation. Transfers are computed, not measured: {links}."
    )


def _link(run: Run) -> str:
    net = run.plan.network
    varied = f", log-normal over clients with sigma {net.spread:g}" if net.spread else ""
    slow = f", {net.slow_share:.0%} of the clients training {net.slow_factor:g} times slower" if net.slow_share else ""
    return f"{net.uplink:g} Mbit/s up, {net.downlink:g} Mbit/s down, “{net.count}” count{varied}{slow}"


def _last(part: Section) -> str:
    return {1: "round", 2: "two", 3: "three", 4: "four", 5: "five"}[min(LAST, *(run.plan.rounds for run in part.runs))]


def _accuracy(run: Run, last: int) -> float | None:
    judged = [r.accuracy for r in run.rounds if r.accuracy is not None][-last:]
    return float(np.mean(judged)) if judged else None


def _share(part: Section, group: Group, count: str) -> str:
    own, first = ([per_client(run, "upload", count) for run in g.counted] for g in (group, part.groups[0]))
    a, b = ([size for size in sizes if size] for sizes in (own, first))
    return f"{np.mean(a) / np.mean(b):.1%}" if a and b else "–"


def _seconds(values: Sequence[float | None]) -> str:
    """Mean and spread of times, in milliseconds where seconds would begin with a zero."""
    mean = float(np.mean([value for value in values if finite(value)] or [0.0]))
    factor, unit = (1000, "ms") if mean < 1 else (1, "s")
    return _spread(values, factor, unit, 2 if factor * mean < 100 else 1)


def _spread(values: Sequence[float | None], factor: float, unit: str, digits: int = 2) -> str:
    """Mean and sample standard deviation."""
    numbers = [factor * value for value in values if finite(value)]
    if not numbers:
        return "–"
    spread = f" ± {np.std(numbers, ddof=1):.{digits}f}" if len(numbers) > 1 else ""
    return f"{np.mean(numbers):.{digits}f}{spread} {unit}"


def _reached(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    if not there:
        return "not reached"
    return _seconds(there) + ("" if len(there) == len(values) else f" ({len(there)} of {len(values)} seeds)")


def _size(values: Sequence[float | None]) -> str:
    """Mean bytes; the spread only where the seeds differ visibly."""
    sizes = [value for value in values if value is not None]
    if not sizes:
        return "–"
    lowest, highest = megabytes(min(sizes)), megabytes(max(sizes))
    return lowest if lowest == highest else f"{megabytes(float(np.mean(sizes)))} ({lowest} to {highest})"


def _either(values: Iterable[object]) -> str:
    return " or ".join(dict.fromkeys(map(str, values)))
