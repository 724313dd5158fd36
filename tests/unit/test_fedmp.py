"""FedMP: pruning by L1 norm, the bandit, its rewards and the recovery of pruned rows, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch

from fedbiad.aggregation import AGGREGATIONS, sum_block
from fedbiad.arrays import FloatArray, Params, Pattern, ServerState
from fedbiad.client import LocalTraining, client_update
from fedbiad.cohort import Cohort
from fedbiad.methods.base import Reports
from fedbiad.methods.fedmp import FedMP, best_arm, earned, l1_norms
from fedbiad.models import MLP
from fedbiad.training.batches import LocalData

MODEL = MLP(3, (8,), 2)
LAYOUT = MODEL.layout("units")
METHOD = FedMP(dropout_rate=0.5)  # arms 0, 1/8, 1/4, 3/8, 1/2: 8, 7, 6, 5, 4 rows
IDS = (3, 5)


def weights() -> Params:
    """Unit j has L1 norm 12 - j for j < 7; unit 7 a norm of 20, nearly all of it in its outgoing column."""
    first = torch.zeros(8, 3)
    first[:, 0] = torch.tensor([10.0, -9, 8, -7, 6, -5, 4, 0.5])
    second = torch.ones(2, 8)
    second[0, 7], second[1, 7] = -19.0, 0.5
    return {
        "layer1.weight": first, "layer1.bias": torch.zeros(8), "layer2.weight": second, "layer2.bias": torch.ones(2)
    }  # fmt: skip


def reports(ids: tuple[int, ...], loss: FloatArray, pattern: Pattern) -> Reports:
    kept = pattern.mean(1)
    return Reports(ids, loss, kept, np.full(len(ids), 0.25), np.ones(len(ids)), pattern)


def first_rows(*counts: int) -> Pattern:
    return np.arange(8)[None] < np.array(counts)[:, None]


def pulled(rewards: list[float], tried: list[int], seed: int = 0) -> int:
    return best_arm(np.array(rewards), np.array(tried, dtype=np.int64), np.random.default_rng(seed))


def test_norms_are_sums_of_absolute_weights_over_all_slices() -> None:
    u = {name: value[None] for name, value in weights().items()}
    u["layer1.bias"] = torch.tensor([[0, 0, 0, 0, 0, 0, 0, -3.0]])
    np.testing.assert_allclose(l1_norms(LAYOUT, u), [[12, 11, 10, 9, 8, 7, 6, 23]], rtol=1e-14)


def test_the_smallest_rows_are_pruned() -> None:
    pruned = [5, 6, 4, 3]  # by hand: norms 12, 11, 10, 9, 8, 7, 6, 20
    method, found = replace(METHOD, arms=2), set()
    for seed in range(20):
        pattern = method.assign(LAYOUT, Cohort(seed, 1, IDS), method.init_server(LAYOUT), weights())
        assert pattern is not None
        found |= {tuple(np.flatnonzero(~own).tolist()) for own in pattern}
    assert found == {(), tuple(sorted(pruned))}


def test_arms_are_evenly_spaced_and_those_alike_are_one() -> None:
    ratios, kept = METHOD.ratios(LAYOUT)
    assert kept.tolist() == [4, 5, 6, 7, 8]
    assert ratios.tolist() == [0.5, 0.375, 0.25, 0.125, 0.0]
    few = MLP(3, (3,), 2).layout("units")  # (1-p) 3 = 3, 2.6, 2.25, 1.9, 1.5 rounds to 3, 3, 2, 2, 2
    ratios, kept = METHOD.ratios(few)
    assert kept.tolist() == [2, 3]
    assert ratios.tolist() == [0.25, 0.0]


def test_every_arm_is_tried_once_before_any_twice() -> None:
    server: ServerState = METHOD.init_server(LAYOUT)
    orders = []
    for round_ in range(1, 7):
        pattern = METHOD.assign(LAYOUT, Cohort(0, round_, IDS), server, weights())
        assert pattern is not None
        if round_ > 1:  # the first round has no loss before it and is not counted
            orders.append(pattern.sum(1))
        server = METHOD.observe(LAYOUT, server, reports(IDS, np.full(2, 10.0 - round_), pattern))
    counts = np.array(orders)
    for client in range(2):
        assert sorted(counts[:, client].tolist()) == [4, 5, 6, 7, 8]
    assert (counts[:, 0] != counts[:, 1]).any()
    np.testing.assert_array_equal(server["tried"], np.ones((2, 5)))


def test_untried_arms_come_in_random_order() -> None:
    # arm 1 has the best reward, but 0, 2 and 3 are untried: each in about a third of 600 draws (sd 11.5)
    drawn = np.bincount([pulled([0, 1, 0, 0], [0, 1, 0, 0], seed) for seed in range(600)], minlength=4)
    assert drawn[1] == 0
    assert (np.abs(drawn[[0, 2, 3]] - 200) < 58).all()  # 5 standard deviations


def test_the_largest_upper_bound_wins() -> None:
    # n = 10: means 0.5, 0.6, 0.1 and bonuses sqrt(2 ln 10 / (4, 5, 1)) = 1.073, 0.960, 2.146
    assert pulled([2, 3, 0.1], [4, 5, 1]) == 2
    # n = 12, three pulls of the last: means 0.5, 0.6, 0.1; bonuses 1.115, 0.997, 1.287 -> 1.615, 1.597, 1.387
    assert pulled([2, 3, 0.3], [4, 5, 3]) == 0
    assert pulled([2, 3.2, 0.3], [4, 5, 3]) == 1  # mean 0.64: 1.637
    assert {pulled([1, 1], [1, 1], seed) for seed in range(20)} == {0, 1}


def test_rewards_by_hand() -> None:
    # mean 2; |T - 2| + 0.2 = 1.2, 0.2, 1.2, 0.7, 0.7; as shares of the best 0.2 / ...
    seconds = np.array([1.0, 2.0, 3.0, 1.5, 2.5])
    np.testing.assert_allclose(earned(0.3, seconds), [1 / 6, 1, 1 / 6, 2 / 7, 2 / 7], rtol=1e-12)
    assert earned(0.0, seconds).tolist() == [0] * 5
    assert earned(-0.1, seconds).tolist() == [0] * 5
    assert earned(0.3, np.zeros(2)).tolist() == [1, 1]


def test_the_arm_pulled_is_paid_by_completion_time() -> None:
    method = replace(METHOD, compute_seconds=2.0)
    server: ServerState = {**method.init_server(LAYOUT), "loss": np.array([2.0])}
    pattern = first_rows(8, 4)
    told = Reports(
        (9, 3), np.array([1.0, 2.0]), np.array([1.0, 0.5]), np.array([0.5, 0.5]), np.array([1.0, 4]), pattern
    )
    # seconds 1 x 1 x 2 + 0.5 = 2.5 and 4 x 0.5 x 2 + 0.5 = 4.5; a third of exactly the mean 3.5 would earn 1
    server = method.observe(LAYOUT, server, told)
    assert server["seen"].tolist() == [3, 9]
    np.testing.assert_array_equal(server["tried"], [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
    np.testing.assert_array_equal(server["reward"], [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]])  # equally far: both are best
    assert server["loss"].tolist() == [1.5]
    # seconds 2.5, 2.5, 8.5: mean 4.5, gaps 2.45, 2.45, 4.45
    told = Reports(
        (3, 9, 20), np.ones(3), np.array([1.0, 1, 1]), np.full(3, 0.5), np.array([1.0, 1, 4]), first_rows(8, 8, 7)
    )
    server = method.observe(LAYOUT, server, told)
    expected = np.array([[1, 0, 0, 0, 1], [0, 0, 0, 0, 2], [0, 0, 0, 2.45 / 4.45, 0]])
    np.testing.assert_allclose(server["reward"].astype(np.float64), expected, rtol=1e-12)
    rise = method.observe(LAYOUT, server, replace(told, loss=np.full(3, 9.0)))
    np.testing.assert_array_equal(rise["reward"], server["reward"])
    np.testing.assert_array_equal(rise["tried"].sum(1), [3, 3, 2])


def test_pruned_rows_keep_the_global_value_in_the_mean() -> None:
    assert METHOD.aggregation == "old"
    mean = AGGREGATIONS[METHOD.aggregation]
    old = weights()
    moved = {name: torch.stack([torch.full_like(value, by) for by in (4, 2)]) for name, value in old.items()}
    new = mean.finish(sum_block(LAYOUT, first_rows(8, 7), moved, [1, 1]), old)
    assert torch.equal(new["layer1.weight"][:7], old["layer1.weight"][:7] + 3)
    assert torch.equal(new["layer1.weight"][7], old["layer1.weight"][7] + 2)  # (old + 4 + old) / 2
    assert torch.equal(new["layer2.weight"][:, 7], old["layer2.weight"][:, 7] + 2)


def test_scaling_is_by_each_clients_own_ratio() -> None:
    cohort = Cohort(0, 1, IDS, first_rows(8, 5))
    assert METHOD.scale(LAYOUT, cohort) == 1.0
    np.testing.assert_allclose(replace(METHOD, scaling="inverse").scale(LAYOUT, cohort), [1, 1.6])


def test_clients_that_choose_prune_what_they_received() -> None:
    method = replace(METHOD, chosen_by="client")
    assert method.init_server(LAYOUT) == {}
    assert method.assign(LAYOUT, Cohort(0, 1, IDS), {}, weights()) is None
    cohort = Cohort(0, 1, tuple(range(400)))
    received = {name: value[None].repeat(400, *[1] * value.dim()) for name, value in weights().items()}
    received["layer1.weight"][0] = received["layer1.weight"][0].flip(0)
    pattern = method.first_pattern(LAYOUT, cohort, {}, received)
    # ratios uniform over [0, 1/2]: 8 (1 - ratio) rounds to 8, 7, 6, 5, 4 with chances 1/8, 1/4, 1/4, 1/4, 1/8
    counts = np.bincount(pattern.sum(1), minlength=9)[4:]
    expected = np.array([50, 100, 100, 100, 50])
    # chi-square with 4 degrees of freedom exceeds 18.5 once in 1000 times
    assert float(((counts - expected) ** 2 / expected).sum()) < 18.5
    smallest_last = np.array([7, 0, 1, 2, 3, 4, 5, 6])
    for own in pattern[1:]:
        assert set(np.flatnonzero(own)) == set(smallest_last[: int(own.sum())].tolist())
    # client 0 received other weights: norms 2.5, 6, 7, 8, 9, 10, 11, 29.5
    assert not pattern[0, 0]
    np.testing.assert_array_equal(pattern[0], np.arange(8) >= 8 - pattern[0].sum())
    scale = replace(method, scaling="inverse").scale(LAYOUT, cohort)
    np.testing.assert_array_equal(np.floor(8 / np.asarray(scale) + 0.5), pattern.sum(1))


def test_local_training_hands_over_the_received_weights() -> None:
    method = replace(METHOD, chosen_by="client")
    work = LocalTraining(method, MODEL, LAYOUT, 1, 2, 0.1)
    spans = [slice(0, 4), slice(0, 4)]
    cohort = Cohort(0, 1, IDS)
    data = LocalData(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]), spans, cohort.schedule([4, 4], 2), 2)
    received = {name: torch.stack([value, value]) for name, value in weights().items()}
    trained = client_update(work, received, cohort, data, {})
    assert not trained.pattern.all()
    np.testing.assert_array_equal(trained.pattern, method.first_pattern(LAYOUT, cohort, {}, received))


@pytest.mark.parametrize("chosen_by", ["server", "client"])
def test_draws_depend_on_the_key_alone(chosen_by: Literal["server", "client"]) -> None:
    method = replace(METHOD, chosen_by=chosen_by)
    u = weights()
    server = method.init_server(LAYOUT)

    def patterns(round_: int, ids: tuple[int, ...]) -> Pattern:
        cohort = Cohort(2, round_, ids)
        received = {name: value[None].repeat(len(ids), *[1] * value.dim()) for name, value in u.items()}
        return method.first_pattern(
            LAYOUT, replace(cohort, assigned=method.assign(LAYOUT, cohort, server, u)), {}, received
        )

    whole = patterns(1, (1, 5, 8, 9))
    np.testing.assert_array_equal(patterns(1, (9, 5)), whole[[3, 1]])
    assert any((patterns(round_, (1, 5, 8, 9)) != whole).any() for round_ in range(2, 5))
    assert not method.fixed_count


def test_bonus_counts_all_pulls() -> None:
    # n = 4: 0.9 + sqrt(2 ln 4) = 2.565 and 2.9 / 3 + sqrt(2 ln 4 / 3) = 1.928
    assert pulled([0.9, 2.9], [1, 3]) == 0
