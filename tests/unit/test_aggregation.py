"""The three means by hand and against loops over every entry, and the tree of sums."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbiad.aggregation import AGGREGATIONS, SumTree, Total, server_step, sum_block
from fedbiad.arrays import FloatArray, Params, Pattern
from fedbiad.models import MLP
from fedbiad.rows import Layout, RowGroup, Slice

THREE = Layout({"w": (3, 2), "free": (1,)}, (RowGroup("g", 3, (Slice("w", 0),)),))
DEEP = MLP(2, (3, 4), 2).layout("units")


def aggregate(
    kind: str, layout: Layout, pattern: Pattern, u: Params, sizes: list[int], old: Params, ends: list[int] | None = None
) -> Params:
    """The mean of clients summed in blocks that end at `ends`."""
    sums = SumTree()
    for total in blocks_of(layout, pattern, u, sizes, old, ends or []):
        sums.push(total)
    return AGGREGATIONS[kind].finish(sums.finish(), old)


def blocks_of(
    layout: Layout, pattern: Pattern, u: Params, sizes: list[int], old: Params, ends: list[int]
) -> Iterator[Total]:
    """The sums over clients that sent U^k, block by block."""
    moved = {name: value - old[name] for name, value in u.items()}
    for start, end in itertools.pairwise([0, *ends, len(sizes)]):
        block = {name: value[start:end] for name, value in moved.items()}
        yield sum_block(layout, pattern[start:end], block, sizes[start:end])


# Two clients of 1 and 3 samples. Row 0 is sent by both, row 1 by the first alone, row 2 by nobody.
PATTERN = np.array([[True, True, False], [True, False, False]])
SENT = {
    "w": torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[5.0, 10.0], [7.0, 8.0], [9.0, 9.0]]]),
    "free": torch.tensor([[4.0], [8.0]]),
}
OLD = {"w": torch.tensor([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]]), "free": torch.tensor([0.0])}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # row 0: (1 x 1 + 3 x 5) / 4 = 4 and (2 + 30) / 4 = 8 for all three
        # row 1: the first client's own 3, 4; row 2: the old value
        ("holders", [[4.0, 8.0], [3.0, 4.0], [50.0, 60.0]]),
        # row 1: (1 x 3 + 3 x 0) / 4 and (1 x 4 + 0) / 4; row 2: zero
        ("zeros", [[4.0, 8.0], [0.75, 1.0], [0.0, 0.0]]),
        # row 1: (1 x 3 + 3 x 30) / 4 and (1 x 4 + 3 x 40) / 4; row 2: the old value
        ("old", [[4.0, 8.0], [23.25, 31.0], [50.0, 60.0]]),
    ],
)
def test_means_by_hand(kind: str, expected: list[list[float]]) -> None:
    mean = aggregate(kind, THREE, PATTERN, SENT, [1, 3], OLD)
    assert mean["w"].tolist() == expected
    assert mean["free"].tolist() == [7.0]  # no label drops it: (4 + 24) / 4
    assert mean["w"].dtype == torch.float32


def test_an_entry_of_two_rows_is_sent_only_with_both() -> None:
    # "w" [2, 2] has a group on each axis. Client one holds row 0 and both columns, client two all rows and column 1.
    layout = Layout({"w": (2, 2)}, (RowGroup("r", 2, (Slice("w", 0),)), RowGroup("c", 2, (Slice("w", 1),))))
    pattern = np.array([[True, False, True, True], [True, True, False, True]])
    sent = {"w": torch.tensor([[[1.0, 2.0], [9.0, 9.0]], [[9.0, 6.0], [9.0, 8.0]]])}
    old = {"w": torch.full((2, 2), 100.0)}
    # entry (0, 0): client one alone; (0, 1): (1 x 2 + 3 x 6) / 4 = 5; (1, 0): nobody; (1, 1): client two alone
    assert aggregate("holders", layout, pattern, sent, [1, 3], old)["w"].tolist() == [[1.0, 5.0], [100.0, 8.0]]
    # zeros: 1/4, 5, 0, 24/4; old: (1 + 300)/4, 5, 100, (100 + 24)/4
    assert aggregate("zeros", layout, pattern, sent, [1, 3], old)["w"].tolist() == [[0.25, 5.0], [0.0, 6.0]]
    assert aggregate("old", layout, pattern, sent, [1, 3], old)["w"].tolist() == [[75.25, 5.0], [100.0, 31.0]]


def test_server_step_by_hand() -> None:
    u, target = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, -2.0])}
    assert server_step(u, target, 1.0)["w"].tolist() == [3.0, -2.0]
    assert server_step(u, target, 0.25)["w"].tolist() == [1.5, 1.0]
    assert server_step(u, target, 2.0)["w"].tolist() == [5.0, -6.0]
    assert u["w"].tolist() == [1.0, 2.0]


def slow_mean(kind: str, pattern: Pattern, u: Params, sizes: list[int], old: Params, name: str) -> FloatArray:
    """Every entry of a parameter of the 2-3-4-2 network by itself."""
    # the groups (start in the pattern) that rows and columns of each parameter belong to
    row_group = {"layer1.weight": 0, "layer1.bias": 0, "layer2.weight": 3, "layer2.bias": 3}
    column_group = {"layer2.weight": 0, "layer3.weight": 3}
    mean = np.zeros(old[name].shape)
    for entry in np.ndindex(old[name].shape):
        value = weight = 0.0
        for client, size in enumerate(sizes):
            held = name not in row_group or pattern[client, row_group[name] + entry[0]]
            held = held and (name not in column_group or pattern[client, column_group[name] + entry[1]])
            if held:
                value += size * float(u[name][client][entry])
                weight += size
        before = float(old[name][entry])
        if kind == "holders":
            mean[entry] = value / weight if weight else before
        elif kind == "zeros":
            mean[entry] = value / sum(sizes)
        else:
            mean[entry] = (value + (sum(sizes) - weight) * before) / sum(sizes)
    return mean


def random_block(seed: int, clients: int) -> tuple[Pattern, Params, list[int], Params]:
    stream = np.random.default_rng(seed)
    pattern = stream.random((clients, DEEP.num_rows)) < stream.uniform(0.2, 0.9)
    u = {name: torch.from_numpy(stream.normal(size=(clients, *shape))) for name, shape in DEEP.shapes.items()}
    old = {name: torch.from_numpy(stream.normal(size=shape)) for name, shape in DEEP.shapes.items()}
    return pattern, u, stream.integers(1, 50, clients).tolist(), old


@pytest.mark.parametrize("kind", AGGREGATIONS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), clients=st.integers(1, 5))
def test_means_against_loops(kind: str, seed: int, clients: int) -> None:
    pattern, u, sizes, old = random_block(seed, clients)
    mean = aggregate(kind, DEEP, pattern, u, sizes, old)
    for name in DEEP.shapes:
        expected = slow_mean(kind, pattern, u, sizes, old, name)
        np.testing.assert_allclose(mean[name].numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", AGGREGATIONS)
@pytest.mark.parametrize("ends", [[1, 2, 3, 4, 5, 6], [3], [2, 6], [4, 5]])
def test_the_cut_into_blocks_does_not_matter(kind: str, ends: list[int]) -> None:
    pattern, u, sizes, old = random_block(0, 7)
    together = aggregate(kind, DEEP, pattern, u, sizes, old)
    apart = aggregate(kind, DEEP, pattern, u, sizes, old, ends)
    for name in old:
        torch.testing.assert_close(together[name], apart[name], rtol=1e-12, atol=1e-12)


def branches(blocks: int, start: int = 0) -> Iterator[list[int]]:
    """Every cut of a tree's blocks into whole branches: their numbers of blocks."""
    left = blocks - start
    if not left:
        yield []
    # a branch of size 2^j begins at a multiple of it; the last may have fewer blocks
    for size in (1, 2, 4, 8, 16):
        if start % size == 0 and size < 2 * left:
            taken = min(size, left)
            yield from ([taken, *rest] for rest in branches(blocks, start + taken))


def test_cuts_into_branches_by_hand() -> None:
    assert sorted(branches(3)) == [[1, 1, 1], [2, 1], [3]]
    assert sorted(branches(4)) == [[1, 1, 1, 1], [1, 1, 2], [2, 1, 1], [2, 2], [4]]
    assert [4, 3] in branches(7)
    assert [3, 4] not in branches(7)
    assert [1, 2] not in branches(3)


def assert_same_bits(one: Total, two: Total) -> None:
    assert one.weight == two.weight
    for name in DEEP.shapes:
        assert torch.equal(one.moved[name], two.moved[name])
        assert torch.equal(one.holders[name], two.holders[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("blocks", range(1, 10))
def test_whole_branches_may_be_added_elsewhere_bit_for_bit(blocks: int, dtype: torch.dtype) -> None:
    pattern, u, sizes, old = random_block(3, 2 * blocks)
    u, old = ({name: value.to(dtype) for name, value in params.items()} for params in (u, old))
    totals = list(blocks_of(DEEP, pattern, u, sizes, old, list(range(2, 2 * blocks, 2))))
    assert len(totals) == blocks
    one_by_one = SumTree()
    for total in totals:
        one_by_one.push(total)
    for cut in branches(blocks):
        sums, start = SumTree(), 0
        for size in cut:
            branch = SumTree()
            for total in totals[start : start + size]:
                branch.push(total)
            sums.push(branch.finish(), size)
            start += size
        assert_same_bits(sums.finish(), one_by_one.finish())


def test_the_tree_is_balanced() -> None:
    pattern, u, sizes, old = random_block(4, 7)
    a, b, c, d, e, f, g = totals = list(blocks_of(DEEP, pattern, u, sizes, old, [1, 2, 3, 4, 5, 6]))
    sums = SumTree()
    for total in totals:
        sums.push(total)
    assert_same_bits(sums.finish(), ((a + b) + (c + d)) + ((e + f) + g))
    # in another order other bits come out
    chain = a + b + c + d + e + f + g
    assert any(not torch.equal(sums.finish().moved[name], chain.moved[name]) for name in old)


@pytest.mark.parametrize("kind", AGGREGATIONS)
@pytest.mark.parametrize("ends", [[0, 2], [2, 2], [2, 3]])
def test_an_empty_block_adds_nothing(kind: str, ends: list[int]) -> None:
    pattern, u, sizes, old = random_block(1, 3)
    plain = aggregate(kind, DEEP, pattern, u, sizes, old, [2])
    with_empty = aggregate(kind, DEEP, pattern, u, sizes, old, ends)
    assert all(torch.equal(plain[name], with_empty[name]) for name in old)


@pytest.mark.parametrize("kind", AGGREGATIONS)
def test_with_every_row_sent_all_three_are_the_weighted_mean(kind: str) -> None:
    _, u, sizes, old = random_block(2, 4)
    mean = aggregate(kind, DEEP, DEEP.all_rows(4), u, sizes, old)
    for name, value in u.items():
        expected = np.average(value.numpy(), axis=0, weights=sizes)
        np.testing.assert_allclose(mean[name].numpy(), expected, rtol=1e-12)
