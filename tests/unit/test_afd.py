"""AFD: the score map, what is kept and what is drawn, on five rows by hand."""

from __future__ import annotations

from itertools import combinations
from typing import Literal

import numpy as np
import pytest

from fedbiad import streams
from fedbiad.arrays import Pattern, ServerState
from fedbiad.cohort import Cohort
from fedbiad.methods.afd import AFD
from fedbiad.methods.base import Reports
from fedbiad.models import MLP

LAYOUT = MLP(3, (5,), 2).layout("units")
METHOD = AFD(dropout_rate=0.4)  # 3 of 5 rows
HELD = np.array([True, False, True, True, False])


def assigned(
    method: AFD, server: ServerState, round_: int = 1, ids: tuple[int, ...] = (4, 7), seed: int = 0, count: int = 3
) -> Pattern:
    pattern = method.assign(LAYOUT, Cohort(seed, round_, ids), server, {})
    assert pattern is not None
    assert (pattern.sum(1) == count).all()
    return pattern


def after(method: AFD, server: ServerState, losses: dict[int, float], pattern: Pattern = HELD) -> ServerState:
    """The server's state after clients reported these losses of sub-models `pattern` ([rows] for all alike)."""
    ones = np.ones(len(losses))
    rows = np.broadcast_to(pattern, (len(losses), 5))
    return method.observe(
        LAYOUT, server, Reports(tuple(losses), np.array(list(losses.values())), ones, ones, ones, rows)
    )


def seen_rounds(method: AFD, *losses: float) -> ServerState:
    server = method.init_server(LAYOUT)
    for loss in losses:
        server = after(method, server, {4: loss})
    return server


def test_the_first_sub_model_is_uniform_and_the_same_for_all_clients() -> None:
    fresh = METHOD.init_server(LAYOUT)
    counts: dict[tuple[int, ...], int] = dict.fromkeys(combinations(range(5), 3), 0)
    for seed in range(2000):
        pattern = assigned(METHOD, fresh, seed=seed)
        assert (pattern[0] == pattern[1]).all()
        counts[tuple(np.flatnonzero(pattern[0]).tolist())] += 1
    # 10 sub-models, 200 of each expected; chi-square with 9 degrees of freedom exceeds 27.9 once in 1000 times
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 27.9


def test_a_fall_records_the_sub_model_and_scores_its_rows() -> None:
    server = METHOD.init_server(LAYOUT)
    server = after(METHOD, server, {4: 1.0, 7: 3.0})  # mean 2, nothing to compare with
    np.testing.assert_array_equal(server["score"], np.zeros((1, 5)))
    assert server["recorded"].tolist() == [False]
    server = after(METHOD, server, {2: 1.0, 4: 2.0})  # mean 1.5: (2 - 1.5) / 2 = 0.25
    np.testing.assert_array_equal(server["score"], [[0.25, 0, 0.25, 0.25, 0]])
    assert server["recorded"].tolist() == [True]
    for round_ in (3, 8):
        assert (assigned(METHOD, server, round_) == HELD).all()
    server = after(METHOD, server, {1: 1.2})  # (1.5 - 1.2) / 1.5 = 0.2, in place of 0.25
    np.testing.assert_allclose(server["score"].astype(np.float64), [[0.2, 0, 0.2, 0.2, 0]], rtol=1e-15)


def test_a_rise_keeps_the_scores_and_draws_anew() -> None:
    method = AFD(dropout_rate=0.4, unscored="mean")
    server = seen_rounds(method, 2.0, 1.5, 1.6)
    np.testing.assert_array_equal(server["score"], [[0.25, 0, 0.25, 0.25, 0]])
    assert server["recorded"].tolist() == [False]
    assert server["loss"].tolist() == [1.6]
    assert any((assigned(method, server, round_)[0] != HELD).any() for round_ in range(20))
    # the loss before, not the least one, is what the next is compared with: (1.6 - 1.52) / 1.6 = 0.05
    again = after(method, server, {4: 1.52}, ~HELD)
    np.testing.assert_allclose(again["score"].astype(np.float64), [[0.25, 0.05, 0.25, 0.25, 0.05]], rtol=1e-12)
    assert again["active"].tolist() == [(~HELD).tolist()]


def test_a_loss_that_stays_is_no_fall() -> None:
    assert seen_rounds(METHOD, 2.0, 2.0)["recorded"].tolist() == [False]


def test_rows_without_a_score_come_last() -> None:
    # as many rows scored as are held: only these; the smallest score there can be is 2^-53
    for score in (0.25, 2.0**-53):
        server = {**seen_rounds(METHOD, 2.0), "score": np.where(HELD, score, 0.0)[None]}
        assert all((assigned(METHOD, server, round_) == HELD).all() for round_ in range(200))
    # one scored row: always held; the four others fill up at random, each in half of 1000 rounds
    server = {**server, "score": np.array([[0, 0, 0, 0, 2.0**-53]])}
    held = np.sum([assigned(METHOD, server, round_)[0] for round_ in range(1000)], axis=0)
    assert held[4] == 1000
    assert (np.abs(held[:4] - 500) < 80).all()  # 5 standard deviations of 16: wrong once in 10^6 times


def test_drawn_in_proportion_to_the_scores() -> None:
    method = AFD(dropout_rate=0.8)  # 1 of 5 rows
    server = {**seen_rounds(method, 2.0), "score": np.array([[0.1, 0.2, 0.3, 0.4, 0]])}
    held = np.sum([assigned(method, server, round_, count=1)[0] for round_ in range(2000)], axis=0)
    assert held[4] == 0
    expected = np.array([200, 400, 600, 800])
    # chi-square with 3 degrees of freedom exceeds 16.3 once in 1000 times
    assert float(((held[:4] - expected) ** 2 / expected).sum()) < 16.3


def test_multi_keeps_a_map_for_each_client_seen() -> None:
    method = AFD(dropout_rate=0.4, model="multi")
    server = after(method, method.init_server(LAYOUT), {9: 2.0, 4: 1.0})
    server = after(method, server, {2: 5.0, 9: 1.0, 4: 3.0})  # 9 fell by half, 4 rose, 2 is new
    assert server["seen"].tolist() == [2, 4, 9]
    assert server["loss"].tolist() == [5.0, 3.0, 1.0]
    assert server["recorded"].tolist() == [False, False, True]
    np.testing.assert_array_equal(server["score"], [[0] * 5, [0] * 5, [0.5, 0, 0.5, 0.5, 0]])
    own = assigned(method, server, 3, (2, 4, 9, 11))
    assert (own[2] == HELD).all()
    drawn = np.stack([assigned(method, server, 3, (2, 4, 9, 11), seed) for seed in range(20)])
    assert (drawn[:, 0] != drawn[:, 1]).any()
    assert (drawn[:, 3] != drawn[0, 3]).any()


def test_multi_with_one_client_is_single() -> None:
    single, multi = METHOD, AFD(dropout_rate=0.4, model="multi")
    one, two = single.init_server(LAYOUT), multi.init_server(LAYOUT)
    for loss in (2.0, 1.5, 1.6, 1.1):
        one, two = after(single, one, {4: loss}), after(multi, two, {4: loss})
        for part in ("loss", "recorded", "active", "score"):
            np.testing.assert_array_equal(one[part], two[part])
    assert one["seen"].tolist() == [streams.SERVER]


@pytest.mark.parametrize("model", ["single", "multi"])
def test_draws_depend_on_the_key_alone(model: Literal["single", "multi"]) -> None:
    method = AFD(dropout_rate=0.4, model=model)
    fresh = method.init_server(LAYOUT)
    whole = assigned(method, fresh, 1, (1, 5, 8))
    np.testing.assert_array_equal(assigned(method, fresh, 1, (8, 1))[::-1], whole[[0, 2]])
    others = [assigned(method, fresh, round_, (1, 5, 8)) for round_ in range(2, 12)]
    assert any((other != whole).any() for other in others)


def test_states_are_not_changed_in_place() -> None:
    server = seen_rounds(METHOD, 2.0, 1.5)
    before = {name: part.copy() for name, part in server.items()}
    after(METHOD, server, {4: 1.0}, ~HELD)
    for name, part in before.items():
        np.testing.assert_array_equal(server[name], part)
