"""Layouts against masks worked out entry by entry."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fedbiad.arrays import FloatArray, Params, Pattern
from fedbiad.errors import LayoutError
from fedbiad.models import MLP
from fedbiad.rows import Layout, RowGroup, Slice

GATES = Layout(
    # three LSTM-like units: four gates each, an output column pair each, and a parameter no label drops
    {"gates.weight": (12, 5), "gates.bias": (12,), "next.weight": (2, 6), "free": (4,)},
    (
        RowGroup(
            "units",
            3,
            (Slice("gates.weight", 0, repeat=4), Slice("gates.bias", 0, repeat=4)),
            idle=(Slice("next.weight", 1, span=2),),
        ),
    ),
)
SPANS = Layout(  # both axes of "b" belong to groups, one of them with a span
    {"a": (3, 2), "b": (4, 9), "c": (2, 4, 2)},
    (
        RowGroup("filters", 3, (Slice("a", 0), Slice("b", 1, span=3, scaled=True))),
        RowGroup("units", 4, (Slice("b", 0), Slice("c", 1, scaled=True))),
    ),
)
DEEP = MLP(5, (4, 3), 2).layout("units")
BARE = MLP(5, (4, 3), 2).layout("weight-rows")
LAYOUTS = {"gates": GATES, "spans": SPANS, "deep": DEEP, "bare": BARE}
each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())


def brute_mask(layout: Layout, pattern: Pattern, name: str, scale: float = 1.0, idle: bool = False) -> FloatArray:
    """The mask of a parameter [clients, ...], entry by entry: entry i of an axis is row (i // span) % size."""
    mask = np.ones((len(pattern), *layout.shapes[name]))
    for client, entry in itertools.product(range(len(pattern)), np.ndindex(layout.shapes[name])):
        start = 0
        for group in layout.groups:
            for part in (*group.slices, *(group.idle if idle else ())):
                if part.param == name:
                    held = pattern[client, start + (entry[part.axis] // part.span) % group.size]
                    mask[client, *entry] *= held * (scale if part.scaled else 1.0)
            start += group.size
    return mask


def example_pattern(layout: Layout, clients: int = 3) -> Pattern:
    """Every client holds all rows of a group but one, another one each."""
    pattern = layout.all_rows(clients)
    for rows in layout.ranges.values():
        for client in range(clients):
            pattern[client, rows.start + client % (rows.stop - rows.start)] = False
    return pattern


def random_params(layout: Layout, clients: int = 3) -> Params:
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(clients, *shape, generator=generator, dtype=torch.float64)
        for name, shape in layout.shapes.items()
    }


def test_sizes_by_hand() -> None:
    assert GATES.num_rows == 3
    assert GATES.num_weights == 60 + 12 + 12 + 4
    # 5-4-3-2: 20 + 4, 12 + 3, 6 + 2 weights; 4 + 3 hidden rows, and 2 class rows among the bare weight rows
    assert (DEEP.num_weights, DEEP.num_rows, BARE.num_rows) == (47, 7, 9)
    assert DEEP.ranges == {"layer1": slice(0, 4), "layer2": slice(4, 7)}
    assert DEEP.all_rows(2).shape == (2, 7)
    assert DEEP.all_rows(2).all()


def test_all_problems_are_told_at_once() -> None:
    groups = (
        RowGroup("a", 3, (Slice("absent", 0), Slice("w", 2), Slice("w", 0))),
        RowGroup("a", 0, (Slice("w", 1),)),
        RowGroup("b", 4, (Slice("w", 0), Slice("v", -1))),
    )
    with pytest.raises(LayoutError) as caught:
        Layout({"w": (4, 5), "v": (2,)}, groups)
    message = str(caught.value)
    for problem in (
        "the model has no parameter 'absent' (it has w, v)",
        "'w' has no axis 2, its shape is (4, 5)",
        "axis 0 of 'w' has 4 entries, not repeat 1 x size 3 x span 1",
        "row group 'a' has no rows",
        "'v' has no axis -1",
        "axis 0 of 'w' belongs to two row groups",
        "two row groups are called 'a'",
    ):
        assert problem in message
    assert message.count("\n  - ") == 8  # the seven above, and axis 1 of 'w' does not have 0 entries


def test_repeat_and_span_count_in_the_length() -> None:
    with pytest.raises(LayoutError, match="has 12 entries, not repeat 2 x size 3 x span 1"):
        Layout({"w": (12, 2)}, (RowGroup("a", 3, (Slice("w", 0, repeat=2),)),))
    with pytest.raises(LayoutError, match="has 12 entries, not repeat 1 x size 3 x span 2"):
        Layout({"w": (12, 2)}, (RowGroup("a", 3, (), idle=(Slice("w", 0, span=2),)),))


def test_a_model_without_rows_has_a_layout() -> None:
    layout = MLP(4, (), 2).layout("units")
    assert layout.num_rows == 0
    assert layout.num_weights == 10


def test_gates_by_hand() -> None:
    # Unit 1 of 3 dropped: entries 1, 4, 7, 10 of the gates; as an idle pair columns 2 and 3 of what follows.
    pattern = np.array([[True, False, True]])
    ((axis, mask),) = GATES.axis_masks(pattern)["gates.weight"]
    assert axis == 0
    assert mask.tolist() == [[1, 0, 1] * 4]
    assert "next.weight" not in GATES.axis_masks(pattern)
    indices = GATES.kept_indices(pattern)
    assert indices["gates.bias"][0][1].tolist() == [[0, 2, 3, 5, 6, 8, 9, 11]]
    assert indices["next.weight"][0][0] == 1
    assert indices["next.weight"][0][1].tolist() == [[0, 1, 4, 5]]
    assert "free" not in indices


@each_layout
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_axis_masks_multiply_to_the_mask(layout: Layout, scale: float) -> None:
    pattern = example_pattern(layout)
    masks = layout.axis_masks(pattern, scale, torch.float64)
    for name, shape in layout.shapes.items():
        product = np.ones((len(pattern), *shape))
        for axis, factor in masks.get(name, []):
            assert factor.dtype == torch.float64
            shaped = factor.numpy().reshape([len(pattern), *(n if i == axis else 1 for i, n in enumerate(shape))])
            product = product * shaped
        np.testing.assert_array_equal(product, brute_mask(layout, pattern, name, scale))


@each_layout
def test_gather_takes_the_kept_entries_in_order(layout: Layout) -> None:
    u, pattern = random_params(layout), example_pattern(layout)
    compact = layout.gather(u, layout.kept_indices(pattern))
    for name in layout.shapes:
        mask = brute_mask(layout, pattern, name, idle=True) > 0
        for client in range(len(pattern)):
            kept = u[name][client].numpy()[mask[client]]
            np.testing.assert_array_equal(compact[name][client].numpy().ravel(), kept)


@each_layout
def test_scatter_undoes_gather_and_touches_nothing_else(layout: Layout) -> None:
    u, pattern = random_params(layout), example_pattern(layout)
    before = {name: value.clone() for name, value in u.items()}
    indices = layout.kept_indices(pattern)
    compact = {name: value.clone() for name, value in layout.gather(u, indices).items()}
    layout.scatter(u, compact, indices)
    assert all(torch.equal(u[name], before[name]) for name in u)
    layout.scatter(u, {name: value + 10 for name, value in compact.items()}, indices)
    for name in u:
        kept = torch.from_numpy(brute_mask(layout, pattern, name, idle=True))
        assert torch.equal(u[name], torch.where(kept > 0, before[name] + 10, before[name]))


@each_layout
def test_row_norms_by_brute_force(layout: Layout) -> None:
    u = random_params(layout)
    norms = layout.row_norms(u)
    assert norms.shape == (3, layout.num_rows)
    row = 0
    for group in layout.groups:
        for j in range(group.size):
            expected = np.zeros(3)
            for part in group.slices:
                for entry in np.ndindex(layout.shapes[part.param]):
                    if (entry[part.axis] // part.span) % group.size == j:
                        expected += u[part.param].numpy()[:, *entry] ** 2
            np.testing.assert_allclose(norms[:, row], expected, rtol=1e-13)
            row += 1


@each_layout
def test_kept_weights_counts_the_mask(layout: Layout) -> None:
    stream = np.random.default_rng(3)
    pattern = stream.random((6, layout.num_rows)) < 0.6
    pattern[0], pattern[1] = True, False
    expected = sum(brute_mask(layout, pattern, name).reshape(6, -1).sum(1) for name in layout.shapes)
    counted = layout.kept_weights(pattern)
    assert counted.dtype == np.int64
    np.testing.assert_array_equal(counted, expected)
    assert counted[0] == layout.num_weights


def test_ragged_blocks_are_refused() -> None:
    pattern = DEEP.all_rows(2)
    pattern[1, :2] = False
    with pytest.raises(LayoutError, match=r"different numbers of rows of 'layer1' \(2 to 4\)") as caught:
        DEEP.kept_indices(pattern)
    assert "form = 'masked'" in str(caught.value)
    assert "block = 1" in str(caught.value)
    DEEP.kept_indices(pattern[1:])  # a block of one is never ragged


def test_an_empty_block_has_masks() -> None:
    """A block all of whose clients failed has no rows to mask, and is no error."""
    masks = DEEP.axis_masks(DEEP.all_rows(2)[:0])
    assert {name: [tuple(factor.shape) for _, factor in axes] for name, axes in masks.items()} == {
        "layer1.weight": [(0, 4)],
        "layer1.bias": [(0, 4)],
        "layer2.weight": [(0, 4), (0, 3)],
        "layer2.bias": [(0, 3)],
        "layer3.weight": [(0, 3)],
    }
