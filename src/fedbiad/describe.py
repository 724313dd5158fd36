"""What a plan means, without training: rows, parameters, bytes; and what the theory says of it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedbiad import theory
from fedbiad.aggregation import AGGREGATIONS, Aggregation
from fedbiad.arrays import IntArray, Pattern
from fedbiad.cohort import Cohort
from fedbiad.compare import percent
from fedbiad.compressors import COMPRESSORS, Compressor
from fedbiad.errors import UpdateError
from fedbiad.experiment import build_lstm, build_model, load_federated, local_training, majority, told_layout
from fedbiad.methods import METHODS, Method, RowDropout
from fedbiad.models import Model
from fedbiad.payloads import VALUE_BITS
from fedbiad.plan import Plan, warnings
from fedbiad.progress import megabytes
from fedbiad.rows import Layout, Slice
from fedbiad.sending import segments

DRAWS = 100
"""Patterns whose mean upload is shown for a method that does not fix the count of each group."""

LATE_ROUND = 1000
"""A round after every warm-up."""


def describe_plan(plan: Plan, console: Console) -> None:
    """Data, model, row groups of the plan's method, its options, and the upload of every method."""
    model, about, sizes = _model_and_data(plan)
    console.print(
        f"[bold]{plan.name}[/]  {about}; {plan.selected_clients} clients a round, {plan.rounds} rounds", highlight=False
    )
    method, compressor = plan.resolved()
    layout = told_layout(method, model, plan.training)
    console.print(
        f"model {model}: {layout.num_weights:,} weights = {megabytes(layout.num_weights * VALUE_BITS // 8)}",
        highlight=False,
    )
    console.width = max(console.width, 104)  # names and numbers are not cut, whatever the terminal
    mean = majority(compressor, plan.training.learning_rate) or AGGREGATIONS[method.aggregation]
    console.print(_row_table(f"row groups of {plan.method} (rows = {method.row_kind})", layout, mean))
    options = Table(title=f"options of {plan.method}", show_header=False)
    for part in plan.resolved():
        for name, value in dataclasses.asdict(part).items() if part is not None else ():
            options.add_row(name, str(value))
    console.print(options)
    uploads = Table(title="bytes of one client and round by the paper's count (32-bit values, 64-bit positions, 1-bit "
                          "labels)")  # fmt: skip
    for heading in ("method", "rows kept", "upload", "of fedavg", "download", "training"):
        left = heading in ("method", "training")
        uploads.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for name in described(plan):
        uploads.add_row(*_upload_row(plan, name, model, sizes))
    console.print(uploads)
    if layout.words:
        console.print("at most: of the rows of words a client sends those in its data", highlight=False)
    if plan.training.increments is not None:
        size = megabytes(plan.training.increments * layout.num_weights * VALUE_BITS // 8)
        console.print(f"download: at most; U is published in increments of {size}, of which clients fetch those they "
                      "missed", highlight=False)  # fmt: skip
    for warning in warnings(plan):
        console.print(f"warning: {warning}", highlight=False)


def _row_table(title: str, layout: Layout, mean: Aggregation) -> Table:
    """Every group, the words that no label drops if they have a mean of their own, and the rest."""
    table = Table(title=f"{title}: J = {layout.num_rows} labels")
    for heading in ("group", "rows", "a row is", "mean over"):
        table.add_column(heading, justify="right" if heading == "rows" else "left")
    words = {group.name for group in layout.word_groups}
    for group in layout.sent.groups:
        own = group.name in words or group.name not in layout.ranges
        over = mean.over("clients with the word" if own else "clients")
        table.add_row(group.name, f"{group.size:,}", escape(" + ".join(map(_entry, group.slices))), over)
    table.add_row("all else", "", "always sent: no label drops it", mean.over())
    return table


def _entry(part: Slice) -> str:
    """A slice as one would index it; 4 x for the gates of a unit."""
    times = "" if part.repeat == 1 else f"{part.repeat} x "
    return f"{times}{part.param}[{':, ' * part.axis}j{'' if part.span == 1 else f' x {part.span}'}]"


def _model_and_data(plan: Plan) -> tuple[Model, str, IntArray | None]:
    """The plan's model, a line about its data and the clients' sizes; data of a language model need not be there."""
    if plan.model.name == "lstm":
        about = f"{plan.data.name}, {plan.data.clients} clients, {plan.data.vocabulary:,} words"
        return build_lstm(plan), about, None
    data = load_federated(plan)
    sizes = data.sizes
    about = (
        f"{plan.data.name}, {plan.data.partition} partition: {len(sizes)} clients with {sizes.min()} to {sizes.max()} "
        f"samples ({data.unused} unused), judged on {data.eval_size} {data.eval_split} samples"
    )
    return build_model(plan, data), about, sizes


def described(plan: Plan) -> list[str]:
    """Every method, and every compressor alone and with the plan's method."""
    alone = list(COMPRESSORS)
    own = plan.parsed_name.method
    return [*METHODS, *alone, *([] if own == "fedavg" else [f"{own}+{name}" for name in alone])]


@dataclass(frozen=True)
class Nominal:
    """What one client and round of a name costs by the paper's count, in bytes."""

    upload: float
    download: float
    rows_kept: float
    rows: int
    exact: bool
    form: str


def nominal(plan: Plan, name: str, model: Model, sizes: IntArray | None = None) -> Nominal:
    """What a name would cost, from patterns of the first round and without training; `sizes` of the clients."""
    method, compressor = plan.resolved(name)
    layout = told_layout(method, model, plan.training)
    work = local_training(method, model, plan.training, plan.engine, plan.rounds, sizes)
    pattern, assigned = _patterns(plan, method, layout)
    labels = 0.0 if assigned or pattern.all() else layout.num_rows / 8
    labels += layout.num_words / 8
    bits = [_nominal_bits(compressor, layout, own) / 8 for own in pattern[: 1 if method.fixed_count else None]]
    down = float(layout.kept_weights(pattern).mean()) if assigned else layout.num_weights
    return Nominal(
        float(np.mean(bits)) + labels, down * VALUE_BITS / 8, float(pattern.sum(1).mean()), layout.num_rows,
        method.fixed_count, work.chosen[0],
    )  # fmt: skip


def _upload_row(plan: Plan, name: str, model: Model, sizes: IntArray | None) -> list[str]:
    try:
        found = nominal(plan, name, model, sizes)
    except UpdateError:  # a byte budget that this model's messages do not fit
        return [name, "-", "-", "-", "-", "does not fit its budget"]
    full = sum(math.prod(shape) for shape in model.shapes.values()) * VALUE_BITS / 8
    about = "" if found.exact else "about "
    kept = f"{about}{found.rows_kept:,.0f} of {found.rows:,}"
    return [name, kept, about + megabytes(found.upload), percent(found.upload / full),
            about + megabytes(found.download), found.form]  # fmt: skip


def _patterns(plan: Plan, method: Method, layout: Layout) -> tuple[Pattern, bool]:
    """Patterns of a first round in which nothing changes [clients, rows], and whether the server assigns them."""
    cohort = Cohort(plan.seed, 1, tuple(range(min(DRAWS, plan.data.clients) if layout.num_rows < 10_000 else 5)))
    u = {name: torch.zeros(shape) for name, shape in layout.shapes.items()}
    assigned = method.assign(layout, cohort, method.init_server(layout), u)
    if assigned is not None:
        return assigned, True
    fresh = {name: np.stack([part] * len(cohort)) for name, part in method.init_client(layout).items()}
    first = method.first_pattern(layout, cohort, fresh)
    nothing = np.zeros(first.shape)
    return method.upload_pattern(layout, cohort, first.astype(np.int64), first, lambda: nothing, fresh)[0], False


def _nominal_bits(compressor: Compressor | None, layout: Layout, pattern: Pattern) -> int:
    """Bits a client that keeps these rows sends, by the paper's count, found by compressing random differences."""
    count = int(layout.kept_weights(pattern[None])[0])
    if compressor is None:
        return VALUE_BITS * count
    stream = np.random.default_rng(0)
    where = np.flatnonzero(layout.kept_entries(pattern))
    delta = stream.standard_normal(count, dtype=np.float32)
    state = compressor.init_client(layout.num_weights)
    payload, _ = compressor.compress(delta, where, segments(layout, pattern), state, LATE_ROUND, stream)
    return payload.paper_bits


def theory_table(plan: Plan, console: Console) -> None:
    """Eq. (same_variance), Eq. (varepsilon_m) and Eq. (upper_bound) with xi = 0, for rounds up to the plan's last."""
    data = load_federated(plan)
    structure = build_model(plan, data).structure
    method = plan.resolved_method()
    p = method.dropout_rate if isinstance(method, RowDropout) else 0.0
    S = structure.unsparse_number(p)
    sizes = f"d = {structure.inputs}, D = {structure.width}, L = {structure.layers}, J = {structure.rows}"
    assumed = "B = 2, alpha = 1/2, sigma^2 = 1, xi = 0"
    console.print(f"{sizes}, p = {p}, S = (1-p) J D = {S:,.0f}, {assumed}", highlight=False)
    table = Table(title=f"{plan.name}: posterior and error bound by round")
    for heading in ("round", "m_r", "log10 s²", "std s", "depth", "archit.", "prior", "precis.", "epsilon",
                    "bound"):  # fmt: skip
        table.add_column(heading, justify="right")
    for r in sorted({1, 2, 5, *range(10, plan.rounds, 10), plan.rounds} & set(range(1, plan.rounds + 1))):
        m = theory.total_input_data(r, plan.training.iterations, data.sizes)
        terms = theory.estimation_error(structure, S, m)
        log_variance = theory.log_posterior_variance(structure, S, m) / math.log(10)
        bound = theory.error_bound(terms.total, [0.0])
        table.add_row(str(r), f"{m:,}", f"{log_variance:.2f}", f"{theory.posterior_std(structure, S, m):.2e}",
                      *[f"{term:.3g}" for term in terms], f"{terms.total:.4g}", f"{bound:.4g}")  # fmt: skip
    console.width = max(console.width, 100)  # numbers are not cut, whatever the terminal
    console.print(table)
