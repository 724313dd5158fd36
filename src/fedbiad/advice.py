"""What a byte budget would cost in variance, as numbers and as a table; `advise` finds it out."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Prospect:
    """What one budget comes to: means over the clients looked at, and the variance of the server's mean."""

    budget: float
    bytes: float | None = None
    step: float | None = None
    sent: float | None = None
    """Weights in a message."""
    added_variance: float | None = None
    """Of one message: E ||what arrives - what was learned||^2."""
    variance: float | None = None
    """Added to the server's mean by all messages of a round."""
    of_noise: float | None = None
    of_update: float | None = None
    """As shares of the sampling noise and of the squared norm of the mean update."""
    uncertainty: float | None = None
    """Of the variance, relative: one standard error, from how clients differ."""
    obstacle: str | None = None
    """Why there is no such message."""


@dataclass(frozen=True)
class Advice:
    """What a run's clients tell about budgets."""

    method: str
    """The run's, without a compressor."""
    round: int
    """The round whose end was looked at."""
    clients: int
    selected: int
    registered: int
    noise: float
    """The variance of the server's mean that is there anyway."""
    between: float
    within: float
    """The variance between clients as they are seen, and the part of it that is within each."""
    update: float
    """||mean update||^2."""
    floor: float
    """The least probability with which a weight is sent."""
    share: float
    pick: float | None
    """The smallest budget that adds no more than this share of the noise."""
    prospects: tuple[Prospect, ...]


def show(advice: Advice, console: Console) -> None:
    """The budgets as a table, and which to take."""
    table = Table(title=f"{advice.method} after round {advice.round}: what a budget of `evidence` would cost"
                        + (f" with a floor of {advice.floor:g}" if advice.floor else ""))  # fmt: skip
    for heading in ("budget", "bytes a message", "step", "weights sent", "variance of the mean", "of sampling noise",
                    "of squared update"):  # fmt: skip
        table.add_column(heading, justify="right")
    for one in advice.prospects:
        table.add_row(f"{one.budget:.4g}", *_cells(one), style="bold" if one.budget == advice.pick else None)
    console.width = max(console.width, 110)  # numbers are not cut, whatever the terminal
    console.print(table)
    told = [one.uncertainty for one in advice.prospects if one.uncertainty is not None]
    console.print(
        f"Sampling noise, there anyway: {advice.noise:.3g}, from which {advice.selected} of {advice.registered} "
        f"clients are selected and what they draw. Looked at {advice.clients} clients: variances added are known to "
        f"± {max(told, default=0.0):.0%} (one standard error).", highlight=False, style="dim",
    )  # fmt: skip
    for one in advice.prospects:
        if one.obstacle is not None:
            console.print(f"{one.budget:.4g}: {one.obstacle}", highlight=False)
    floor = f" --set compressors.evidence.floor={advice.floor:g}" if advice.floor else ""
    limit = f"{advice.share:g} times the sampling noise"
    if advice.pick is None:
        console.print(f"No budget here adds at most {limit}: name larger ones (--budgets), or a larger --share.")
    else:
        console.print(
            f"Advice: budget = {advice.pick:.4g}, the smallest that adds at most {limit}: "
            f"--set method={advice.method}+evidence --set compressors.evidence.budget={advice.pick:.4g}{floor}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip


def _cells(one: Prospect) -> list[str]:
    known = (one.bytes, one.step, one.sent, one.variance, one.of_noise, one.of_update)
    form = ("{:,.0f}", "{:.3g}", "{:,.0f}", "{:.3g}", "{:.3g}", "{:.3g}")
    return ["-" if value is None else text.format(value) for text, value in zip(form, known, strict=True)]
