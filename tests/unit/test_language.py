"""Text among clients: who holds which lines, and windows that cover what they promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedbiad.cohort import Cohort
from fedbiad.data.language import LanguageData, evaluation_windows, federate_text
from fedbiad.data.text import Corpus
from fedbiad.errors import DataError

quick = settings(deadline=None, max_examples=60)
EOS = 0


def lines_corpus(lengths: list[int]) -> Corpus:
    """Line i is `lengths[i]` times the word i + 1, so a token tells its line."""
    lines = [np.r_[np.full(n, i + 1), EOS] for i, n in enumerate(lengths)]
    vocabulary = ("<eos>", *(f"w{i}" for i in range(len(lengths))))
    test = np.arange(5, dtype=np.int32) % len(vocabulary)
    return Corpus("made", vocabulary, np.concatenate(lines).astype(np.int32), test[:3], test)


def streams_of(data: LanguageData) -> list[list[int]]:
    return [data.tokens[start:end].tolist() for start, end in data.spans]


def make_data(sizes: list[int], bptt: int) -> LanguageData:
    """Clients whose tokens are all different: a token is its place in the pool."""
    total = sum(sizes)
    users = tuple((f"u{i}", size) for i, size in enumerate(sizes))
    tokens = np.arange(total, dtype=np.int32)
    vocabulary = ("<eos>", *(str(i) for i in range(1, total)))
    corpus = Corpus("made", vocabulary, tokens, tokens[:4], tokens[:9], users)
    return federate_text(corpus, clients=len(sizes), seed=0, bptt=bptt)


@quick
@given(
    lengths=st.lists(st.integers(0, 6), min_size=12, max_size=60), clients=st.integers(1, 12), seed=st.integers(0, 9)
)
def test_every_line_goes_to_exactly_one_client_as_a_whole(lengths: list[int], clients: int, seed: int) -> None:
    corpus = lines_corpus(lengths)
    assume(max(lengths) > 0)
    data = federate_text(corpus, clients=clients, seed=seed, bptt=1)
    lines = []
    for stream in streams_of(data):
        ends = np.flatnonzero(np.array(stream) == EOS) + 1
        assert ends[-1] == len(stream)
        lines += [tuple(line.tolist()) for line in np.split(np.array(stream), ends)[:-1]]
    everything = [tuple([i + 1] * n + [EOS]) for i, n in enumerate(lengths)]
    lines += [(EOS,)] * data.unused  # a client of one empty line is shorter than a window
    assert sorted(lines) == sorted(everything)
    assert (len(data.left_out), sum(data.sizes) + data.unused) == (clients - data.num_clients, len(corpus.train))


def test_lines_are_shuffled_by_the_seed_in_equal_numbers() -> None:
    corpus = lines_corpus([3] * 103)
    first, again, other = (federate_text(corpus, clients=10, seed=seed, bptt=2) for seed in (1, 1, 2))
    assert streams_of(first) == streams_of(again) != streams_of(other)
    assert sorted(first.sizes) == [40] * 7 + [44] * 3
    assert first.sizes[0] == len(streams_of(first)[0])
    assert (first.names, first.left_out, first.classes) == (tuple(map(str, range(10))), (), 104)
    assert streams_of(first)[0] != sorted(streams_of(first)[0])


def test_users_are_clients_and_short_ones_are_left_out_by_name() -> None:
    data = make_data([10, 3, 4, 2], bptt=3)
    assert streams_of(data) == [list(range(10)), [13, 14, 15, 16]]
    assert (data.names, data.left_out, data.unused) == (("u0", "u2"), ("u1", "u3"), 5)
    assert (data.num_clients, data.sizes.tolist()) == (2, [10, 4])
    assert data.tokens.dtype == data.eval_tokens.dtype == torch.int64


def test_evaluation_part_is_chosen() -> None:
    corpus = lines_corpus([3] * 5)
    on_test = federate_text(corpus, clients=2, seed=0, bptt=2)
    on_valid = federate_text(corpus, clients=2, seed=0, bptt=2, evaluate_on="validation")
    assert (on_test.eval_split, on_test.eval_tokens.tolist()) == ("test", [0, 1, 2, 3, 4])
    assert (on_valid.eval_split, on_valid.eval_tokens.tolist()) == ("validation", [0, 1, 2])
    assert streams_of(on_test) == streams_of(on_valid)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 6}, r"6 clients but only 5 training samples"),
        ({"bptt": 0}, r"bptt is 0; a window has at least 1 token"),
        ({"bptt": 40}, r"made: no client has the 41 tokens of a window; use a smaller bptt or fewer clients"),
        ({"evaluate_on": "train"}, r"'train'; choose 'test' or 'validation'"),
    ],
)
def test_wrong_arguments_say_what_to_do(options: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        federate_text(lines_corpus([3] * 5), **{"clients": 2, "seed": 0, "bptt": 2, **options})  # type: ignore[arg-type]


def test_corpora_that_do_not_fit_are_refused() -> None:
    tokens = np.zeros(9, dtype=np.int32)
    users = (("ann", 5), ("bob", 4))
    with pytest.raises(DataError, match=r"made: 100 clients, but each of its 2 users is one"):
        federate_text(Corpus("made", ("<eos>",), tokens, tokens, tokens, users), seed=0, bptt=2)
    with pytest.raises(DataError, match=r"made: its test part has 1 tokens; at least 2 are needed"):
        federate_text(Corpus("made", ("<eos>",), tokens, tokens, tokens[:1], users), clients=2, seed=0, bptt=2)


@quick
@given(
    sizes=st.lists(st.integers(10, 60), min_size=1, max_size=4),
    bptt=st.integers(1, 9), batch=st.integers(1, 5), carry=st.booleans(), round_=st.integers(1, 5),
)  # fmt: skip
def test_windows_are_the_clients_own_tokens_shifted_by_one(
    sizes: list[int], bptt: int, batch: int, carry: bool, round_: int
) -> None:
    data = make_data(sizes, bptt)
    cohort = Cohort(3, round_, tuple(range(data.num_clients)))
    local = replace(data, carry=carry).local(cohort, 7, batch)
    for v in range(7):
        got = local.batch(v)
        assert got.inputs.shape == (len(sizes), batch, bptt)
        assert got.targets.shape == (len(sizes), batch * bptt)
        assert got.inputs.dtype == got.targets.dtype == torch.int64
        assert torch.equal(got.inputs.flatten(1) + 1, got.targets)
        for (start, end), inputs, targets in zip(data.spans, got.inputs, got.targets, strict=True):
            assert start <= int(inputs.min()) <= int(targets.max()) < end


@quick
@given(
    size=st.integers(10, 80), bptt=st.integers(1, 9), batch=st.integers(1, 5), carry=st.booleans(),
    round_=st.integers(1, 5),
)  # fmt: skip
def test_an_epoch_covers_each_target_once(size: int, bptt: int, batch: int, carry: bool, round_: int) -> None:
    data = make_data([size], bptt)
    targets = size - 1
    windows = targets // bptt
    # An epoch as a whole number of iterations: of one window each, or of all lanes.
    turns, width = (targets // (bptt * batch), batch) if carry else (windows, 1)
    assume(turns > 0)
    local = replace(data, carry=carry).local(Cohort(0, round_, (0,)), 2 * turns, width)
    for epoch in range(2):
        seen = torch.cat([local.batch(v).targets[0] for v in range(epoch * turns, (epoch + 1) * turns)])
        covered = turns * width * bptt
        assert len(seen) == covered == len(torch.unique(seen))
        assert int(seen.max()) - int(seen.min()) == covered - 1  # nothing is left out between them
        assert targets - covered < bptt * width


def test_what_an_epoch_leaves_over_changes_from_round_to_round() -> None:
    data = make_data([18], bptt=5)  # 17 targets: 3 windows and 2 tokens

    def firsts(carry: bool) -> set[int]:
        return {
            int(
                torch.cat(
                    [replace(data, carry=carry).local(Cohort(0, r, (0,)), 3, 1).batch(v).inputs for v in range(3)]
                ).min()
            )
            for r in range(30)
        }

    assert firsts(carry=False) == firsts(carry=True) == {0, 1, 2}


@quick
@given(sizes=st.lists(st.integers(10, 90), min_size=1, max_size=4), bptt=st.integers(1, 5), batch=st.integers(1, 4))
def test_carried_windows_follow_one_another(sizes: list[int], bptt: int, batch: int) -> None:
    data = make_data(sizes, bptt)
    local = replace(data, carry=True).local(Cohort(1, 2, tuple(range(len(sizes)))), 30, batch)
    before = local.batch(0)
    first = before.inputs
    assert before.continues is not None
    assert not before.continues.any()
    for v in range(1, 30):
        now = local.batch(v)
        assert now.continues is not None
        for i, size in enumerate(sizes):
            turns = max(1, (size - 1) // (bptt * batch))
            assert bool(now.continues[i]) == (v % turns != 0)
            if now.continues[i]:
                assert torch.equal(now.inputs[i, :, 0], before.targets[i].view(batch, bptt)[:, -1])
            else:
                assert torch.equal(now.inputs[i], first[i])
        before = now


def test_lanes_overlap_where_a_client_has_less_than_a_window_for_each() -> None:
    data = make_data([12], bptt=5)  # 11 targets, 4 lanes of 5
    local = replace(data, carry=True).local(Cohort(0, 1, (0,)), 2, 4)
    assert local.batch(0).inputs[0, :, 0].tolist() == [0, 2, 4, 6]
    assert local.batch(0).targets[0, -1] == 11
    assert torch.equal(local.batch(0).inputs, local.batch(1).inputs)


def test_independent_windows_never_continue() -> None:
    local = make_data([40], bptt=5).local(Cohort(0, 1, (0,)), 6, 2)
    assert not any(bool(now.continues) for v in range(6) if (now := local.batch(v)).continues is not None)


@pytest.mark.parametrize("carry", [False, True])
def test_a_clients_windows_do_not_depend_on_its_block(carry: bool) -> None:
    data = make_data([30, 47, 61], bptt=4)
    together = replace(data, carry=carry).local(Cohort(5, 3, (2, 0, 1)), 5, 3)
    for position, client in enumerate((2, 0, 1)):
        alone = replace(data, carry=carry).local(Cohort(5, 3, (client,)), 5, 3)
        for v in range(5):
            assert torch.equal(alone.batch(v).inputs[0], together.batch(v).inputs[position])
            assert torch.equal(alone.batch(v).targets[0], together.batch(v).targets[position])


def test_whole_has_every_target_once_and_pads_with_weight_zero() -> None:
    data = make_data([11, 5], bptt=4)
    local = data.local(Cohort(0, 1, (0, 1)), 1, 1)
    whole = local.whole()
    assert whole.weight is not None
    assert whole.inputs.shape == (2, 3, 4)
    assert whole.targets.shape == whole.weight.shape == (2, 12)
    for targets, weight, expected in zip(whole.targets, whole.weight, (range(1, 11), range(12, 16)), strict=True):
        assert targets[weight == 1].tolist() == list(expected)
    assert torch.equal(whole.inputs.flatten(1) + 1, whole.targets)
    assert local.whole() is whole


def test_present_words_are_those_of_the_whole_stream() -> None:
    data = make_data([6, 4], bptt=3)
    present = data.local(Cohort(0, 1, (1, 0)), 1, 1).present(data.classes)
    assert present.tolist() == [[False] * 6 + [True] * 4, [True] * 6 + [False] * 4]


@quick
@given(size=st.integers(2, 200), bptt=st.integers(1, 9), lanes=st.integers(1, 12))
def test_evaluation_covers_each_target_once_and_carries_on(size: int, bptt: int, lanes: int) -> None:
    tokens = torch.arange(size)
    counted: list[int] = []
    last = None
    for now in evaluation_windows(tokens, bptt, lanes):
        assert now.weight is not None
        assert now.continues is not None
        assert now.inputs.shape == (1, lanes, bptt)
        assert now.targets.shape == now.weight.shape == (1, lanes * bptt)
        assert torch.equal(now.inputs.flatten(1) + 1, now.targets)
        counted += now.targets[now.weight == 1].tolist()
        assert bool(now.continues) == (last is not None)
        if last is not None:
            real = now.weight.view(lanes, bptt)[:, 0] == 1
            assert torch.equal(now.inputs[0, real, 0], last.targets.view(lanes, bptt)[real, -1])
        last = now
    assert sorted(counted) == list(range(1, size))
