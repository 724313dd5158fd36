"""Run a plan in a run directory, and go on with one that was stopped."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from fedbiad.data.language import LanguageData
from fedbiad.errors import RunDirError, RunError
from fedbiad.examples import next_words
from fedbiad.experiment import Experiment, Record, build, summarise
from fedbiad.models import LSTM
from fedbiad.plan import Plan, to_dict
from fedbiad.rundir import STATES, RunDir, check_free

OnRound = Callable[[Record], None]
Stop = Callable[[], bool]


class Stopped(Exception):  # noqa: N818  an ending, not an error
    """The run was asked to end and did so after a whole round."""

    def __init__(self, directory: Path, round_: int) -> None:
        super().__init__(f"stopped after round {round_}; go on with `fedbiad resume {directory}`")


def start(
    plan: Plan,
    path: Path,
    on_round: OnRound,
    stop: Stop = lambda: False,
    warn: Callable[[str], None] = lambda _: None,
) -> Record:
    """Run a plan from the beginning in a new directory; returns the summary. Data are loaded before it is made."""
    check_free(path)
    experiment = build(plan, states=path / STATES)
    for note in experiment.notes:
        warn(note)
    with _writing(path, "nothing was begun: free some space, then start again"):
        directory = RunDir.create(path, plan)
    return _run(directory, plan, experiment, on_round, stop)


def resume(
    path: Path,
    on_round: OnRound,
    stop: Stop = lambda: False,
    warn: Callable[[str], None] = print,
    engine: Mapping[str, str] | None = None,
) -> Record:
    """Go on with a run to the same end, bit for bit, that it would have had undisturbed; returns the summary.

    `engine` overrides keys of the plan's table: how the work is done from now on.
    """
    directory = RunDir.open(path)
    finished = directory.summary()
    if finished is not None:
        return finished
    plan = directory.plan()
    plan = plan.replace(engine={**to_dict(plan)["engine"], **(engine or {})})
    for change in directory.changed_versions():
        warn(f"{change} since the run was started: results may differ in the last bits")
    return _run(directory, plan, build(plan, states=path / STATES), on_round, stop, warn)


def _run(
    directory: RunDir,
    plan: Plan,
    experiment: Experiment,
    on_round: OnRound,
    stop: Stop,
    warn: Callable[[str], None] = print,
) -> Record:
    advice = f"nothing before this round is lost: free some space, then `fedbiad resume {directory.path}`"
    with directory.locked(), closing(experiment):
        return _rounds(directory, plan, experiment, on_round, stop, warn, lambda: _writing(directory.path, advice))


@contextmanager
def _writing(path: Path, advice: str) -> Iterator[None]:
    """Turn what the system says about files into what to do about it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(f"the disk is full ({error.filename or path}); {advice}") from None
        raise RunDirError(f"cannot write to {path}: {error}; make it writable, or choose another --out") from None


def _rounds(
    directory: RunDir,
    plan: Plan,
    experiment: Experiment,
    on_round: OnRound,
    stop: Stop,
    warn: Callable[[str], None],
    saving: Callable[[], AbstractContextManager[None]],
) -> Record:
    with saving():
        last, records, damaged = directory.load()
    for path in damaged:
        warn(f"checkpoint {path} is damaged and passed over; going on from round {last.round if last else 0}")
    u, start_round = (last.u, last.round) if last else (experiment.initial(), 0)
    store = experiment.transport.store
    store.load(last.states if last else {})
    server, before = last.server if last else None, records[-1] if records else None
    for record, outcome in experiment.run(u, start_round, server, before):
        records.append(record)
        u = outcome.u
        ends = stop() and outcome.round < plan.rounds
        with saving():
            directory.append(record)
            if ends or outcome.round % plan.engine.checkpoint_every == 0 or outcome.round == plan.rounds:
                directory.checkpoints.save(outcome.round, outcome.u, outcome.state, store)
        on_round(record)
        if ends:
            raise Stopped(directory.path, outcome.round)
    told = summarise(records, plan.target_accuracy)
    if isinstance(experiment.data, LanguageData) and isinstance(experiment.model, LSTM):
        told["perplexity"] = None if told["loss"] is None else math.exp(min(told["loss"], 700.0))
        told["examples"] = next_words(experiment.model, experiment.data, {"before": experiment.initial(), "after": u})
    form, why = experiment.transport.training.work.chosen
    how = {"eval_samples": experiment.data.eval_size, "form": form, "form_because": why}
    summary = {"plan": plan.name, "method": plan.method, "seed": plan.seed, **how, **told}
    with saving():
        directory.finish(summary)
    return summary
