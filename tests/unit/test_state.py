"""Clients' states between rounds."""

from __future__ import annotations

import numpy as np

from fedbiad.arrays import ClientState
from fedbiad.state import MemoryStore, States


def fresh() -> ClientState:
    return {"score": np.zeros(2), "holds": np.zeros(2, dtype=np.int64)}


def block(values: dict[int, int]) -> States:
    """States whose every entry is the client's value."""
    ones = np.ones((len(values), 2), dtype=np.int64) * np.array(list(values.values()))[:, None]
    return States(tuple(values), {"score": ones.astype(np.float64), "holds": ones}, {})


def holds(store: MemoryStore, *ids: int) -> list[int]:
    lent = store.lend(ids)
    assert lent.ids == ids
    found: list[int] = lent.own["holds"][:, 0].tolist()
    return found


def filled() -> MemoryStore:
    store = MemoryStore(fresh)
    store.take(block({7: 70, 3: 30, 5: 50}))
    return store


def test_a_client_never_seen_gets_a_fresh_state() -> None:
    state = filled().lend([3, 4]).own
    assert state["score"].tolist() == [[30.0, 30.0], [0.0, 0.0]]
    assert state["holds"].tolist() == [[30, 30], [0, 0]]
    assert state["holds"].dtype == np.int64


def test_states_follow_ids_not_positions() -> None:
    assert holds(filled(), 5, 7, 3) == [50, 70, 30]


def test_only_clients_that_were_taken_change() -> None:
    store = filled()
    store.lend([3, 5, 9])  # 5 and 9 failed
    store.take(block({3: 31}))
    assert holds(store, 3, 5, 7, 9) == [31, 50, 70, 0]
    assert store.dump()["clients"].tolist() == [3, 5, 7]


def test_what_was_taken_or_lent_may_be_changed_afterwards() -> None:
    store = MemoryStore(fresh)
    state = block({0: 1})
    store.take(state)
    state.own["score"][0] = 99.0
    lent = store.lend([0])
    assert lent.own["score"].tolist() == [[1.0, 1.0]]
    lent.own["score"][0] = 99.0
    assert store.lend([0]).own["score"].tolist() == [[1.0, 1.0]]


def test_dump_and_load() -> None:
    store = filled()
    dumped = store.dump()
    assert dumped["clients"].tolist() == [3, 5, 7]
    assert dumped["score"][:, 0].tolist() == [30.0, 50.0, 70.0]
    other = MemoryStore(fresh)
    other.take(block({1: 10}))
    other.load(dumped)
    assert holds(other, 1, 3, 5, 7) == [0, 30, 50, 70]
    other.take(block({3: 33}))
    assert dumped["score"][0, 0] == 30.0


def test_methods_without_state_dump_nothing() -> None:
    store = MemoryStore(dict)
    assert store.lend([0, 1]) == States((0, 1), {}, {})
    store.take(States((0, 1), {}, {}))
    assert store.dump() == {}
    store.load({})
    assert store.lend([0]) == States((0,), {}, {})
    assert MemoryStore(fresh).dump() == {}


def test_what_compressors_remember_is_lent_by_client_and_not_copied() -> None:
    store, residual = MemoryStore(fresh), np.array([0.5, -0.5], dtype=np.float32)
    store.take(States((8, 2), block({8: 80, 2: 20}).own, {2: {"residual": residual}, 8: {"residual": 2 * residual}}))
    lent = store.lend([2, 5, 8])
    assert set(lent.own) == {"score", "holds"}
    assert set(lent.remembered) == {2, 8}  # 5 was never seen
    assert lent.remembered[2]["residual"] is residual
    assert lent.remembered[8]["residual"].tolist() == [1.0, -1.0]
    dumped, other = store.dump(), MemoryStore(fresh)
    assert dumped["compressor.residual"].tolist() == [[0.5, -0.5], [1.0, -1.0]]
    other.load(dumped)
    assert other.lend([8]).remembered[8]["residual"].tolist() == [1.0, -1.0]
    assert holds(other, 8, 2) == [80, 20]
