"""What a byte budget would cost in variance, from the checkpoint of a finished run, before anyone spends it.

Clients are trained once more from the last U as in the next round, and what they learned is sent with every budget by
the real compressor. The noise that is there anyway is seen by leaving each client out of the server's mean, and by
training it again with other draws. docs/evidence.md explains the numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedbiad import streams, theory, wire
from fedbiad.advice import Advice, Prospect
from fedbiad.aggregation import AGGREGATIONS
from fedbiad.checkpoint import Checkpoint
from fedbiad.client import Trained
from fedbiad.cohort import Cohort
from fedbiad.compressors import Evidence
from fedbiad.errors import PlanError, RunDirError, RunError, UpdateError
from fedbiad.experiment import Experiment, build
from fedbiad.mean_noise import Learned, MeanNoise
from fedbiad.payloads import Multiples
from fedbiad.plan import Plan, to_dict
from fedbiad.rundir import RunDir
from fedbiad.sending import Change, Channel, Senders
from fedbiad.server import select_clients

BUDGETS = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005)
"""Shares of FedAvg's bytes."""
SHARE = 25.0
"""How much of the sampling noise a budget may add: set after runs on Fashion-MNIST, docs/evidence.md."""
FEWEST, MOST = 10, 100
"""Clients looked at, unless stated: those of a round, but not fewer and not more than these."""

Tick = Callable[[int, int], None]
"""Told how many steps are done, and of how many."""


def advise(
    path: Path,
    budgets: Sequence[float] = BUDGETS,
    share: float = SHARE,
    clients: int | None = None,
    floor: float = 0.0,
    tick: Tick = lambda done, steps: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Advice:
    """Advice from a finished run; nothing in its directory is changed."""
    directory = RunDir.open(path)
    plan = directory.plan()
    last, damaged = directory.checkpoints.load()
    if directory.summary() is None:
        raise RunDirError(f"{path} is not finished; `fedbiad resume {path}` goes on with it")
    if last is None:
        why = "damaged" if damaged else "missing"
        raise RunDirError(f"every checkpoint of {path} is {why}, so there is no model to start from; run it again")
    for file in damaged:
        warn(f"checkpoint {file} is damaged and passed over; what follows is of round {last.round}")
    bare = _bare(plan)
    with closing(build(bare)) as experiment:
        return Adviser(experiment, last, bare.method, floor).advice(tuple(budgets), share, clients, tick)


def _bare(plan: Plan) -> Plan:
    """The same clients without a compressor, in this process."""
    name, engine = plan.parsed_name, to_dict(plan)["engine"]
    engine = {**engine, "transport": "local", "workers": 1, "store": "memory"}
    engine.pop("address", None)
    profile = "" if name.method_profile == "original" else f":{name.method_profile}"
    return plan.replace(method=name.method + profile, compressors={}, engine=engine)


@dataclass(frozen=True)
class Message:
    """What one client would send with one budget."""

    bytes: int
    step: float
    sent: int


@dataclass(frozen=True)
class Adviser:
    """A finished run, ready to train its clients once more."""

    experiment: Experiment
    last: Checkpoint
    method: str
    floor: float

    def advice(self, budgets: Sequence[float], share: float, clients: int | None, tick: Tick) -> Advice:
        """Train, send with every budget, compare."""
        server, registered = self.experiment.server, self.experiment.data.num_clients
        ids, ladder = self._chosen(clients), sorted(set(budgets), reverse=True)
        steps, done = (2 + len(ladder)) * len(ids), itertools.count(1)

        def step() -> None:
            tick(next(done), steps)

        self.experiment.transport.store.load(self.last.states)
        seen = list(self._learned(ids, self.experiment.seed, ladder, step))
        if len(seen) < 2:
            raise RunError(f"{len(seen)} of {len(ids)} clients trained to something finite: nothing to compare")
        rule = AGGREGATIONS[server.method.aggregation]
        mean = MeanNoise.of([one for one, _ in seen], server.layout, rule, self.last.u)
        other = streams.key(self.experiment.seed, self.last.round, streams.SERVER, "advise")
        between, within = mean.between(), mean.within(one for one, _ in self._learned(ids, other, [], step))
        noise = theory.sampling_noise(between, within, server.selected, registered)
        sent = zip(ladder, zip(*(messages for _, messages in seen), strict=True), strict=True)
        found = [
            _prospect(Evidence(budget=budget, floor=self.floor), messages, mean, server.selected, noise)
            for budget, messages in sent
        ]
        fits = [one.budget for one in found if one.of_noise is not None and one.of_noise <= share]
        return Advice(
            self.method, self.last.round, len(seen), server.selected, registered, noise, between, within, mean.update,
            self.floor, share, min(fits, default=None), tuple(found),
        )  # fmt: skip

    def _chosen(self, clients: int | None) -> tuple[int, ...]:
        """As many as were asked for; if those are as many as a round's, they are the next round's own."""
        registered, selected = self.experiment.data.num_clients, self.experiment.server.selected
        count = min(registered, MOST, max(selected, FEWEST)) if clients is None else clients
        if registered < 2:
            raise RunError("the run has one client: there is no sampling noise to compare with")
        if not 2 <= count <= registered:
            raise PlanError([f"{count} clients cannot be compared; there are {registered}: state 2 or more of them"],
                            "--clients")  # fmt: skip
        return select_clients(self.experiment.seed, self.last.round + 1, registered, count)

    def _learned(
        self, ids: tuple[int, ...], seed: int, budgets: Sequence[float], step: Callable[[], None]
    ) -> Iterator[tuple[Learned, list[Message | str]]]:
        """The next round of these clients, as far as it can be used, and what each would send with every budget.

        With another seed they make other draws; where a budget cannot be kept, a text says why.
        """
        transport, server = self.experiment.transport, self.experiment.server
        training, u = transport.training, {name: self.last.u[name] for name in server.layout.shapes}
        everyone = Cohort(seed, self.last.round + 1, ids)
        everyone = replace(everyone, assigned=server.method.assign(server.layout, everyone, self.last.server, u))
        for start in range(0, len(ids), transport.block):
            cohort = everyone.part(slice(start, start + transport.block))
            received, _ = training.channel.download(u, cohort)
            own, trained, senders = training.local(received, cohort, transport.store.lend(cohort.ids))
            for i, client in enumerate(cohort.ids):
                step()
                if not trained.usable[i]:
                    continue
                change, messages = training.channel.change(trained, i, senders), []
                for budget in budgets:
                    sending = replace(training.channel, compressor=Evidence(budget=budget, floor=self.floor))
                    messages.append(_message(sending, own, trained, i, senders, change))
                    step()
                full = np.zeros(server.layout.num_weights, dtype=np.float32)
                full[change.where] = change.delta
                present = None if senders.present is None else senders.present[i]
                yield Learned(client, senders.weights[i], trained.pattern[i], full, present), messages


def _message(
    channel: Channel, cohort: Cohort, trained: Trained, i: int, senders: Senders, change: Change
) -> Message | str:
    try:
        reply, _ = channel.reply(cohort, trained, i, senders, change)
    except UpdateError as error:
        return str(error)
    (part,) = reply.payload.parts
    assert isinstance(part, Multiples)
    assigned = None if cohort.assigned is None else cohort.assigned[i]
    return Message(wire.reply_size(channel.layout, reply, assigned), float(part.step), len(part.positions))


def _prospect(
    code: Evidence, messages: Sequence[Message | str], mean: MeanNoise, selected: int, noise: float
) -> Prospect:
    """The means over the clients, and what their messages together add to a mean of as many as a round has."""
    obstacles = [one for one in messages if isinstance(one, str)]
    if obstacles:
        return Prospect(code.budget, obstacle=obstacles[0])
    whole = [one for one in messages if isinstance(one, Message)]
    each = [mean.added(one, message.step, code.floor) if message.step else (0.0, 0.0)
            for one, message in zip(mean.clients, whole, strict=True)]  # fmt: skip
    (alone, part), spread = np.mean(each, axis=0).tolist(), float(np.std(each, axis=0, ddof=1)[1])
    variance = part * len(whole) ** 2 / selected
    return Prospect(
        code.budget, float(np.mean([one.bytes for one in whole])), float(np.mean([one.step for one in whole])),
        float(np.mean([one.sent for one in whole])), alone, variance,
        _ratio(variance, noise), _ratio(variance, mean.update), _ratio(spread / math.sqrt(len(whole)), part),
    )  # fmt: skip


def _ratio(part: float, whole: float) -> float | None:
    """Nothing of nothing is 0; of something it has no meaning."""
    return part / whole if whole else None if part else 0.0
