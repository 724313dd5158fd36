"""Checkpoints: bit for bit, two kept, damaged ones passed over, and no pickle."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbiad.arrays import ClientState
from fedbiad.checkpoint import Checkpoint, Checkpoints
from fedbiad.methods import METHODS
from fedbiad.models import MLP
from fedbiad.state import MemoryStore, States


def example(round_: int = 1) -> Checkpoint:
    """Values that a careless format would change, in arrays that are not contiguous."""
    generator = np.random.default_rng(round_)
    odd = torch.tensor([0.1, -0.0, math.inf, -math.inf, math.nan, 1e-45, 3.4e38], dtype=torch.float32)
    u = {
        "layer1.weight": torch.from_numpy(generator.normal(size=(4, 3)).astype(np.float32)).T,
        "layer1.bias": odd,
        "double": odd.double() * math.pi,
    }
    states = {
        "clients": np.array([3, 8, 2**40], dtype=np.int64),
        "score": generator.normal(size=(5, 3)).T,
        "holds": np.arange(15, dtype=np.int64).reshape(3, 5)[:, ::-1],
        "seen": np.array([True, False, True]),
    }
    server = {"score": generator.normal(size=(2, 3)).T, "loss": np.array(0.5), "seen": np.array([True, False])}
    return Checkpoint(round_, u, server, states)


def save(directory: Path, checkpoint: Checkpoint) -> Path:
    """A whole checkpoint: what is saved first in a directory, or by one who does not know what is there."""
    store = MemoryStore(dict)
    store.load(checkpoint.states)
    if checkpoint.states:
        ids = checkpoint.states["clients"].tolist()
        store.take(store.lend(ids))
    return Checkpoints(directory).save(checkpoint.round, checkpoint.u, checkpoint.server, store)


def load(directory: Path) -> tuple[Checkpoint | None, list[Path]]:
    return Checkpoints(directory).load()


def bits(checkpoint: Checkpoint | None) -> object:
    """Everything in a checkpoint, comparable also where it is not a number."""
    assert checkpoint is not None
    u = {k: (v.dtype, tuple(v.shape), v.contiguous().numpy().tobytes()) for k, v in checkpoint.u.items()}
    states = {k: (v.dtype, v.shape, np.ascontiguousarray(v).tobytes()) for k, v in checkpoint.states.items()}
    server = {k: (v.dtype, v.shape, v.tobytes()) for k, v in checkpoint.server.items()}
    return checkpoint.round, u, server, states


def flip(path: Path, position: int = -5) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def flip_header(path: Path) -> None:
    flip(path, 20)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


each_damage = pytest.mark.parametrize("damage", [flip, flip_header, truncate, lengthen, empty])


class TestSaveAndLoad:
    def test_bit_for_bit(self, tmp_path: Path) -> None:
        save(tmp_path, example(7))
        found, damaged = load(tmp_path)
        assert bits(found) == bits(example(7))
        assert damaged == []

    def test_without_states(self, tmp_path: Path) -> None:
        save(tmp_path, Checkpoint(1, example().u, {}, {}))
        found, _ = load(tmp_path)
        assert found is not None
        assert found.states == {}

    def test_states_of_clients_come_back(self, tmp_path: Path) -> None:
        layout = MLP(6, (5,), 3).layout("units")
        fresh = METHODS["fedbiad"].init_client(layout)
        store, other = MemoryStore(lambda: fresh), MemoryStore(lambda: fresh)
        state = {"score": np.random.default_rng(0).normal(size=(2, 5)), "holds": np.arange(10).reshape(2, 5)}
        store.take(States((4, 2), state, {}))
        save(tmp_path, Checkpoint(1, {}, {}, store.dump()))
        found, _ = load(tmp_path)
        assert found is not None
        other.load(found.states)
        again = other.lend([2, 3, 4]).own
        for name, value in store.lend([2, 3, 4]).own.items():
            assert again[name].dtype == value.dtype
            np.testing.assert_array_equal(again[name], value)

    def test_the_same_state_has_the_same_name(self, tmp_path: Path) -> None:
        assert save(tmp_path, example(3)) == save(tmp_path, example(3))
        assert len(list(tmp_path.iterdir())) == 1

    def test_an_empty_directory_has_none(self, tmp_path: Path) -> None:
        assert load(tmp_path) == (None, [])

    def test_two_are_kept_and_the_newest_counts(self, tmp_path: Path) -> None:
        saved = [save(tmp_path, example(r)) for r in (2, 9, 10, 99, 100)]
        assert sorted(tmp_path.iterdir()) == sorted(saved[-2:])
        assert bits(load(tmp_path)[0]) == bits(example(100))

    def test_rounds_are_ordered_as_numbers(self, tmp_path: Path) -> None:
        for r in (999_998, 999_999, 1_000_000):
            save(tmp_path, example(r))
        assert bits(load(tmp_path)[0]) == bits(example(1_000_000))


def fresh() -> ClientState:
    return {"residual": np.zeros(4, dtype=np.float32), "seen": np.zeros((), dtype=np.int64)}


class Run:
    """A run of 20 clients, two of which change every round."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.checkpoints, self.store = directory, Checkpoints(directory), MemoryStore(fresh)
        self.expected: dict[int, object] = {}

    def go(self, first: int, last: int) -> list[Path]:
        paths = []
        for r in range(first, last + 1):
            ids = [int(k) for k in np.random.default_rng(r).choice(20, 2, replace=False)]
            state = {
                "residual": np.random.default_rng(100 + r).normal(size=(2, 4)).astype(np.float32),
                "seen": np.array([r, r]),
            }
            self.store.take(States(tuple(ids), state, {}))
            u = {"w": torch.full((3,), float(r))}
            paths.append(self.checkpoints.save(r, u, {"loss": np.array(1.0 / r)}, self.store))
            self.expected[r] = bits(Checkpoint(r, u, {"loss": np.array(1.0 / r)}, self.store.dump()))
        return paths


class TestChains:
    """Clients' states are saved as they change, and put together again."""

    def test_every_round_comes_back_whole(self, tmp_path: Path) -> None:
        run = Run(tmp_path)
        for r in range(1, 41):
            run.go(r, r)
            assert bits(load(tmp_path)[0]) == run.expected[r]

    def test_files_hold_what_changed_and_the_old_ones_go(self, tmp_path: Path) -> None:
        paths = Run(tmp_path).go(1, 40)
        wholes = [path.name.endswith("whole.safetensors") for path in paths]
        assert wholes[0]
        assert 3 <= sum(wholes) <= 20
        kept = [path for path in paths if path.exists()]
        assert kept == paths[-len(kept) :]
        assert len(kept) <= 2 * max(np.diff(np.flatnonzero([*wholes, True])))

    def test_a_resumed_run_writes_the_same_files(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        names = [path.name for path in Run(tmp_path / "one").go(1, 30)]
        before = Run(tmp_path / "two")
        before.go(1, 17)
        after = Run(tmp_path / "two")
        last, _ = after.checkpoints.load()
        assert last is not None
        after.store.load(last.states)
        assert [path.name for path in after.go(18, 30)] == names[17:]

    @pytest.mark.parametrize("back", range(1, 8))
    def test_damage_falls_back_before_it(self, tmp_path: Path, back: int) -> None:
        run = Run(tmp_path)
        paths = run.go(1, 23)
        whole = [path.name.endswith("whole.safetensors") for path in paths]
        assert any(whole[-7:])  # the seven newest are of two chains
        if any(whole[len(paths) - back + 1 :]):  # the newest does not need it
            if paths[-back].exists():
                flip(paths[-back])
            assert bits(load(tmp_path)[0]) == run.expected[23]
        else:
            flip(paths[-back])
            found, damaged = load(tmp_path)
            assert damaged == [paths[-back]]
            assert bits(found) == run.expected[23 - back]

    def test_going_on_after_damage(self, tmp_path: Path) -> None:
        run = Run(tmp_path)
        flip(run.go(1, 23)[-1])
        again = Run(tmp_path)
        last, _ = again.checkpoints.load()
        assert last is not None
        assert last.round == 22
        again.store.load(last.states)
        again.go(23, 25)
        run.go(24, 25)  # in memory it never was damaged
        assert bits(load(tmp_path)[0]) == run.expected[25]


class TestDamage:
    @each_damage
    def test_falls_back_to_the_one_before(self, tmp_path: Path, damage: Callable[[Path], None]) -> None:
        save(tmp_path, example(4))
        newest = save(tmp_path, example(5))
        damage(newest)
        found, damaged = load(tmp_path)
        assert bits(found) == bits(example(4))
        assert damaged == [newest]

    @each_damage
    def test_all_damaged(self, tmp_path: Path, damage: Callable[[Path], None]) -> None:
        older, newer = save(tmp_path, example(4)), save(tmp_path, example(5))
        damage(older)
        damage(newer)
        assert load(tmp_path) == (None, [newer, older])

    def test_a_content_under_another_s_name(self, tmp_path: Path) -> None:
        older, newer = save(tmp_path, example(4)), save(tmp_path, example(5))
        newer.write_bytes(older.read_bytes())
        found, damaged = load(tmp_path)
        assert bits(found) == bits(example(4))
        assert damaged == [newer]

    def test_damage_to_the_older_one_does_not_matter(self, tmp_path: Path) -> None:
        older = save(tmp_path, example(4))
        save(tmp_path, example(5))
        empty(older)
        found, damaged = load(tmp_path)
        assert (bits(found), damaged) == (bits(example(5)), [])

    def test_the_same_round_saved_again_mends_it(self, tmp_path: Path) -> None:
        flip(save(tmp_path, example(5)))
        save(tmp_path, example(5))
        assert load(tmp_path)[1] == []


class TestFormat:
    def test_it_is_safetensors_and_nothing_else(self, tmp_path: Path) -> None:
        content = save(tmp_path, example()).read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        parts = {"u": example().u, "server": example().server, "state": example().states}
        assert set(header) == {f"{kind}/{name}" for kind, part in parts.items() for name in part}
        assert max(entry["data_offsets"][1] for entry in header.values()) == len(content) - 8 - length

    def test_it_is_no_pickle_and_read_without(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = save(tmp_path, example())
        with pytest.raises((pickle.UnpicklingError, EOFError)):
            pickle.loads(path.read_bytes())

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("a pickle was read")

        for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
            monkeypatch.setattr(module, name, refuse)
        assert bits(load(tmp_path)[0]) == bits(example())

    def test_foreign_files_are_ignored_and_left(self, tmp_path: Path) -> None:
        foreign = [tmp_path / name for name in ("notes.txt", "model.safetensors", "my-model.safetensors", "000009.pt")]
        for path in foreign:
            path.write_bytes(b"mine")
        assert load(tmp_path) == (None, [])
        for r in (1, 2, 3):
            save(tmp_path, example(r))
        assert bits(load(tmp_path)[0]) == bits(example(3))
        assert all(path.read_bytes() == b"mine" for path in foreign)
