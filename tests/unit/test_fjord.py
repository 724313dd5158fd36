"""FjORD: nested widths, tiers, a width for every iteration, and self-distillation against autograd."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from torch.nn import functional

from fedbiad.arrays import Params, Pattern
from fedbiad.client import LocalTraining, Trained, client_update
from fedbiad.cohort import Cohort
from fedbiad.methods import PAPER
from fedbiad.methods.fjord import FjORD
from fedbiad.methods.widths import held_count, nested
from fedbiad.models import MLP
from fedbiad.training.batches import LocalData

MODEL = MLP(3, (5,), 2)
LAYOUT = MODEL.layout("units")
METHOD = FjORD()
MANY = tuple(range(1000))


def sent_down(method: FjORD, cohort: Cohort) -> Cohort:
    return replace(cohort, assigned=method.assign(LAYOUT, cohort, {}, {}))


def client_of_width(width: float, seed: int = 0) -> int:
    """The first client of this tier."""
    tiers = METHOD.tiers(Cohort(seed, 1, MANY))
    return int(np.flatnonzero(tiers == width)[0])


def following(method: FjORD, cohort: Cohort, step: int) -> Pattern:
    pattern, state, changed = method.next_pattern(
        LAYOUT, cohort, step, np.zeros((len(cohort), 9)), LAYOUT.all_rows(len(cohort)), lambda: np.zeros(0), {}
    )
    assert state == {}
    assert not changed.any()
    assert len(changed) == len(cohort)
    return pattern


def trained(method: FjORD, u: Params, cohort: Cohort, iterations: int, rate: float = 0.1) -> Trained:
    inputs, targets = samples()
    spans = [slice(0, 6)] * len(cohort)
    data = LocalData(inputs, targets, spans, np.tile(np.arange(6), (len(cohort), iterations)), 6)
    work = LocalTraining(method, MODEL, LAYOUT, iterations, 6, rate)
    received = {name: value[None].repeat(len(cohort), *[1] * value.dim()) for name, value in u.items()}
    return client_update(work, received, cohort, data, {})


def samples() -> tuple[Tensor, Tensor]:
    stream = np.random.default_rng(0)
    return torch.from_numpy(stream.normal(size=(6, 3))), torch.tensor([0, 1, 1, 0, 1, 0])


def initial() -> Params:
    return {name: value.double() for name, value in MODEL.init(np.random.default_rng(1)).items()}


def test_counts_are_rounded_up_but_not_by_rounding_errors() -> None:
    assert held_count(np.array([0.2, 0.21, 0.6, 1.0, 0.01]), 5).tolist() == [1, 2, 3, 5, 1]
    assert held_count(np.array([0.07, 0.071, 0.28, 0.55]), 100).tolist() == [
        7,
        8,
        28,
        55,
    ]  # 0.07 x 100 = 7.000000000000001
    for percent in range(1, 101):
        assert held_count(np.array([percent / 100]), 100).tolist() == [percent]


def test_the_first_rows_of_every_group_and_all_classes() -> None:
    layout = MLP(3, (5, 4), 3).layout("units-and-classes")
    pattern = nested(layout, np.array([0.2, 0.6, 1.0]))
    #                                   5 units, 4 units, 3 classes
    assert pattern[0].astype(int).tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1]
    assert pattern[1].astype(int).tolist() == [1, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1]
    assert pattern[2].all()


def test_narrow_sub_models_lie_inside_wider_ones() -> None:
    layout = MLP(3, (7, 11), 3).layout("units")
    patterns = nested(layout, METHOD.levels)
    for narrow, wide in pairwise(patterns):
        assert (narrow <= wide).all()
        assert (narrow != wide).any()


def test_tiers_are_uniform_and_stay() -> None:
    tiers = METHOD.tiers(Cohort(0, 1, MANY))
    np.testing.assert_array_equal(tiers, METHOD.tiers(Cohort(0, 9, MANY)))
    np.testing.assert_array_equal(tiers[[4, 2]], METHOD.tiers(Cohort(0, 5, (4, 2))))
    assert (tiers != METHOD.tiers(Cohort(1, 1, MANY))).any()
    counts = [int((tiers == width).sum()) for width in (0.2, 0.4, 0.6, 0.8, 1.0)]
    assert sum(counts) == 1000
    # chi-square with 4 degrees of freedom exceeds 18.5 once in 1000 times
    assert sum((count - 200) ** 2 / 200 for count in counts) < 18.5
    assigned = METHOD.assign(LAYOUT, Cohort(0, 1, MANY), {}, {})
    assert assigned is not None
    np.testing.assert_array_equal(assigned.sum(1), np.round(5 * tiers))


def test_every_iteration_samples_uniformly_up_to_the_tier() -> None:
    client = client_of_width(0.6)
    cohorts = [sent_down(METHOD, Cohort(0, round_, (client,))) for round_ in range(1, 101)]
    drawn = [METHOD.first_pattern(LAYOUT, cohort, {}) for cohort in cohorts]
    drawn += [following(METHOD, cohort, step) for cohort in cohorts for step in range(8)]
    counts = np.bincount([int(pattern.sum()) for pattern in drawn], minlength=6)
    assert counts[[0, 4, 5]].tolist() == [0, 0, 0]
    # 900 draws over 3 widths; chi-square with 2 degrees of freedom exceeds 13.8 once in 1000 times
    assert float(((counts[1:4] - 300) ** 2 / 300).sum()) < 13.8
    first, later = np.stack(drawn[:100]), np.stack(drawn[100:]).reshape(100, 8, 1, 5)
    assert (first != later[:, 0]).any()
    assert (later[:, 0] != later[:, 1]).any()
    assert list(METHOD.checks(1, 5)) == [0, 1, 2, 3, 4]


def test_draws_depend_on_the_key_alone() -> None:
    whole = sent_down(METHOD, Cohort(3, 2, MANY[:20]))
    some = sent_down(METHOD, Cohort(3, 2, (17, 4)))
    np.testing.assert_array_equal(
        METHOD.first_pattern(LAYOUT, whole, {})[[17, 4]], METHOD.first_pattern(LAYOUT, some, {})
    )
    np.testing.assert_array_equal(following(METHOD, whole, 3)[[17, 4]], following(METHOD, some, 3))
    assert (following(METHOD, whole, 3) != following(METHOD, whole, 4)).any()
    assert not METHOD.fixed_count


def test_the_tier_is_uploaded_whatever_came_last() -> None:
    cohort = sent_down(METHOD, Cohort(0, 1, MANY[:30]))
    result = trained(METHOD, initial(), cohort, 4)
    assert cohort.assigned is not None
    np.testing.assert_array_equal(result.pattern, cohort.assigned)
    assert (following(METHOD, cohort, 3) != cohort.assigned).any()
    assert not result.resampled.any()


def test_an_iteration_trains_the_sampled_rows_alone() -> None:
    cohort, u = sent_down(METHOD, Cohort(0, 1, MANY[:30])), initial()
    held = METHOD.first_pattern(LAYOUT, cohort, {})
    result = trained(METHOD, u, cohort, 1)
    changes = [result.learned.change(i) for i in range(30)]
    moved = np.stack([((own["layer1.bias"] != 0) | (own["layer2.weight"] != 0).any(0)).numpy() for own in changes])
    assert not (moved & ~held).any()
    assert (moved & held).any(1).all()


def test_distillation_adds_the_two_gradients() -> None:
    method, client = FjORD(distillation=True), client_of_width(1.0)
    for round_ in range(1, 20):  # a round whose first iteration is narrow
        cohort = sent_down(method, Cohort(0, round_, (client,)))
        width = int(method.first_pattern(LAYOUT, cohort, {}).sum())
        if width == 2:
            break
    assert width == 2
    (inputs, targets), u = samples(), initial()
    leaves = {name: value.clone().requires_grad_() for name, value in u.items()}

    def logits(units: int) -> Tensor:
        first, bias, second, last = leaves.values()
        hidden = (inputs @ first[:units].T + bias[:units]).relu()
        return hidden @ second[:, :units].T + last

    wide, narrow = logits(5), logits(2)
    labels = functional.cross_entropy(wide, targets)
    answers = wide.detach().softmax(1)
    distance = functional.kl_div(narrow.log_softmax(1), answers, reduction="batchmean")
    of_wide = torch.autograd.grad(labels, list(leaves.values()))
    of_narrow = torch.autograd.grad(distance, list(leaves.values()), materialize_grads=True)
    result = trained(method, u, cohort, 1, rate=0.5)
    assert result.losses[0, 0] == pytest.approx(labels.item(), rel=1e-12)
    change = result.learned.change(0)
    for name, one, two in zip(u, of_wide, of_narrow, strict=True):
        assert (two != 0).any()
        torch.testing.assert_close(u[name] + change[name], u[name] - 0.5 * (one + two), rtol=1e-12, atol=1e-14)
    assert METHOD.teacher(cohort) is None
    plain = trained(METHOD, u, cohort, 1, rate=0.5)
    assert not torch.allclose(plain.learned.change(0)["layer2.weight"], change["layer2.weight"])


def test_the_profile_of_the_papers_tables_has_two_tiers() -> None:
    method = replace(PAPER["fjord"], dropout_rate=0.2)  # type: ignore[call-arg]
    assert isinstance(method, FjORD)
    np.testing.assert_allclose(method.levels, [0.8, 1.0])
    tiers = method.tiers(Cohort(0, 1, tuple(range(3000))))
    wide = int((tiers == 1.0).sum())
    assert abs(wide - 1000) < 130  # 5 standard deviations of 25.8
    client = int(np.flatnonzero(tiers == 1.0)[0])
    cohort = Cohort(0, 1, (client,))
    counts = np.bincount([int(following(method, cohort, step).sum()) for step in range(400)], minlength=6)
    assert counts[4] + counts[5] == 400
    assert abs(counts[4] - 200) < 50  # 5 standard deviations of 10


@pytest.mark.parametrize(
    ("options", "right"),
    [
        ({"widths": [0.5, 1.0]}, True),
        ({"widths": "dropout", "wide_share": 0.25}, True),
        ({"widths": []}, False),
        ({"widths": [0.0, 1.0]}, False),
        ({"widths": [1.1]}, False),
        ({"widths": "thin"}, False),
        ({"wide_share": 1.5}, False),
    ],
)
def test_widths_are_checked(options: dict[str, object], right: bool) -> None:
    adapter, text = TypeAdapter(FjORD), json.dumps(options)
    if right:
        assert adapter.validate_json(text, strict=True).levels[-1] == 1.0
    else:
        with pytest.raises(ValidationError):
            adapter.validate_json(text, strict=True)
