"""What every name must keep where words take the mean of the clients that have them: whole runs on made-up text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedbiad import plan as plans
from fedbiad.aggregation import Total
from fedbiad.coding import pattern_bytes
from fedbiad.cohort import Cohort
from fedbiad.compressors import COMPRESSORS
from fedbiad.data.language import LanguageData, federate_text
from fedbiad.data.text import Corpus
from fedbiad.errors import PlanError
from fedbiad.experiment import assemble, build
from fedbiad.methods import METHODS, Method
from fedbiad.models import MLP
from fedbiad.plan import EnginePlan, Plan, TrainingPlan
from fedbiad.transports.base import Counts
from fedbiad.transports.ray_tasks import Sums

WORDS, COMMON, CLIENTS = 60, 8, 6
SMALL = {
    "rounds": "2", "data.vocabulary": str(WORDS), "data.clients": str(CLIENTS), "data.bptt": "5", "top": "1",
    "model.embedding": "6", "model.hidden": "[5]", "training.selected": "4", "training.iterations": "4",
    "training.batch": "2", "training.learning_rate": "2.0", "training.word_mean": "present", "engine.block": "2",
    "methods.fedbiad.stage_boundary": "1", "methods.fedbiad.interval": "1", "compressors.evidence.budget": "0.3",
}  # fmt: skip
NAMES = [*METHODS, "fedmp:paper", "fjord:paper", "heterofl:paper", *COMPRESSORS,
         *(f"fedbiad+{name}" for name in COMPRESSORS), "feddrop+stc", "heterofl+evidence"]  # fmt: skip
each_name = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def data() -> LanguageData:
    """Client k has the common words and eight of its own; the last four words are nobody's."""
    stream, own = np.random.default_rng(0), (WORDS - COMMON - 4) // CLIENTS
    texts = []
    for k in range(CLIENTS):
        known = np.r_[np.arange(COMMON), COMMON + k * own + np.arange(own)]
        texts.append(np.r_[known, stream.choice(known, 40 + 5 * k)])
    tokens = np.concatenate(texts).astype(np.int32)
    users = tuple((f"u{k}", len(text)) for k, text in enumerate(texts))
    corpus = Corpus("made", tuple(map(str, range(WORDS))), tokens, tokens[:9], tokens[:40], users)
    return federate_text(corpus, clients=CLIENTS, seed=0, bptt=5)


def plan_of(name: str, **settings: str) -> Plan:
    return plans.load("ptb", {**SMALL, "method": name, **settings})


def run(plan: Plan, data: LanguageData) -> tuple[list[dict[str, Any]], dict[str, bytes], dict[str, bytes]]:
    """The records without times, the last model, and what clients remember."""
    experiment = build(plan, data)
    records, model = [], {}
    try:
        for record, outcome in experiment.run(experiment.initial()):
            del record["seconds"]
            records.append(record)
            model = {name: value.numpy().tobytes() for name, value in outcome.u.items()}
        states = {name: part.tobytes() for name, part in experiment.transport.store.dump().items()}
    finally:
        experiment.close()
    return records, model, states


@each_name
def test_real_bytes_change_nothing(name: str, data: LanguageData) -> None:
    skipped = run(plan_of(name), data)
    assert skipped == run(plan_of(name, **{"engine.wire": "true"}), data)
    assert all(record["failed"] == [] for record in skipped[0])


@each_name
def test_words_of_nobody_stay_and_less_is_sent(name: str, data: LanguageData) -> None:
    experiment = build(plan_of(name), data)
    u = experiment.initial()
    (_, first), (record, last) = experiment.run(u)
    chosen = [k for outcome in (first, last) for k in outcome.tally.reports().ids]
    present = data.local(Cohort(0, 1, tuple(chosen)), 1, 1).present(WORDS)
    seen = np.logical_or.reduce(present)
    assert not seen[-4:].any()
    for part in experiment.model.words:
        moved = (last.u[part.param] != u[part.param]).reshape(WORDS, -1).any(1).numpy()
        assert not moved[~seen].any()
        assert moved[seen].any()
    every = run(plan_of(name, **{"training.word_mean": "all"}), data)[0][-1]
    assert record["download"] == every["download"]
    if not name.endswith(("evidence", "stc")):  # one spends its budget, the other sends fewer entries than words
        assert record["upload"]["encoded"] < every["upload"]["encoded"]


def updates_of(client: int, plan: Plan, data: LanguageData) -> tuple[Total, Counts]:
    """The sums of one client alone, and its bytes."""
    experiment = build(plan, data)
    transport = experiment.transport
    lent = transport.store.lend((client,))
    updates, _ = transport.training.train(experiment.initial(), Cohort(0, 1, (client,)), lent)
    assert updates.total is not None
    return updates.total, updates.upload


def test_the_bitmap_is_counted(data: LanguageData) -> None:
    """FedAvg's message: all weights but those of absent words, and the bitmap."""
    _, every = updates_of(2, plan_of("fedavg", **{"training.word_mean": "all"}), data)
    _, own = updates_of(2, plan_of("fedavg"), data)
    present = data.local(Cohort(0, 1, (2,)), 1, 1).present(WORDS)[0]
    assert present.sum() == 16
    left_out = 4 * (WORDS - 16) * (6 + 5 + 1)  # vector, output row, bias
    assert every.paper[0] - own.paper[0] == left_out - 8  # 60 words of a bit each
    assert every.encoded[0] - own.encoded[0] == left_out - pattern_bytes(present)
    assert 1 <= pattern_bytes(present) <= 8


@pytest.mark.parametrize("name", ["fedavg", "fedbiad-letter", "fedmp"])
def test_sums_of_one_client_say_which_words_it_has(name: str, data: LanguageData) -> None:
    total, _ = updates_of(2, plan_of(name, **{"engine.wire": "true"}), data)
    present = data.local(Cohort(0, 1, (2,)), 1, 1).present(WORDS)[0]
    size = float(data.sizes[2])
    assert set(total.known) == {"embedding.weight", "output.weight", "output.bias"}
    assert total.known["output.bias"].tolist() == (size * present).tolist()
    assert total.known["embedding.weight"].flatten().tolist() == (size * present).tolist()


def test_sums_arrive_whole_over_ray(data: LanguageData) -> None:
    total, _ = updates_of(2, plan_of("fedmp"), data)
    there = Sums.of(total, 1).total()  # as it is sent from a node
    for sent, found in ((total.known, there.known), (total.holders, there.holders), (total.moved, there.moved)):
        assert sent.keys() == found.keys()
        assert all(torch.equal(value, found[name]) for name, value in sent.items())


@pytest.mark.parametrize("name", ["fedavg", "fedbiad-letter", "fedmp+stc"])
def test_several_processes_give_the_same_bits(name: str, data: LanguageData) -> None:
    assert run(plan_of(name), data) == run(plan_of(name, **{"engine.workers": "2"}), data)


@pytest.mark.parametrize("rows", ["paper", "output-words", "weight-rows"])
def test_masked_is_compact(rows: str, data: LanguageData) -> None:
    settings = {"methods.fedbiad.rows": rows, "methods.fedbiad.noise": "0.0"}
    losses, sizes = [], []
    for form in ("masked", "compact"):
        records, _, _ = run(plan_of("fedbiad", **settings, **{"engine.form": form}), data)
        losses.append([record["loss"] for record in records])
        sizes.append([record["upload"] for record in records])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert sizes[0] == sizes[1]


def test_a_resumed_run_goes_on_as_it_was(data: LanguageData) -> None:
    """From U_1, the server's state and the clients' states after round 1."""
    plan = plan_of("fedmp+stc")
    whole, parts = build(plan, data), build(plan, data)
    outcomes = [outcome for _, outcome in whole.run(whole.initial())]
    _, first = next(iter(parts.run(parts.initial())))
    resumed = build(plan, data)
    resumed.transport.store.load(parts.transport.store.dump())
    [(_, last)] = resumed.run(first.u, 1, first.state)
    assert all(torch.equal(last.u[name], value) for name, value in outcomes[-1].u.items())


@pytest.mark.parametrize("name", ["stc", "dgc", "fedbiad+stc"])
def test_of_absent_words_compressors_remember_nothing(name: str, data: LanguageData) -> None:
    experiment = build(plan_of(name), data)
    for _ in experiment.run(experiment.initial()):
        pass
    layout, found = experiment.transport.training.channel.layout, 0
    for client, memory in experiment.transport.store.lend(range(CLIENTS)).remembered.items():
        present = data.local(Cohort(0, 1, (client,)), 1, 1).present(WORDS)
        possible = layout.sent.kept_entries(layout.sent_rows(layout.all_rows(1), present)[0])
        for part in memory.values():
            assert not part[~possible].any()
            found += int(part[possible].any())
    assert found >= 4


# ---------------------------------------------------------------------- what cannot be


def test_a_plan_without_words_is_told() -> None:
    with pytest.raises(PlanError, match=r"word_mean = 'present' needs a model with words .* mlp has none"):
        plans.load("digits", {"training.word_mean": "present"})
    with pytest.raises(PlanError, match=r"training\.word_mean: input should be 'all' or 'present'"):
        plans.load("ptb", {"training.word_mean": "some"})


def test_a_model_without_words_is_told(data: LanguageData) -> None:
    training, engine = TrainingPlan(0.1, word_mean="present"), EnginePlan()
    with pytest.raises(PlanError, match="MLP has none"):
        assemble(Method(), MLP(4, (3,), 2), replace(data), training, engine, 1, 0, 1)


@pytest.mark.parametrize("name", ["fedmp", "fjord", "heterofl", "fedbiad-letter"])
def test_clients_that_hold_different_numbers_of_rows_run_compactly_alone(name: str, data: LanguageData) -> None:
    found = []
    for form, block, expected in (("auto", "1", "compact"), ("auto", "2", "masked"), ("masked", "1", "masked")):
        settings = {"engine.form": form, "engine.block": block, "training.word_mean": "all", "rounds": "3"}
        experiment = build(plan_of(name, **settings), data)
        assert experiment.transport.training.work.chosen[0] == expected
        *_, (_, outcome) = experiment.run({k: value.double() for k, value in experiment.initial().items()})
        found.append(outcome.u)
    for other in found[1:]:
        for part, value in found[0].items():
            torch.testing.assert_close(value, other[part], rtol=1e-10, atol=1e-10)
