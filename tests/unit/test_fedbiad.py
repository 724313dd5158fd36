"""ClientUpdate against Algorithm 1 written out for one client in numpy, and the rules of the two stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pytest
import torch

from fedbiad import streams
from fedbiad.arrays import ClientState, FloatArray, IntArray, Params, Pattern
from fedbiad.client import LocalTraining, Trained, client_update
from fedbiad.cohort import Cohort
from fedbiad.methods import LETTER, METHODS, FedBIAD
from fedbiad.models import MLP
from fedbiad.rows import Layout, RowGroup, Slice
from fedbiad.training.batches import LocalData
from fedbiad.training.forms import Form

SEED, CLIENT, SAMPLES, INPUTS, HIDDEN, CLASSES = 2, 6, 23, 5, 12, 4
V, TAU, BATCH, RATE, BOUNDARY = 22, 3, 4, 0.5, 3
MODEL = MLP(INPUTS, (HIDDEN,), CLASSES)
NAMES = ("layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def local_data() -> tuple[FloatArray, IntArray]:
    """Samples whose labels are partly noise, so that the loss both falls and rises."""
    stream = np.random.default_rng(0)
    inputs = stream.normal(size=(SAMPLES, INPUTS))
    targets = np.where(stream.random(SAMPLES) < 0.5, stream.integers(0, CLASSES, SAMPLES), (inputs[:, 0] > 0) * 2)
    return inputs, targets.astype(np.int64)


# ---------------------------------------------------------------- Algorithm 1 in plain numpy, one client, no noise


def masks_of(method: FedBIAD, pattern: Pattern) -> list[FloatArray]:
    """The factor on every weight: W1, b1, W2, b2."""
    beta, p = pattern.astype(np.float64), method.dropout_rate
    factor = 1 / (1 - p) if method.scaling == "inverse" else 1.0
    hidden = beta[:HIDDEN]
    if method.rows == "units":  # a unit's row, its bias and its outgoing column
        columns = np.tile(hidden * factor, (CLASSES, 1))
        return [np.tile(hidden[:, None], (1, INPUTS)), hidden, columns, np.ones(CLASSES)]
    classes = beta[HIDDEN:]  # bare rows of both matrices
    rows1, rows2 = np.tile(hidden[:, None], (1, INPUTS)), np.tile(classes[:, None], (1, HIDDEN))
    return [rows1 * factor, hidden * factor, rows2, classes]


def loss_and_gradient(theta: list[FloatArray], inputs: FloatArray, targets: IntArray) -> tuple[float, list[FloatArray]]:
    """Mean cross entropy of a network with one hidden layer, and its gradient by the chain rule."""
    W1, b1, W2, b2 = theta
    z = inputs @ W1.T + b1
    a = np.maximum(z, 0)
    logits = a @ W2.T + b2
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    own = np.eye(CLASSES)[targets]
    d_logits = (probabilities - own) / len(targets)
    d_z = (d_logits @ W2) * (z > 0)
    loss = -float(np.log((probabilities * own).sum(1)).mean())
    return loss, [d_z.T @ inputs, d_z.sum(0), d_logits.T @ a, d_logits.sum(0)]


def quantile(values: FloatArray, p: float) -> float:
    """Linear interpolation between order statistics."""
    ordered = sorted(values.tolist())
    place = p * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (place - below) * (ordered[above] - ordered[below]))


GOLDEN = 0x9E3779B97F4A7C15


def luck_of(r: int, purpose: str, count: int, v: int | None = None) -> FloatArray:
    """The client's random numbers, or those of its iteration v: SplitMix64 in Python's whole numbers."""
    state, drawn = streams.key(SEED, r, CLIENT, purpose), []
    if v is not None:
        state = mixed(state ^ mixed((v + 1) * GOLDEN % 2**64))
    for _ in range(count):
        state = (state + GOLDEN) % 2**64
        drawn.append(((mixed(state) >> 12) + 0.5) / 2**52)
    return np.array(drawn)


def mixed(word: int) -> int:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = ((word ^ (word >> shift)) * factor) % 2**64
    return word ^ (word >> 31)


def best(scores: FloatArray, count: int, luck: FloatArray) -> Pattern:
    """The `count` highest scores, ties by luck."""
    chosen = sorted(range(len(scores)), key=lambda j: (-scores[j], -luck[j]))[:count]
    return np.isin(np.arange(len(scores)), chosen)


def slow_order(r: int, count: int) -> list[int]:
    """The client's random order of its rows: cards exchanged from the last one down (Fisher and Yates)."""
    state, order = streams.key(SEED, r, CLIENT, "resample"), list(range(count))
    for i in range(count - 1, 0, -1):
        state = (state + GOLDEN) % 2**64
        j = ((mixed(state) >> 32) * (i + 1)) >> 32
        order[i], order[j] = order[j], order[i]
    return order


def slow_swap(lines: tuple[list[int], list[int]], share: float) -> None:
    """Who is first in either line goes to the end of the other."""
    held, dropped = lines
    for _ in range(max(1, int(share * len(held) + 0.5))):
        held.append(dropped.pop(0))
        dropped.append(held.pop(0))


@dataclass
class Slow:
    """What one round did."""

    u: list[FloatArray]
    pattern: Pattern
    score: FloatArray
    holds: IntArray
    losses: list[float]
    resampled: int
    checks: int


def slow_first_pattern(method: FedBIAD, layout: Layout, r: int, score: FloatArray, holds: IntArray) -> Pattern:
    """Lines 10-14."""
    p, J = method.dropout_rate, layout.num_rows
    luck = luck_of(r, "pattern", J)
    if r <= method.stage_boundary:
        return best(np.zeros(J), round((1 - p) * J), luck)
    if method.stage_two == "above":  # to the letter
        threshold = quantile(score, p)
        return np.array([value > threshold for value in score])
    # the rows of highest mean score, or drawn in proportion to it; a row never held stands in the middle
    means = np.array([s / n if n else 0.5 for s, n in zip(score, holds, strict=True)])
    if method.stage_two == "sample":
        means = np.log(means) - np.log(-np.log(luck))
    return best(means, round((1 - p) * J), luck)


def slow_evidence_ranks(u: list[FloatArray], U: list[FloatArray], sent: Pattern) -> FloatArray:
    """Units only: the squared change of a unit's row, bias and column, ranked among the rows sent."""
    change = [(new - old) ** 2 for new, old in zip(U, u, strict=True)]
    evidence = change[0].sum(1) + change[1] + change[2].sum(0)
    rivals = evidence[sent]
    ranks = [((rivals < own).sum() + (rivals == own).sum() / 2) / len(rivals) for own in evidence]
    return np.where(sent, ranks, 0.0)


def slow_client_update(
    method: FedBIAD, layout: Layout, u: list[FloatArray], r: int, score: FloatArray, holds: IntArray
) -> Slow:
    """ClientUpdate(U_{r-1}, r) line by line; random numbers are the client's own.

    Lines are numbered as the paper's LaTeX prints them, `end if` and `end for` included.
    """
    inputs, targets = local_data()
    schedule = Cohort(SEED, r, (CLIENT,)).schedule([SAMPLES], V * BATCH)[0]
    J, p, score = layout.num_rows, method.dropout_rate, score.copy()
    U = u  # line 9
    beta = slow_first_pattern(method, layout, r, score, holds)  # lines 10-14
    held_for = np.zeros(J)
    losses: list[float] = []
    trend: list[float] = []
    order = slow_order(r, J)
    lines = [j for j in order if beta[j]], [j for j in order if not beta[j]]
    resampled = checks = 0
    for v in range(V):  # line 15
        held_for += beta
        masks = masks_of(method, beta)
        theta = [mask * part for mask, part in zip(masks, U, strict=True)]  # line 16
        chosen = schedule[v * BATCH : (v + 1) * BATCH]
        loss, gradient = loss_and_gradient(theta, inputs[chosen], targets[chosen])
        losses.append(loss)
        trend.append(loss if method.trend == "batch" else loss_and_gradient(theta, inputs, targets)[0])
        U = [part - RATE * mask * g for part, mask, g in zip(U, masks, gradient, strict=True)]  # line 17
        if not (r <= method.stage_boundary and v > TAU and v % TAU == 0):  # line 18
            continue
        checks += 1
        gap = sum(trend[v - TAU + 1 : v + 1]) - sum(trend[v - 2 * TAU + 1 : v - TAU + 1])  # line 19
        following = beta  # line 23
        if gap > 0:  # lines 20-21
            resampled += 1
            if method.resample == "anew":
                following = best(np.zeros(J), round((1 - p) * J), luck_of(r, "resample", J, v))
            else:
                slow_swap(lines, method.swap_share)
                following = np.isin(np.arange(J), lines[0])
        if method.score == "holds":  # line 26, Eq. (score_update)
            for j in np.flatnonzero(beta):
                score[j] += 1 if gap <= 0 else int(following[j])
        beta = following
    if r <= method.stage_boundary and method.upload == "longest":
        beta = best(held_for, round((1 - p) * J), luck_of(r, "upload", J))
    if r <= method.stage_boundary and method.score == "evidence":
        score, holds = score + slow_evidence_ranks(u, U, beta), holds + beta
    return Slow(U, beta, score, holds, losses, resampled, checks)


# ------------------------------------------------------------------------------------------------- the real one


def update(
    method: FedBIAD,
    layout: Layout,
    u: Params,
    r: int,
    state: ClientState,
    form: Form = "auto",
) -> Trained:
    inputs, targets = local_data()
    cohort = Cohort(SEED, r, (CLIENT,))
    schedule = cohort.schedule([SAMPLES], V * BATCH)
    data = LocalData(torch.from_numpy(inputs), torch.from_numpy(targets), [slice(0, SAMPLES)], schedule, BATCH)
    work = LocalTraining(method, MODEL, layout, V, BATCH, RATE, form=form)
    received = {name: value.unsqueeze(0) for name, value in u.items()}
    return client_update(work, received, cohort, data, state)


def initial() -> Params:
    return {name: value.double() for name, value in MODEL.init(np.random.default_rng(1)).items()}


DEFAULT = cast(FedBIAD, METHODS["fedbiad"])
READINGS: dict[str, FedBIAD] = {
    "letter": cast(FedBIAD, METHODS["fedbiad-letter"]),
    "default": DEFAULT,
    "default-top": replace(DEFAULT, stage_two="top"),
    "letter-scaled": replace(LETTER, scaling="inverse"),
    "default-local": replace(DEFAULT, trend="local", resample="anew", upload="final"),
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("form", ["auto", "masked"])
def test_client_update_is_algorithm_1(reading: str, form: Form) -> None:
    method = replace(READINGS[reading], noise=0.0, stage_boundary=BOUNDARY, interval=TAU)
    layout = MODEL.layout(method.rows)
    u = initial()
    state: ClientState = {name: value[None] for name, value in method.init_client(layout).items()}
    slow_u = [u[name].numpy().copy() for name in NAMES]
    score, holds = np.zeros(layout.num_rows), np.zeros(layout.num_rows, dtype=np.int64)
    resampled = checks = 0
    for r in range(1, BOUNDARY + 3):  # three rounds of stage one, two of stage two
        received = {name: value.clone() for name, value in u.items()}
        updates = update(method, layout, u, r, state, form)
        slow = slow_client_update(method, layout, slow_u, r, score, holds)
        assert updates.pattern[0].tolist() == slow.pattern.tolist()
        np.testing.assert_allclose(updates.losses[0], slow.losses, rtol=1e-10)
        trained = {name: u[name] + change for name, change in updates.learned.change(0).items()}
        for name, expected in zip(NAMES, slow.u, strict=True):
            np.testing.assert_allclose(trained[name].numpy(), expected, rtol=0, atol=1e-10)
            assert torch.equal(u[name], received[name])  # what was received is not touched
        np.testing.assert_allclose(updates.state["score"][0].astype(np.float64), slow.score, atol=1e-12)
        assert updates.state["holds"][0].tolist() == slow.holds.tolist()
        assert (int(np.sum(updates.resampled)), int(np.sum(updates.checks))) == (slow.resampled, slow.checks)
        assert updates.usable.tolist() == [True]
        resampled, checks = resampled + slow.resampled, checks + slow.checks
        state, score, holds = updates.state, slow.score, slow.holds
        u = trained
        slow_u = slow.u
    # Checks at v = 6, 9, ..., 21 of every round of stage one; the example took both branches.
    assert checks == 6 * BOUNDARY
    assert 0 < resampled < checks


def test_the_letter_is_the_text() -> None:
    assert METHODS["fedbiad-letter"] == LETTER
    assert (LETTER.aggregation, LETTER.rows, LETTER.scope) == ("zeros", "weight-rows", "global")
    assert LETTER.scale(TEN, Cohort(0, 1, (0,))) == 1.0
    assert (LETTER.trend_loss(1), LETTER.resample, LETTER.upload) == ("local", "anew", "final")
    assert (LETTER.score, LETTER.stage_two, LETTER.noise) == ("holds", "above", "posterior")
    assert not LETTER.fixed_count
    assert DEFAULT.fixed_count
    assert DEFAULT.scale(TEN, Cohort(0, 1, (0,))) == 2.0  # 1 / (1 - 0.5)


# ---------------------------------------------------------------------------------------------- rules of the stages


TEN = Layout({"w": (10,)}, (RowGroup("g", 10, (Slice("w", 0),)),))


def state_of(score: list[float], holds: list[int]) -> ClientState:
    return {"score": np.array([score]), "holds": np.array([holds])}


def test_stage_two_begins_after_the_boundary() -> None:
    method = replace(DEFAULT, stage_boundary=7, stage_two="top")
    # means 0.9 for rows 0-4, 0.1 for rows 5-9
    state = state_of([1.8] * 5 + [0.2] * 5, [2] * 10)
    drawn = [method.first_pattern(TEN, Cohort(seed, 7, (0,)), state)[0] for seed in range(20)]
    assert len({tuple(pattern.tolist()) for pattern in drawn}) > 10
    for seed in range(20):
        pattern = method.first_pattern(TEN, Cohort(seed, 8, (0,)), state)[0]
        assert pattern.tolist() == [True] * 5 + [False] * 5


def test_stage_two_draws_rows_in_proportion_to_their_scores() -> None:
    method = replace(DEFAULT, stage_boundary=0)
    state = state_of([1.8] * 5 + [0.2] * 5, [2] * 10)  # means 0.9 and 0.1
    held = np.stack([method.first_pattern(TEN, Cohort(seed, 1, (0,)), state)[0] for seed in range(400)])
    assert (held.sum(1) == 5).all()
    # the first draw alone takes a good row with probability 0.9; five draws leave some of them out and some bad ones in
    assert 0.8 < held[:, :5].mean() < 0.9
    assert 0.1 < held[:, 5:].mean() < 0.2


def test_stage_one_of_no_rounds_starts_from_a_random_pattern() -> None:
    method = replace(DEFAULT, stage_boundary=0)
    fresh = {name: value[None] for name, value in method.init_client(TEN).items()}
    drawn = [method.first_pattern(TEN, Cohort(seed, 1, (0,)), fresh)[0] for seed in range(20)]
    assert {int(pattern.sum()) for pattern in drawn} == {5}
    assert len({tuple(pattern.tolist()) for pattern in drawn}) > 10


def test_a_row_never_held_ranks_between_good_and_bad_ones() -> None:
    method = replace(DEFAULT, stage_boundary=0, dropout_rate=0.5, stage_two="top")
    # four rows of mean 0.6, four never held, two of mean 0.4: one of the never held is taken, none of the bad
    state = state_of([0.6] * 4 + [0.0] * 4 + [0.4] * 2, [1] * 4 + [0] * 4 + [1] * 2)
    held = np.stack([method.first_pattern(TEN, Cohort(seed, 1, (0,)), state)[0] for seed in range(50)])
    assert held[:, :4].all()
    assert (held[:, 4:8].sum(1) == 1).all()
    assert not held[:, 8:].any()
    # and with a rate of 0.1 one of the bad rows is what is dropped
    held = np.stack(
        [replace(method, dropout_rate=0.1).first_pattern(TEN, Cohort(s, 1, (0,)), state)[0] for s in range(9)]
    )
    assert held[:, :8].all()


def test_checks_begin_at_twice_the_interval_and_end_with_stage_one() -> None:
    method = replace(DEFAULT, interval=3, stage_boundary=5)
    assert list(method.checks(5, 14)) == [6, 9, 12]
    assert list(method.checks(6, 14)) == []


@pytest.mark.parametrize(("last", "changes"), [(2.0, True), (1.0, False), (0.5, False)])
def test_only_a_rising_loss_changes_the_pattern(last: float, changes: bool) -> None:
    method = replace(DEFAULT, interval=2, swap_share=0.4)
    losses = np.array([[9.0, 1.0, 1.0, 1.0, last, 77.0]])  # at v = 4: mean of 1, last against 1
    pattern = (np.arange(10) < 5)[None]
    state = {name: value[None] for name, value in method.init_client(TEN).items()}
    following, after, changed = method.next_pattern(TEN, Cohort(0, 1, (0,)), 4, losses, pattern, no_evidence, state)
    assert changed.tolist() == [changes]
    assert int((following != pattern).sum()) == (4 if changes else 0)  # 40 % of 5 leave, as many come
    assert int(pattern[0, :5].sum()) == 5
    assert after["score"].tolist() == state["score"].tolist()  # evidence is not counted at checks


def test_who_is_next_in_turn_is_remembered_within_the_round_only() -> None:
    method = replace(DEFAULT, interval=1, swap_share=0.4)
    state: ClientState = {name: value[None] for name, value in method.init_client(TEN).items()}
    begun, rising = (np.arange(10) < 5)[None], np.arange(9.0)[None]
    pattern = begun
    for v, exchanged in zip(range(2, 7), [2, 4, 4, 2, 0], strict=True):  # of five: 2, 4, 1 of them back, 3, all
        pattern, state, _ = method.next_pattern(TEN, Cohort(0, 1, (0,)), v, rising, pattern, no_evidence, state)
        assert int((begun & ~pattern).sum()) == exchanged
    _, after = method.upload_pattern(
        TEN, Cohort(0, 1, (0,)), np.arange(10)[None], pattern, evidence_of(np.ones((1, 10))), state
    )
    assert sorted(after) == ["holds", "score"]


def no_evidence() -> FloatArray:
    raise AssertionError("the evidence is not needed")


def evidence_of(values: FloatArray) -> Callable[[], FloatArray]:
    return lambda: values


def test_longest_uploads_the_rows_held_longest() -> None:
    held = np.array([[5, 0, 9, 1, 8, 7, 2, 3, 9, 4]])  # the five longest: rows 2, 8, 4, 5, 0
    final = (np.arange(10) % 2 == 1)[None]
    state = {name: value[None] for name, value in DEFAULT.init_client(TEN).items()}
    evidence = evidence_of(np.arange(10.0)[None])
    sent, after = DEFAULT.upload_pattern(TEN, Cohort(0, 1, (0,)), held, final, evidence, state)
    assert np.flatnonzero(sent[0]).tolist() == [0, 2, 4, 5, 8]
    # evidence 0, 2, 4, 5, 8 of the rows sent: ranks 0.1, 0.3, 0.5, 0.7, 0.9; other rows learn nothing
    expected = [0.1, 0, 0.3, 0, 0.5, 0.7, 0, 0, 0.9, 0]
    assert after["score"][0].tolist() == pytest.approx(expected)
    assert after["holds"][0].tolist() == [1, 0, 1, 0, 1, 1, 0, 0, 1, 0]
    # a second round adds up
    _, twice = DEFAULT.upload_pattern(TEN, Cohort(0, 2, (0,)), held, final, evidence, after)
    assert twice["score"][0].tolist() == pytest.approx([2 * rank for rank in expected])
    assert twice["holds"][0].tolist() == [2, 0, 2, 0, 2, 2, 0, 0, 2, 0]


def test_final_uploads_the_final_pattern() -> None:
    method = replace(DEFAULT, upload="final")
    held, final = np.array([[9] * 5 + [1] * 5]), (np.arange(10) >= 5)[None]
    state = {name: value[None] for name, value in method.init_client(TEN).items()}
    sent, after = method.upload_pattern(TEN, Cohort(0, 1, (0,)), held, final, evidence_of(np.ones((1, 10))), state)
    assert sent.tolist() == final.tolist()
    assert after["score"][0].tolist() == pytest.approx([0.0] * 5 + [0.5] * 5)


def test_stage_two_uploads_its_pattern_and_learns_nothing() -> None:
    held, final = np.array([[0] * 5 + [20] * 5]), (np.arange(10) >= 5)[None]
    state = state_of([0.5] * 10, [1] * 10)
    for method in (DEFAULT, LETTER):
        cohort = Cohort(0, method.stage_boundary + 1, (0,))
        sent, after = method.upload_pattern(TEN, cohort, held, final, no_evidence, state)
        assert sent.tolist() == final.tolist()
        assert after["score"].tolist() == state["score"].tolist()
        assert after["holds"].tolist() == state["holds"].tolist()


def test_the_letter_never_asks_for_evidence() -> None:
    final = (np.arange(10) >= 5)[None]
    sent, _ = LETTER.upload_pattern(
        TEN, Cohort(0, 1, (0,)), final * 20, final, no_evidence, state_of([0.0] * 10, [0] * 10)
    )
    assert sent.tolist() == final.tolist()


def test_only_the_letter_has_ragged_patterns() -> None:
    assert DEFAULT.fixed_count
    assert not LETTER.fixed_count
    assert not replace(DEFAULT, scope="global").fixed_count
    assert not replace(DEFAULT, stage_two="above").fixed_count
