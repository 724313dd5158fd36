"""Rows of words over the clients that have the word: which rows go out, and every mean by hand and by slow loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from fedbiad.aggregation import AGGREGATIONS, MajorityVote, SumTree, Total, count_known, sum_block
from fedbiad.arrays import FloatArray, Params, Pattern
from fedbiad.errors import LayoutError
from fedbiad.models import LSTM
from fedbiad.rows import Layout, RowGroup, Slice

WORDS = (Slice("table", 0), Slice("bias", 0))
SHAPES = {"table": (3, 2), "bias": (3,), "free": (1,)}
COLUMNS = Layout(SHAPES, (RowGroup("columns", 2, (Slice("table", 1),)),), WORDS)
ROWS = Layout(SHAPES, (RowGroup("vectors", 3, (Slice("table", 0),)),), WORDS)
MODEL = LSTM(5, 3, 2, layers=1)
KINDS = ("units", "paper", "weight-rows", "embedding-words", "output-words", "embedding-columns+output-words")


def total_of(
    layout: Layout, pattern: Pattern, present: Pattern, change: Params, weights: list[int], ends: tuple[int, ...] = ()
) -> Total:
    """The sums over clients in blocks that end at `ends`, as a channel makes them."""
    sums = SumTree()
    for start, end in itertools.pairwise([0, *ends, len(weights)]):
        own, rows = slice(start, end), layout.sent_rows(pattern[start:end], present[start:end])
        block = {name: value[own] for name, value in change.items()}
        total = sum_block(layout.sent, rows, block, weights[own])
        sums.push(Total(total.moved, total.holders, total.weight, count_known(layout, present[own], weights[own])))
    return sums.finish()


# ---------------------------------------------------------------------- which rows go out


def test_words_that_no_label_drops_become_rows_of_their_own() -> None:
    assert [(group.name, group.size) for group in COLUMNS.sent.groups] == [("columns", 2), ("words", 3)]
    rows = COLUMNS.sent_rows(np.array([[True, False]]), np.array([[False, True, True]]))
    assert rows.tolist() == [[True, False, False, True, True]]
    # column 0 of words 1 and 2, their biases, and what is always sent
    assert COLUMNS.sent.kept_entries(rows[0]).tolist() == [0, 0, 1, 0, 1, 0, 0, 1, 1, 1]
    assert COLUMNS.sent.kept_weights(rows).tolist() == [5]


def test_words_that_a_label_drops_need_both() -> None:
    rows = ROWS.sent_rows(np.array([True, True, False]), np.array([False, True, True]))
    assert rows.tolist() == [False, True, False, False, True, True]  # the biases are in no group: by presence alone
    assert ROWS.sent.kept_entries(rows).tolist() == [0, 0, 1, 1, 0, 0, 0, 1, 1, 1]


def test_without_words_nothing_is_added() -> None:
    plain = Layout(SHAPES, COLUMNS.groups)
    assert plain.sent is plain
    assert (plain.num_words, COLUMNS.num_words) == (0, 3)
    assert COLUMNS.num_rows == plain.num_rows == 2


@pytest.mark.parametrize("rows", KINDS)
def test_every_kind_of_rows_of_a_language_model(rows: str) -> None:
    """Sent is what the pattern keeps and, of words, what the client has: entry by entry."""
    plain, stream = MODEL.layout(rows), np.random.default_rng(0)
    layout = Layout(plain.shapes, plain.groups, MODEL.words)
    for _ in range(20):
        pattern, present = stream.random(layout.num_rows) < 0.5, stream.random(5) < 0.5
        found = layout.sent.kept_entries(layout.sent_rows(pattern, present))
        kept = plain.kept_entries(pattern)
        start = 0
        for name, shape in plain.shapes.items():
            for i, entry in enumerate(np.ndindex(shape)):
                known = present[entry[0]] if name.startswith(("embedding", "output")) else True
                assert found[start + i] == (kept[start + i] and known)
            start += int(np.prod(shape))


@pytest.mark.parametrize(
    ("groups", "words", "problem"),
    [
        ((), (Slice("table", 0), Slice("table", 1)), "axis 0 of 'table' has 3 entries, not repeat 1 x size 2 x span 1"),
        ((), (Slice("tabel", 0),), "the model has no parameter 'tabel'"),
        ((RowGroup("g", 3, (Slice("table", 0), Slice("other", 0))),), WORDS, "rows of group 'g' are not words alone"),
        ((RowGroup("g", 1, (Slice("table", 0, span=3),)),), WORDS, "rows of group 'g' are not words alone"),
    ],
)
def test_words_that_cannot_be(groups: tuple[RowGroup, ...], words: tuple[Slice, ...], problem: str) -> None:
    with pytest.raises(LayoutError, match=problem):
        Layout({**SHAPES, "other": (3,)}, groups, words)


# ---------------------------------------------------------------------- the means by hand

# Three clients of 1, 3 and 4 samples. Word 0: of all; word 1: of the first two; word 2: of nobody.
# Every client drops one row of the table, whether it has the word or not: the first word 1, the others word 0.
WEIGHTS = [1, 3, 4]
PRESENT = np.array([[True, True, False], [True, True, False], [True, False, False]])
PATTERN = np.array([[True, False, True], [False, True, True], [False, True, True]])
OLD = {"table": torch.tensor([[10.0, 20], [30, 40], [50, 60]]), "bias": torch.tensor([8.0, 16, 24]),
       "free": torch.tensor([0.0])}  # fmt: skip
CHANGE = {
    "table": torch.tensor(
        [[[8.0, 16], [99, 99], [99, 99]], [[99, 99], [2, -4], [99, 99]], [[99, 99], [99, 99], [9, 9]]]
    ),
    "bias": torch.tensor([[8.0, 4, 99], [0, -4, 99], [2, 99, 99]]),
    "free": torch.tensor([[4.0], [8], [1]]),
}


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        # word 0: sent by the first alone; word 1: by the second alone; the third lacks it
        ("holders", [[18.0, 36.0], [32.0, 36.0], [50.0, 60.0]]),
        # word 0: (1 x 18) / 8 and (1 x 36) / 8; word 1: 3 x 32 / 4 and 3 x 36 / 4, of the two that have it
        ("zeros", [[2.25, 4.5], [24.0, 27.0], [50.0, 60.0]]),
        # word 0: 10 + 8/8, 20 + 16/8; word 1: 30 + 3 x 2 / 4, 40 - 3 x 4 / 4
        ("old", [[11.0, 22.0], [31.5, 37.0], [50.0, 60.0]]),
    ],
)
def test_means_by_hand(kind: str, table: list[list[float]]) -> None:
    mean = AGGREGATIONS[kind].finish(total_of(ROWS, PATTERN, PRESENT, CHANGE, WEIGHTS), OLD)
    assert mean["table"].tolist() == table
    # no label drops a bias: (8 + 0 + 4 x 2) / 8 of all; (1 x 4 - 3 x 4) / 4 of the two; nobody
    assert mean["bias"].tolist() == [10.0, 14.0, 24.0]
    assert mean["free"].tolist() == [4.0]  # (4 + 24 + 4) / 8: not a word


def test_a_vote_is_among_those_that_have_the_word() -> None:
    votes = {"table": torch.zeros(3, 3, 2), "bias": torch.tensor([[1.0, 1, -1], [-1, 1, -1], [-1, -1, -1]]),
             "free": torch.tensor([[1.0], [1], [-1]])}  # fmt: skip
    mean = MajorityVote(0.5).finish(total_of(ROWS, PATTERN, PRESENT, votes, [1, 1, 1]), OLD)
    assert mean["bias"].tolist() == [7.5, 16.5, 24.0]
    assert mean["free"].tolist() == [0.5]


# ---------------------------------------------------------------------- against slow loops


def slow_mean(
    kind: str, layout: Layout, pattern: Pattern, present: Pattern, change: Params, weights: list[int], old: Params
) -> dict[str, FloatArray]:
    """Client by client, entry by entry."""
    plain = Layout(layout.shapes, layout.groups)
    sent = [plain.kept_entries(own) for own in pattern]
    means, start = {}, 0
    for name, shape in layout.shapes.items():
        means[name] = mean = np.zeros(shape)
        for i, entry in enumerate(np.ndindex(shape)):
            worded = any(part.param == name for part in layout.words)
            before, top, bottom = float(old[name][entry]), 0.0, 0.0
            for k, weight in enumerate(weights):
                if worded and not present[k, entry[0]]:
                    continue  # not asked
                after = before + float(change[name][k][entry])
                if sent[k][start + i]:
                    top, bottom = top + weight * after, bottom + weight
                elif kind != "holders":
                    top, bottom = top + weight * (before if kind == "old" else 0.0), bottom + weight
            mean[entry] = top / bottom if bottom else before
        start += int(np.prod(shape))
    return means


@pytest.mark.parametrize("kind", AGGREGATIONS)
@pytest.mark.parametrize("rows", KINDS)
def test_means_by_slow_loops(kind: str, rows: str) -> None:
    plain, stream = MODEL.layout(rows), np.random.default_rng(7)
    layout, clients = Layout(plain.shapes, plain.groups, MODEL.words), 7
    weights = stream.integers(1, 9, clients).tolist()
    pattern = stream.random((clients, layout.num_rows)) < 0.5
    present = stream.random((clients, 5)) < 0.5
    pattern[2], present[:, 4] = True, False  # a client that drops nothing; a word of nobody
    old = {name: torch.from_numpy(stream.normal(size=shape)) for name, shape in layout.shapes.items()}
    change = {name: torch.from_numpy(stream.normal(size=(clients, *shape))) for name, shape in layout.shapes.items()}
    expected = slow_mean(kind, layout, pattern, present, change, weights, old)
    for ends in ((), (2, 3), (0, 4, 7)):
        mean = AGGREGATIONS[kind].finish(total_of(layout, pattern, present, change, weights, ends), old)
        for name, values in expected.items():
            np.testing.assert_allclose(mean[name].numpy(), values, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", AGGREGATIONS)
def test_where_all_have_every_word_it_is_the_plain_mean(kind: str) -> None:
    plain, stream = MODEL.layout("paper"), np.random.default_rng(3)
    layout, weights = Layout(plain.shapes, plain.groups, MODEL.words), [3, 1, 2, 5]
    pattern = stream.random((4, layout.num_rows)) < 0.5
    old = {name: torch.from_numpy(stream.normal(size=shape)) for name, shape in layout.shapes.items()}
    change = {name: torch.from_numpy(stream.normal(size=(4, *shape))) for name, shape in layout.shapes.items()}
    every = np.ones((4, 5), dtype=np.bool_)
    mean = AGGREGATIONS[kind].finish(total_of(layout, pattern, every, change, weights), old)
    same = AGGREGATIONS[kind].finish(sum_block(plain, pattern, change, weights), old)
    for name in old:  # torch divides by a number as it multiplies by its inverse, but not by an array
        torch.testing.assert_close(mean[name], same[name], rtol=1e-15, atol=1e-15)
