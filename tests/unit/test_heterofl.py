"""HeteroFL: rates, the scaler and masked logits against autograd, and who sends a label's row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedbiad.aggregation import AGGREGATIONS, sum_block
from fedbiad.arrays import Params, Pattern
from fedbiad.client import LocalTraining, Trained, client_update
from fedbiad.cohort import Cohort
from fedbiad.methods import PAPER
from fedbiad.methods.heterofl import HeteroFL
from fedbiad.models import MLP
from fedbiad.training.batches import Batch, LocalData

MODEL = MLP(3, (8, 6), 3)
METHOD = HeteroFL()
LAYOUT = MODEL.layout(METHOD.row_kind)
LACKING = np.array([[True, False, True]])  # no sample of class 1
MANY = tuple(range(1000))


def samples() -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3))), torch.tensor([0, 2, 2, 0, 2, 0])


def initial() -> Params:
    return {name: value.double() for name, value in MODEL.init(np.random.default_rng(1)).items()}


def cohort_of(rate: float, present: Pattern | None = LACKING) -> Cohort:
    """A cohort of one client of this rate."""
    client = int(np.flatnonzero(METHOD.tiers(Cohort(0, 1, MANY)) == rate)[0])
    cohort = Cohort(0, 1, (client,), present=present)
    return replace(cohort, assigned=METHOD.assign(LAYOUT, cohort, {}, {}))


def trained(method: HeteroFL, cohort: Cohort, rate: float = 0.5) -> Trained:
    inputs, targets = samples()
    data = LocalData(inputs, targets, [slice(0, 6)], np.arange(6)[None], 6)
    work = LocalTraining(method, MODEL, LAYOUT, 1, 6, rate)
    return client_update(work, {name: value[None] for name, value in initial().items()}, cohort, data, {})


def reference(units: tuple[int, int], divisor: float, masked: bool, rate: float = 0.5) -> tuple[float, Params]:
    """One SGD step of the sub-model with an explicit division of both hidden outputs, by autograd."""
    (inputs, targets), u = samples(), initial()
    leaves = {name: value.clone().requires_grad_() for name, value in u.items()}
    w1, b1, w2, b2, w3, b3 = leaves.values()
    first, second = units
    x = ((inputs @ w1[:first].T + b1[:first]) / divisor).relu()
    x = ((x @ w2[:second, :first].T + b2[:second]) / divisor).relu()
    logits = x @ w3[:, :second].T + b3
    if masked:
        logits = logits * torch.tensor([1.0, 0.0, 1.0])
    loss = functional.cross_entropy(logits, targets)
    gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return loss.item(), {name: u[name] - rate * g for name, g in zip(u, gradients, strict=True)}


@pytest.mark.parametrize(("rate", "units"), [(1.0, (8, 6)), (0.5, (4, 3)), (0.25, (2, 2)), (0.0625, (1, 1))])
@pytest.mark.parametrize("scaler", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_one_step_is_that_of_the_original_network(
    rate: float, units: tuple[int, int], scaler: bool, masked: bool
) -> None:
    method = HeteroFL(scaler=scaler, masked_logits=masked)
    result = trained(method, cohort_of(rate))
    loss, expected = reference(units, rate if scaler else 1.0, masked)
    assert result.losses[0, 0] == pytest.approx(loss, rel=1e-12)
    u, change = initial(), result.learned.change(0)
    for name, value in expected.items():
        torch.testing.assert_close(u[name] + change[name], value, rtol=1e-12, atol=1e-14)
    if masked:  # the row of a label that is never seen does not move
        assert change["layer3.bias"][1] == 0


def test_masked_logits_are_zero_not_minus_infinity() -> None:
    outputs = torch.tensor([[[1.0, 9.0, 2.0]]], dtype=torch.float64)
    batch = Batch(torch.zeros(1, 1, 3), torch.tensor([[0]]))
    cohort = Cohort(0, 1, (0,), present=LACKING)
    # -ln(e^1 / (e^1 + e^0 + e^2))
    expected = -1 + np.log(np.e + 1 + np.e**2)
    assert float(METHOD.objective(outputs, batch, cohort)[0]) == pytest.approx(expected, rel=1e-12)
    plain = -1 + np.log(np.e + np.e**9 + np.e**2)
    assert float(HeteroFL(masked_logits=False).objective(outputs, batch, cohort)[0]) == pytest.approx(plain, rel=1e-12)
    assert float(METHOD.objective(outputs, batch, replace(cohort, present=None))[0]) == pytest.approx(plain, rel=1e-12)


def test_masks_are_each_clients_own() -> None:
    outputs = torch.ones(2, 1, 3, dtype=torch.float64)
    batch = Batch(torch.zeros(2, 1, 3), torch.tensor([[0], [0]]))
    present = np.array([[True, False, False], [True, True, True]])
    losses = METHOD.objective(outputs, batch, Cohort(0, 1, (0, 1), present=present))
    np.testing.assert_allclose(losses, [np.log(1 + 2 / np.e), np.log(3)], rtol=1e-12)


def test_rows_of_missing_labels_are_received_and_trained_but_not_sent() -> None:
    cohort = cohort_of(0.5)
    assert cohort.assigned is not None
    # 4 of 8 units, 3 of 6 units, 3 classes
    sub_model = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert cohort.assigned[0].astype(int).tolist() == [*sub_model, 1, 1, 1]
    assert METHOD.first_pattern(LAYOUT, cohort, {})[0].astype(int).tolist() == [*sub_model, 1, 1, 1]
    assert trained(METHOD, cohort).pattern[0].astype(int).tolist() == [*sub_model, 1, 0, 1]
    assert cohort.assigned[0].astype(int).tolist() == [*sub_model, 1, 1, 1]
    assert trained(METHOD, cohort_of(0.5, None)).pattern[0].astype(int).tolist() == [*sub_model, 1, 1, 1]


def test_label_rows_are_averaged_over_their_owners() -> None:
    assert METHOD.weighting == "clients"
    mean = AGGREGATIONS[METHOD.aggregation]
    old = initial()
    pattern = LAYOUT.all_rows(2)
    classes = LAYOUT.ranges["layer3"]
    pattern[:, classes] = [[True, False, False], [True, True, False]]
    moved = {name: torch.stack([torch.full_like(value, by) for by in (1, 3)]) for name, value in old.items()}
    new = mean.finish(sum_block(LAYOUT, pattern, moved, [1, 1]), old)
    torch.testing.assert_close(new["layer3.bias"], old["layer3.bias"] + torch.tensor([2.0, 3.0, 0.0]).double())
    torch.testing.assert_close(new["layer2.weight"], old["layer2.weight"] + 2)


def test_rates_are_uniform_and_stay_or_are_redrawn() -> None:
    dynamic = HeteroFL(mode="dynamic")
    for method in (METHOD, dynamic):
        rates = method.tiers(Cohort(0, 1, MANY))
        counts = [int((rates == rate).sum()) for rate in (1.0, 0.5, 0.25, 0.125, 0.0625)]
        assert sum(counts) == 1000
        # chi-square with 4 degrees of freedom exceeds 18.5 once in 1000 times
        assert sum((count - 200) ** 2 / 200 for count in counts) < 18.5
        np.testing.assert_array_equal(method.tiers(Cohort(0, 1, (8, 3))), rates[[8, 3]])
    later = Cohort(0, 2, MANY)
    np.testing.assert_array_equal(METHOD.tiers(later), METHOD.tiers(Cohort(0, 1, MANY)))
    # redrawn independently, a fifth stays: 200 of 1000, standard deviation 12.6
    assert abs(int((dynamic.tiers(later) == dynamic.tiers(Cohort(0, 1, MANY))).sum()) - 200) < 63
    np.testing.assert_array_equal(METHOD.scale(LAYOUT, later), 1 / METHOD.tiers(later))
    np.testing.assert_array_equal(dynamic.scale(LAYOUT, later), 1 / dynamic.tiers(later))
    assert HeteroFL(scaler=False).scale(LAYOUT, later) == 1.0
    assert not METHOD.fixed_count


def test_the_profile_of_the_papers_tables_has_two_rates() -> None:
    method = PAPER["heterofl"]
    assert isinstance(method, HeteroFL)
    method = replace(method, dropout_rate=0.2)
    rates = method.tiers(Cohort(0, 1, tuple(range(3000))))
    np.testing.assert_allclose(np.unique(rates), [0.8, 1.0])
    assert abs(int((rates == 1.0).sum()) - 750) < 119  # 5 standard deviations of 23.7
    assert method.scaler
    assert method.masked_logits
