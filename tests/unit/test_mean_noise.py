"""How much the server's mean varies: by hand, over every draw there is, and against real messages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from fedbiad.aggregation import AGGREGATIONS
from fedbiad.mean_noise import Learned, MeanNoise
from fedbiad.rows import Layout, RowGroup, Slice
from fedbiad.theory import added_variance, mean_variance, rounding_variances, sampling_noise

THREE = Layout({"w": (3, 2), "free": (1,)}, (RowGroup("g", 3, (Slice("w", 0),)),))
ALL = np.array([True, True, True])
U = {"w": torch.tensor([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]]), "free": torch.tensor([0.0])}


def client(number: int, weight: int, delta: Sequence[float], pattern: Sequence[bool] = (True, True, True)) -> Learned:
    rows = np.array(pattern)
    return Learned(number, weight, rows, np.where(THREE.kept_entries(rows), delta, 0).astype(np.float32))


def noise_of(clients: list[Learned], rule: str = "holders") -> MeanNoise:
    return MeanNoise.of(clients, THREE, AGGREGATIONS[rule], U)


def one(value: float) -> list[float]:
    """All is in the first entry."""
    return [value, *[0.0] * 6]


def test_by_hand() -> None:
    found = noise_of([client(i, 2, one(value)) for i, value in enumerate((1.0, 3.0, 8.0))])
    assert found.update == pytest.approx(16)  # the mean is 4
    assert found.between() == pytest.approx((9 + 1 + 16) / 2)
    # drawn again they are off by 2, 0 and 1: half the squares' mean
    again = [client(i, 2, one(value)) for i, value in enumerate((3.0, 3.0, 7.0))]
    assert found.within(again) == pytest.approx((4 + 0 + 1) / 3 / 2)
    assert found.within([]) == 0
    assert found.within([client(9, 2, one(5.0))]) == 0  # one that was not seen before tells nothing


def test_words_count_for_those_who_have_them() -> None:
    """Two of three clients have the first word and learned 1 and 3 of it: the mean is 2, the third does not count."""
    layout = Layout({"w": (3, 2)}, (), (Slice("w", 0),))
    has, lacks = np.array([True, True, False]), np.array([False, True, False])
    learned = [(has, 1.0), (has, 3.0), (lacks, 0.0)]
    clients = [
        Learned(i, 2, np.zeros(0, dtype=bool), np.array([value, *[0.0] * 5], dtype=np.float32), present)
        for i, (present, value) in enumerate(learned)
    ]
    for rule in ("holders", "old"):
        found = MeanNoise.of(clients, layout, AGGREGATIONS[rule], {"w": U["w"]})
        assert found.update == pytest.approx(4)
        assert found.between() == pytest.approx(2 * (1 + 1 + 0))
        alone, part = found.added(clients[0], 4.0)
        assert alone == pytest.approx(1 * (4 - 1))  # |delta| (D - |delta|)
        assert part == pytest.approx(alone / 4)


def test_every_selection_and_every_draw() -> None:
    """Four clients that draw one of two values each, two of them selected: the variance over all 6 x 16 means."""
    values = np.array([[1.0, 2.0], [5.0, 3.0], [-4.0, -4.0], [0.0, 7.0]])
    means = [
        np.mean([values[k, drawn[k]] for k in chosen])
        for chosen in itertools.combinations(range(4), 2)
        for drawn in itertools.product((0, 1), repeat=4)
    ]
    within = values.var(axis=1).mean()
    # what is seen of all clients, on average over their draws: the unbiased variance
    between = np.mean([
        np.var([values[k, drawn[k]] for k in range(4)], ddof=1) for drawn in itertools.product((0, 1), repeat=4)
    ])  # fmt: skip
    assert sampling_noise(float(between), float(within), 2, 4) == pytest.approx(np.var(means))
    # all selected: what they draw is left; very many registered: as if drawn with replacement
    assert sampling_noise(3.0, 2.0, 10, 10) == pytest.approx(2.0 / 10)
    assert sampling_noise(3.0, 2.0, 10, 10**9) == pytest.approx(3.0 / 10)


def test_weights_count() -> None:
    """The mean is a ratio: client k moves it by w_k (d_k - mean) / sum, up to one in the number of clients."""
    rng = np.random.default_rng(0)
    weights, values = rng.integers(50, 70, 200), rng.standard_normal(200)
    found = noise_of([client(k, int(w), one(v)) for k, (w, v) in enumerate(zip(weights, values, strict=True))])
    mean = (weights * values).sum() / weights.sum()
    effects = weights * (values - mean) / weights.mean()
    assert found.between() == pytest.approx(np.square(effects).sum() / 199, rel=0.01)


@pytest.mark.parametrize("rule", ["holders", "zeros", "old"])
def test_patterns_by_hand(rule: str) -> None:
    """Row 0 is sent by both, row 1 by the first alone, row 2 by nobody; left out in turn."""
    found = noise_of(
        [
            client(0, 1, [1, 2, 3, 4, 0, 0, 0], [True, True, False]),
            client(1, 3, [5, 10, 0, 0, 0, 0, 0], [True, False, False]),
        ],
        rule,
    )
    means = {
        # both: row 0 moves by 4, 8; row 1 by its only holder's change; row 2 stays
        "holders": ([14, 28, 33, 44, 50, 60, 0], [15, 30, 30, 40, 50, 60, 0], [11, 22, 33, 44, 50, 60, 0]),
        "zeros": ([14, 28, 33 / 4, 11, 0, 0, 0], [15, 30, 0, 0, 0, 0, 0], [11, 22, 33, 44, 0, 0, 0]),
        "old": ([14, 28, 30.75, 41, 50, 60, 0], [15, 30, 30, 40, 50, 60, 0], [11, 22, 33, 44, 50, 60, 0]),
    }[rule]
    both, second, first = (np.array(mean, dtype=np.float64) for mean in means)
    assert found.mean.tolist() == pytest.approx(both.tolist())
    expected = np.square(second - both).sum() + np.square(first - both).sum()
    assert found.between() == pytest.approx(expected)  # n - 1 = 1
    # the first client's message with a step of 8; its weight is 1 of 4, but alone in row 1 of a mean over holders
    alone, part = found.added(found.clients[0], 8.0)
    each = rounding_variances(np.array([1.0, 2.0, 3.0, 4.0, 0.0]), 8.0)
    assert each.tolist() == [7, 12, 15, 16, 0]
    assert alone == each.sum() == 50
    assert part == pytest.approx(19 / 16 + (31 if rule == "holders" else 31 / 16))


def test_the_parts_add_up_to_the_variance_of_the_mean() -> None:
    rng = np.random.default_rng(1)
    clients = [client(k, int(rng.integers(1, 9)), rng.standard_normal(7).tolist()) for k in range(6)]
    found = noise_of(clients)
    weights = np.array([one.weight for one in clients], dtype=np.float64)
    variances = np.array([added_variance(one.delta.astype(np.float64), 2.5) for one in clients])
    assert sum(found.added(one, 2.5)[1] for one in clients) == pytest.approx(mean_variance(weights, variances))
