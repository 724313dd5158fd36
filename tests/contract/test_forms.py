"""Masked, compact, dual and fused local training are the same in float64, whatever the method and the compressor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from fedbiad.arrays import ClientState, Params, Pattern
from fedbiad.client import LocalTraining, client_update
from fedbiad.cohort import Cohort
from fedbiad.data.base import FederatedData
from fedbiad.errors import PlanError
from fedbiad.experiment import Experiment, Record, assemble
from fedbiad.methods import METHODS, FedBIAD, Method
from fedbiad.methods.base import Resampled
from fedbiad.models import CNN, MLP, Model
from fedbiad.plan import EnginePlan, TrainingPlan
from fedbiad.plan_problems import resolve
from fedbiad.rows import RowKind
from fedbiad.training import forms
from fedbiad.training.forms import Form

INPUTS, UNITS, CLASSES, BATCH = 40, 17, 5, 5
SIZES = [12 + 3 * k for k in range(6)]  # batches of 5 cross the epochs: a sample is there twice
PICTURES, BACKGROUND = 4, -0.375  # so many clients have mostly background, so that blocks are mixed, too
MODEL = MLP(INPUTS, (UNITS,), CLASSES)
DUAL = ["fedavg", "feddrop", "fedbiad", "afd", "fedmp", "fjord", "heterofl", "focus"]
COMPRESSED = ["fedavg+stc", "fedbiad+dgc", "feddrop+fedpaq", "afd+signsgd", "fjord+stc", "fedmp+half", "heterofl+stc"]
COMPRESSED.append("focus+stc")


def data(dtype: torch.dtype = torch.float64) -> FederatedData:
    stream = np.random.default_rng(0)
    inputs = torch.from_numpy(stream.normal(size=(sum(SIZES) + 50, INPUTS))).to(dtype)
    pictures = inputs[: sum(SIZES[:PICTURES])]
    pictures[torch.from_numpy(stream.random(pictures.shape) < 0.8)] = BACKGROUND
    pictures[:, 0] = BACKGROUND
    targets = torch.from_numpy(stream.integers(0, CLASSES, sum(SIZES) + 50))
    pool = sum(SIZES)
    return FederatedData(
        inputs[:pool], targets[:pool], np.cumsum([0, *SIZES]), inputs[pool:], targets[pool:], "test", CLASSES, 0
    )


def experiment(
    name: str, form: Form, block: int = 3, wire: bool | None = None, rows: RowKind | None = None, **training: Any
) -> Experiment:
    method, compressor, problems = resolve(name, 0.5, {} if rows is None else {name: {"rows": rows}}, {})
    assert method is not None
    assert not problems
    if isinstance(method, FedBIAD):  # both stages, patterns that change, no noise
        method = replace(method, noise=0.0, stage_boundary=3, interval=2)
    work = TrainingPlan(0.3, 12, BATCH, len(SIZES) - 1, **training)
    engine = EnginePlan(form=form, block=block, wire=bool(wire))
    return assemble(
        method,
        MODEL,
        data(torch.float32 if wire is not None else torch.float64),
        work,
        engine,
        5,
        0,
        len(SIZES) - 1,
        compressor=compressor,
    )


def run(name: str, form: Form, block: int = 3, rows: RowKind | None = None) -> tuple[Params, Record]:
    ready = experiment(name, form, block, rows=rows)
    *_, (record, outcome) = ready.run({k: value.double() for k, value in ready.initial().items()})
    return outcome.u, record


def assert_same(one: tuple[Params, Record], two: tuple[Params, Record], tolerance: float) -> None:
    for name, value in one[0].items():
        torch.testing.assert_close(value, two[0][name], rtol=tolerance, atol=tolerance)
    assert one[1]["train_loss"] == pytest.approx(two[1]["train_loss"], rel=1e-6)  # losses travel as float32
    for part in ("upload", "download", "resampled_share", "kept_rows_share", "row_holders"):
        assert one[1][part] == two[1][part]


@pytest.mark.parametrize("name", DUAL)
@pytest.mark.parametrize("form", ["dual", "fused"])
def test_the_dual_forms_are_the_masked_one(name: str, form: Form) -> None:
    assert_same(run(name, form), run(name, "masked"), 1e-10)


@pytest.mark.parametrize("name", ["feddrop", "fedbiad", "afd"])
@pytest.mark.parametrize("form", ["dual", "fused"])
def test_also_where_classes_are_dropped(name: str, form: Form) -> None:
    assert_same(run(name, form, rows="units-and-classes"), run(name, "masked", rows="units-and-classes"), 1e-10)


@pytest.mark.parametrize("name", COMPRESSED)
def test_also_compressed(name: str) -> None:
    # messages are float32: what two forms send may differ in the last bit, a sign or a place of it not at all
    assert_same(run(name, "fused"), run(name, "masked"), 1e-5)


@pytest.mark.parametrize("name", [*DUAL, *COMPRESSED])
def test_real_messages_change_no_bit_of_the_fused_form(name: str) -> None:
    found = []
    for wire in (False, True):
        ready = experiment(name, "fused", wire=wire)
        *_, (record, outcome) = ready.run(ready.initial())
        found.append((outcome.u, {**record, "seconds": None}))
    assert all(torch.equal(value, found[1][0][part]) for part, value in found[0][0].items())
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("name", DUAL)
@pytest.mark.parametrize("form", ["fused", "masked"])
@pytest.mark.parametrize("block", [1, 2, 5])
def test_blocks_do_not_matter(name: str, form: Form, block: int) -> None:
    assert_same(run(name, form, block), run(name, form, 3), 1e-10)


@dataclass(frozen=True)
class Asked(FedBIAD):
    """The same method with a rule of its own, for which it is asked at every check."""

    def next_pattern(self, *arguments: Any) -> tuple[Pattern, ClientState, Resampled]:
        return super().next_pattern(*arguments)


@pytest.mark.parametrize("dropout_rate", [0.2, 0.5])
def test_swaps_inside_compiled_training_are_those_of_the_method(dropout_rate: float) -> None:
    """Who holds what, in everything that comes out of a round; sums go over the held units in another order."""
    model = MLP(INPUTS, (70,), CLASSES)
    cohort, found = Cohort(0, 1, tuple(range(len(SIZES)))), []
    for kind in (FedBIAD, Asked):
        method = kind(dropout_rate=dropout_rate, noise=0.0)
        work = LocalTraining(method, model, model.layout("units"), 40, BATCH, 0.3, form="fused", largest=max(SIZES))
        state = {name: np.stack([part] * len(SIZES)) for name, part in method.init_client(work.layout).items()}
        begin = model.init(np.random.default_rng(0)).items()
        u = {name: part.double().expand(len(SIZES), *part.shape) for name, part in begin}
        found.append(client_update(work, u, cohort, data().local(cohort, 40, BATCH), state))
    one, other = found
    assert one.checks == other.checks == 12
    assert 10 < one.resampled.sum() < len(SIZES) * 12
    for part in ("pattern", "usable", "resampled"):
        assert np.array_equal(getattr(one, part), getattr(other, part))
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-11)
    for name, kept in one.state.items():
        np.testing.assert_allclose(kept.astype(float), other.state[name].astype(float), rtol=1e-11)
    for k in range(len(SIZES)):
        ours, theirs = one.learned.change(k), other.learned.change(k)
        assert all(torch.allclose(part, theirs[name], rtol=1e-9, atol=1e-12) for name, part in ours.items())


def test_some_clients_have_pictures_and_some_have_not() -> None:
    """Else the tests above would not look at both."""
    local = data().local(Cohort(0, 1, tuple(range(len(SIZES)))), 12, BATCH)
    assert [facts.picture is not None for facts in local.facts()] == [k < PICTURES for k in range(len(SIZES))]


def test_some_clients_lack_a_class() -> None:
    """Else HeteroFL's masked logits would not be looked at."""
    present = data().local(Cohort(0, 1, tuple(range(len(SIZES)))), 12, BATCH).present(CLASSES)
    assert 0 < (~present).any(1).sum() < len(SIZES)


def test_samples_do_come_twice_in_a_batch() -> None:
    """Else the tests above would not look at what happens then."""
    visits = data().local(Cohort(0, 1, tuple(range(len(SIZES)))), 12, BATCH).schedule.reshape(-1, BATCH)
    assert any(len(set(batch)) < BATCH for batch in visits.tolist())


class OwnLoss(Method):
    """A method with a loss of its own."""

    def objective(self, outputs, batch, cohort):  # type: ignore[no-untyped-def]
        return 2.0 * super().objective(outputs, batch, cohort)


PLAIN = forms.Regime(largest=max(SIZES))
FEDAVG, FEDBIAD = METHODS["fedavg"], METHODS["fedbiad"]


@pytest.mark.parametrize(
    ("method", "model", "rows", "regime", "why"),
    [
        (FEDAVG, MODEL, "units", PLAIN, None),
        (FEDBIAD, MODEL, "units", replace(PLAIN, noise_std=1e-13), None),
        (FEDAVG, MLP(INPUTS, (4, 4), 2), "units", PLAIN, "one hidden layer"),
        (FEDAVG, CNN(8, (2, 2), 4, 2, 1), "units", PLAIN, "one hidden layer"),
        (METHODS["heterofl"], MODEL, "units-and-classes", PLAIN, None),
        (FEDAVG, MODEL, "weight-rows", PLAIN, "not hidden units"),
        (FEDAVG, MODEL, "units", replace(PLAIN, largest=INPUTS + 1), "more samples"),
        (FEDAVG, MODEL, "units", replace(PLAIN, largest=None), "more samples"),
        (FEDAVG, MODEL, "units", replace(PLAIN, weight_decay=0.1), "weight decay"),
        (FEDAVG, MODEL, "units", replace(PLAIN, dropout=0.1), "ordinary dropout"),
        (FEDAVG, MODEL, "units", replace(PLAIN, clip=1.0), "clipping"),
        (OwnLoss(), MODEL, "units", PLAIN, "loss of its own"),
        (replace(METHODS["fjord"], distillation=True), MODEL, "units", PLAIN, "loss of its own"),  # type: ignore[call-arg]
        (replace(FEDBIAD, trend="local"), MODEL, "units", PLAIN, "whole local data"),  # type: ignore[call-arg]
        (FEDBIAD, MODEL, "units", replace(PLAIN, noise_std=1e-3), "noise"),
    ],
)
def test_the_dual_form_is_taken_only_where_it_is_exact(
    method: Method, model: Model, rows: str, regime: forms.Regime, why: str | None
) -> None:
    found = forms.dual_obstacle(method, model, model.layout(rows), regime)
    assert found is None if why is None else found is not None and why in found
    assert (forms.choose(method, model, model.layout(rows), regime)[0] == "fused") == (why is None)


def test_a_form_that_would_not_be_exact_is_refused() -> None:
    with pytest.raises(PlanError, match=r"engine.form = 'fused' is not exact here: weight decay.*use 'auto'"):
        experiment("fedavg", "fused", weight_decay=0.01)
    assert experiment("fedavg", "auto", weight_decay=0.01).transport.training.work.chosen[0] == "compact"


def test_noise_below_the_rounding_of_float32() -> None:
    # 8.6 s D against 2^-24: D = 784 gives s = 8.8e-12
    assert forms.noise_is_lost(8.8e-12, 784)
    assert not forms.noise_is_lost(9e-12, 784)


def test_row_norms_of_the_dual_form() -> None:
    ready = experiment("fedavg", "fused")
    training = ready.transport.training
    cohort = Cohort(0, 1, (0, 2, 5))
    received = {k: value.double().expand(3, *value.shape) for k, value in ready.initial().items()}
    local = training.data.local(cohort, training.work.iterations, BATCH)
    dual = client_update(training.work, received, cohort, local, {})
    layout = training.work.layout
    whole = layout.all_rows(1)[0]
    changes = [dual.learned.change(k, whole) for k in range(3)]
    stacked = {name: torch.stack([change[name] for change in changes]) for name in changes[0]}
    np.testing.assert_allclose(dual.learned.row_norms(layout), layout.row_norms(stacked), rtol=1e-10)
    assert dual.learned.finite().all()
