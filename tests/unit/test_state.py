"""Clients' states between rounds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import ClientState
from fedbiad.state import MemoryStore


def fresh() -> ClientState:
    return {"score": np.zeros(2), "holds": np.zeros(2, dtype=np.int64)}


def block(*values: int) -> dict[str, npt.NDArray[np.generic]]:
    """A state whose every entry is the client's value."""
    ones = np.ones((len(values), 2), dtype=np.int64) * np.array(values)[:, None]
    return {"score": ones.astype(np.float64), "holds": ones}


def filled() -> MemoryStore:
    store = MemoryStore(fresh)
    store.put([7, 3, 5], block(70, 30, 50), np.array([True, True, True]))
    return store


def test_a_client_never_seen_gets_a_fresh_state() -> None:
    state = filled().get([3, 4])
    assert state["score"].tolist() == [[30.0, 30.0], [0.0, 0.0]]
    assert state["holds"].tolist() == [[30, 30], [0, 0]]
    assert state["holds"].dtype == np.int64


def test_states_follow_ids_not_positions() -> None:
    assert filled().get([5, 7, 3])["holds"][:, 0].tolist() == [50, 70, 30]


def test_only_clients_to_keep_are_remembered() -> None:
    store = filled()
    store.put([3, 5, 9], block(31, 51, 91), np.array([True, False, False]))
    assert store.get([3, 5, 7, 9])["holds"][:, 0].tolist() == [31, 50, 70, 0]
    assert store.dump()["clients"].tolist() == [3, 5, 7]


def test_what_was_put_or_got_may_be_changed_afterwards() -> None:
    store = MemoryStore(fresh)
    state = block(1)
    store.put([0], state, np.array([True]))
    state["score"][0] = 99.0
    got = store.get([0])
    assert got["score"].tolist() == [[1.0, 1.0]]
    got["score"][0] = 99.0
    assert store.get([0])["score"].tolist() == [[1.0, 1.0]]


def test_dump_and_load() -> None:
    store = filled()
    dumped = store.dump()
    assert dumped["clients"].tolist() == [3, 5, 7]
    assert dumped["score"][:, 0].tolist() == [30.0, 50.0, 70.0]
    other = MemoryStore(fresh)
    other.put([1], block(10), np.array([True]))
    other.load(dumped)
    assert other.get([1, 3, 5, 7])["holds"][:, 0].tolist() == [0, 30, 50, 70]
    other.put([3], block(33), np.array([True]))
    assert dumped["score"][0, 0] == 30.0


def test_methods_without_state_dump_nothing() -> None:
    store = MemoryStore(dict)
    assert store.get([0, 1]) == {}
    store.put([0, 1], {}, np.array([True, True]))
    assert store.dump() == {}
    store.load({})
    assert store.get([0]) == {}
    assert MemoryStore(fresh).dump() == {}
