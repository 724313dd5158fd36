"""What a plan means, without training: rows, parameters, bytes; and what the theory says of it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedbiad import theory
from fedbiad.arrays import Pattern
from fedbiad.cohort import Cohort
from fedbiad.compare import percent
from fedbiad.compressors import COMPRESSORS, Compressor
from fedbiad.data import FederatedData
from fedbiad.experiment import assemble, build_model, load_federated
from fedbiad.methods import METHODS, RowDropout
from fedbiad.models import Model
from fedbiad.payloads import VALUE_BITS
from fedbiad.plan import Plan, warnings
from fedbiad.progress import megabytes
from fedbiad.rows import Layout
from fedbiad.sending import segments

DRAWS = 100
"""Patterns whose mean upload is shown for a method that does not fix the count of each group."""

LATE_ROUND = 1000
"""A round after every warm-up."""


def describe_plan(plan: Plan, console: Console) -> None:
    """Data, model, row groups of the plan's method, its options, and the upload of every method."""
    data = load_federated(plan)
    model = build_model(plan, data)
    sizes = sorted(data.sizes)
    console.print(
        f"[bold]{plan.name}[/]  {plan.data.name}, {plan.data.partition} partition: {len(sizes)} clients with "
        f"{sizes[0]} to {sizes[-1]} samples ({data.unused} unused), judged on {len(data.eval_targets)} "
        f"{data.eval_split} samples; {plan.selected_clients} clients a round, {plan.rounds} rounds", highlight=False,
    )  # fmt: skip
    method = plan.resolved_method()
    layout = model.layout(method.row_kind)
    console.print(
        f"model {model}: {layout.num_weights:,} weights = {megabytes(layout.num_weights * VALUE_BITS // 8)}",
        highlight=False,
    )
    rows = Table(title=f"row groups of {plan.method} (rows = {method.row_kind}): J = {layout.num_rows} labels")
    for heading in ("group", "rows", "a row is"):
        rows.add_column(heading, justify="right" if heading == "rows" else "left")
    for group in layout.groups:
        parts = [f"{s.param}[{':, ' * s.axis}j{'' if s.span == 1 else f' x {s.span}'}]" for s in group.slices]
        rows.add_row(group.name, str(group.size), escape(" + ".join(parts)))
    console.print(rows)
    options = Table(title=f"options of {plan.method}", show_header=False)
    for part in plan.resolved():
        for name, value in dataclasses.asdict(part).items() if part is not None else ():
            options.add_row(name, str(value))
    console.print(options)
    uploads = Table(title="bytes of one client and round by the paper's count (32-bit values, 64-bit positions, 1-bit "
                          "labels)")  # fmt: skip
    for heading in ("method", "rows kept", "upload", "of fedavg", "download", "local step"):
        left = heading in ("method", "local step")
        uploads.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for name in described(plan):
        uploads.add_row(*_upload_row(plan, name, data, model))
    console.width = max(console.width, 100)  # names and numbers are not cut, whatever the terminal
    console.print(uploads)
    for warning in warnings(plan):
        console.print(f"warning: {warning}", highlight=False)


def described(plan: Plan) -> list[str]:
    """Every method, and every compressor alone and with the plan's method."""
    alone = list(COMPRESSORS)
    own = plan.parsed_name.method
    return [*METHODS, *alone, *([] if own == "fedavg" else [f"{own}+{name}" for name in alone])]


def _upload_row(plan: Plan, name: str, data: FederatedData, model: Model) -> list[str]:
    method, compressor = plan.resolved(name)
    experiment = assemble(method, model, data, plan.training, plan.engine, plan.rounds, plan.seed, 1)
    work, u = experiment.transport.work, experiment.initial()
    layout, full = work.layout, work.layout.num_weights * VALUE_BITS / 8
    cohort = Cohort(plan.seed, LATE_ROUND, tuple(range(min(DRAWS, data.num_clients))))
    assigned = method.assign(layout, cohort, method.init_server(layout), u)
    asked = replace(cohort, assigned=assigned, present=np.ones((len(cohort), data.classes), dtype=np.bool_))
    stage_one = replace(asked, round=1)
    pattern = method.first_pattern(layout, stage_one, experiment.transport.store.get(cohort.ids))
    pattern = pattern if assigned is None else assigned
    labels = 0.0 if assigned is not None or pattern.all() else layout.num_rows / 8
    kept = pattern.sum() / len(pattern)
    sizes = [_nominal(compressor, layout, own) / 8 for own in pattern[: 1 if method.fixed_count else DRAWS]]
    size = float(np.mean(sizes)) + labels
    down = full if assigned is None else float(layout.kept_weights(assigned).mean()) * VALUE_BITS / 8
    about = "" if method.fixed_count else "about "
    form = work.step_class().__name__.removesuffix("Step").lower()
    return [name, f"{about}{kept:.0f} of {layout.num_rows}", about + megabytes(size), percent(size / full),
            about + megabytes(down), form]  # fmt: skip


def _nominal(compressor: Compressor | None, layout: Layout, pattern: Pattern) -> int:
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
