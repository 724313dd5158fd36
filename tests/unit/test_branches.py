"""However the blocks of a round are cut into twigs and branches, their sum is the same to the bit."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbiad.aggregation import SumTree, Total
from fedbiad.cohort import Cohort
from fedbiad.errors import PlanError
from fedbiad.transports.branches import Cut
from fedbiad.transports.ray_tasks import Sums, add_twigs


def blocks(count: int) -> list[Cohort]:
    return [Cohort(0, 1, (i,)) for i in range(count)]


@pytest.mark.parametrize(
    ("count", "cpus", "cut"),
    [
        (1, [4], Cut(1, 4)),
        (50, [1, 1], Cut(8, 8)),  # 50 / (3 x 2) is 8
        (50, [2], Cut(8, 16)),
        (100, [4, 4, 2], Cut(2, 4)),  # a node has 10 / 3 CPUs
        (50_000, [32] * 100, Cut(4, 128)),
    ],
)
def test_a_few_twigs_a_cpu_and_a_branch_as_wide_as_a_node(count: int, cpus: list[int], cut: Cut) -> None:
    assert Cut.fitting(count, cpus) == cut


def test_twigs_and_branches_keep_the_order() -> None:
    found = Cut(2, 4).branches(blocks(7))
    assert [[[block.ids[0] for block in twig] for twig in branch] for branch in found] == [
        [[0, 1], [2, 3]],
        [[4, 5], [6]],
    ]


@given(st.integers(1, 70), st.integers(0, 4), st.integers(0, 3))
def test_the_sum_is_the_trees_own(count: int, twig: int, wider: int) -> None:
    values = torch.rand(count, 8, generator=torch.Generator().manual_seed(count)) * 10.0 ** torch.arange(-4, 4)
    totals = [Total({"w": value}, {"w": value.double()}, float(i)) for i, value in enumerate(values)]
    whole, cut = SumTree(), SumTree()
    for total in totals:
        whole.push(total)
    for branch in Cut(2**twig, 2 ** (twig + wider)).branches(blocks(count)):
        twigs = []
        for part in branch:
            tree = SumTree()
            for block in part:
                tree.push(totals[block.ids[0]])
            twigs.append(Sums.of(tree.finish(), len(part)))
        sums = add_twigs(*twigs)
        cut.push(sums.total(), sums.blocks)
    one, other = whole.finish(), cut.finish()
    assert torch.equal(one.moved["w"], other.moved["w"])
    assert torch.equal(one.holders["w"], other.holders["w"])
    assert one.weight == other.weight


def test_a_plans_problems_reach_another_process_one_by_one() -> None:
    error = pickle.loads(pickle.dumps(PlanError(["first", "second"], "somewhere")))
    assert error.problems == ["first", "second"]
    assert str(error) == str(PlanError(["first", "second"], "somewhere"))
