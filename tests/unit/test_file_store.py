"""States in files: what memory would hold, whole whatever happens, and memory for an index alone."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedbiad import state_files
from fedbiad.arrays import ClientState
from fedbiad.errors import RunError
from fedbiad.state import MemoryStore, States, Store
from fedbiad.state_files import SHARD, FileStore, Shards

HEAD = 64


def fresh() -> ClientState:
    return {"score": np.zeros(3), "holds": np.zeros((2, 2), dtype=np.int64), "met": np.zeros((), dtype=np.bool_)}


def block(values: dict[int, int], compressed: bool = True) -> States:
    """States whose every entry is the client's value."""
    numbers = np.array(list(values.values()))
    own = {
        "score": np.repeat(numbers[:, None], 3, 1).astype(np.float64),
        "holds": np.broadcast_to(numbers[:, None, None], (len(values), 2, 2)),
        "met": numbers > 0,
    }
    remembered: dict[int, ClientState] = {
        client: {"residual": np.full(5, value, dtype=np.float32)} for client, value in values.items()
    }
    return States(tuple(values), own, remembered if compressed else {})


def assert_same(one: dict[str, npt.NDArray[Any]], two: dict[str, npt.NDArray[Any]]) -> None:
    assert sorted(one) == sorted(two)
    for name, part in one.items():
        assert (part.dtype, part.shape, part.tobytes()) == (two[name].dtype, two[name].shape, two[name].tobytes())


def assert_same_states(one: States, two: States) -> None:
    assert one.ids == two.ids
    assert_same(dict(one.own), dict(two.own))
    assert list(one.remembered) == list(two.remembered)
    for client, parts in one.remembered.items():
        assert_same(dict(parts), dict(two.remembered[client]))


def test_the_same_as_in_memory(tmp_path: Path) -> None:
    """A hundred random blocks, with dumps, saved and taken over, in between."""
    stream = np.random.default_rng(0)
    memory, files = MemoryStore(fresh), FileStore(fresh, tmp_path / "states")
    stores: tuple[Store, Store] = memory, files
    for turn in range(100):
        ids = stream.choice(40, 5, replace=False) * (SHARD // 8)  # five files
        asked = tuple(int(k) for k in ids)
        assert_same_states(*(store.lend(asked) for store in stores))
        for store in stores:
            store.take(block({client: turn + client for client in asked}))
        assert len(memory) == len(files)
        assert_same(*(store.dump(changed=True) for store in stores))
        if turn % 7 == 0:
            assert_same(*(store.dump() for store in stores))
            for store in stores:
                store.clean()
        if turn % 50 == 49:
            kept = memory.dump()
            files.take(block({SHARD * 9: 1}))
            for store in stores:
                store.load(kept)
            assert files.dump(changed=True) == {}
    assert len(files) == 40
    assert sorted(path.name for path in (tmp_path / "states").iterdir()) == [f"{n:06d}.states" for n in range(5)]


def test_states_without_anything(tmp_path: Path) -> None:
    files = FileStore(dict, tmp_path / "states")
    files.take(States((3, 4), {}, {}))
    assert (len(files), files.dump(), files.lend([3, 9]).own) == (2, {}, {})
    files.load({})
    assert len(files) == 0


def test_the_order_of_the_arrays_does_not_matter(tmp_path: Path) -> None:
    """A checkpoint gives them back in another order."""
    files = FileStore(fresh, tmp_path / "states")
    files.take(block({0: 1}))
    kept = files.dump()
    files.load(dict(reversed(kept.items())))
    files.take(block({1: 2}))
    assert files.dump()["score"].tolist() == [[1.0] * 3, [2.0] * 3]


def test_what_was_lent_may_be_changed(tmp_path: Path) -> None:
    files = FileStore(fresh, tmp_path / "states")
    files.take(block({0: 1}))
    lent = files.lend([0])
    lent.own["score"][0] = 99.0
    assert files.lend([0]).own["score"].tolist() == [[1.0, 1.0, 1.0]]


def test_a_file_has_one_place_more_than_clients(tmp_path: Path) -> None:
    files = FileStore(fresh, tmp_path)
    for turn in range(10):
        files.take(block(dict.fromkeys(range(7), turn)))
    (path,) = tmp_path.iterdir()
    with path.open("rb") as file:
        form = len(file.readline())
    record = HEAD + 4 * 64  # four arrays, each up to 64 bytes
    assert form % 64 == 0
    assert path.stat().st_size == form + 8 * record


class TestAmountOfWork:
    def test_memory_does_not_grow_with_the_states(self, tmp_path: Path) -> None:
        tracemalloc.start()
        try:
            files = FileStore(lambda: {"score": np.zeros(10_000)}, tmp_path / "states")
            for client in range(0, 4000, 10):
                files.take(States((client,), {"score": np.ones((1, 10_000))}, {}))
            files.clean()
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(files) == 400
        assert held < 100_000  # 32 MB are in the files
        assert peak < 500_000

    def test_a_million_clients_seen_cost_four_bytes_each(self, tmp_path: Path) -> None:
        """The index of a file is all that a client seen adds."""
        tracemalloc.start()
        try:
            shards = Shards(tmp_path)
            for number in range(100):
                shards[number * SHARD] = {}
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert held < 100 * (4 * SHARD + 2_000) + 20_000

    def test_looking_up_reads_one_state(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files, read = FileStore(fresh, tmp_path), list[int]()
        files.take(block(dict.fromkeys(range(50), 1)))
        real = state_files._record

        def counting(file: Any, form: Any, place: int) -> bytearray:
            read.append(place)
            return real(file, form, place)

        monkeypatch.setattr(state_files, "_record", counting)
        files.lend([10, 20])
        assert len(read) == 2
        files.dump()
        assert len(read) == 2 + 1 + 50  # the first one also tells the shapes


class TestKilled:
    def reopened(self, path: Path) -> dict[int, float]:
        """Every client's value; all entries of its state must agree."""
        shards, found = Shards(path), {}
        for client in shards:
            values = {float(x) for name, part in shards[client].items() if name != "met" for x in part.ravel()}
            assert len(values) == 1
            found[client] = values.pop()
        assert len(shards) == len(found)
        return found

    @pytest.mark.parametrize("client", [2, 5])
    def test_at_any_byte_of_a_write(self, tmp_path: Path, client: int) -> None:
        """The old state of a client (or none) stays until the last byte that differs is written."""
        files = FileStore(fresh, tmp_path)
        files.take(block({0: 10, 1: 11, 2: 12}))
        files.take(block({0: 20, 2: 22}))
        before = {0: 20.0, 1: 11.0, 2: 22.0}
        (path,) = tmp_path.iterdir()
        old = path.read_bytes()
        files.take(block({client: 99}))
        new = path.read_bytes()
        changed = [i for i in range(len(new)) if i >= len(old) or old[i] != new[i]]
        start = changed[0] // 64 * 64
        for cut in (*range(start, start + HEAD), *range(start + HEAD, len(new), 7), changed[-1], changed[-1] + 1):
            path.write_bytes(new[:cut] + old[cut:])
            done = cut > changed[-1]
            assert self.reopened(tmp_path) == (before | {client: 99.0} if done else before)

    def test_writing_goes_on_after_it(self, tmp_path: Path) -> None:
        files = FileStore(fresh, tmp_path)
        files.take(block({0: 10, 1: 11}))
        files.take(block({0: 20}))
        (path,) = tmp_path.iterdir()
        path.write_bytes(path.read_bytes() + b"torn")
        for turn in range(30, 40):
            again = FileStore(fresh, tmp_path)
            again.take(block({turn % 4: turn}))
            again.take(block({1: turn + 100}))
        assert self.reopened(tmp_path) == {0: 36.0, 1: 139.0, 2: 38.0, 3: 39.0}

    def test_before_the_first_state(self, tmp_path: Path) -> None:
        (tmp_path / "000000.states").write_bytes(b'[["score", "<f8", [3')
        files = FileStore(fresh, tmp_path)
        assert len(files) == 0
        files.take(block({0: 10}))
        assert self.reopened(tmp_path) == {0: 10.0}

    def test_files_of_another_run_are_forgotten_on_load(self, tmp_path: Path) -> None:
        FileStore(fresh, tmp_path).take(block({0: 10, 5000: 1}))
        files = FileStore(fresh, tmp_path)
        files.load({})
        assert len(files) == 0
        assert list(tmp_path.iterdir()) == []


class TestTrouble:
    def test_damaged_states_are_not_lent(self, tmp_path: Path) -> None:
        files = FileStore(fresh, tmp_path)
        files.take(block({0: 10, 1: 11}))
        (path,) = tmp_path.iterdir()
        content = bytearray(path.read_bytes())
        content[-300] ^= 1
        path.write_bytes(content)
        assert files.lend([0]).own["score"][0, 0] == 10.0
        with pytest.raises(RunError, match=r"000000.states is damaged \(client 1\); go on from the last checkpoint"):
            files.lend([1])

    def test_a_full_disk_leaves_the_old_states(self, tmp_path: Path) -> None:
        files = FileStore(fresh, tmp_path)
        files.take(block({0: 10, 1: 11}))
        (path,) = tmp_path.iterdir()
        with files_up_to(path.stat().st_size + 100), pytest.raises(RunError, match=r"cannot be written .* make room"):
            files.take(block({1: 99}))
        assert files.lend([0, 1]).own["score"][:, 0].tolist() == [10.0, 11.0]
        files.take(block({1: 21}))
        assert files.lend([0, 1]).own["score"][:, 0].tolist() == [10.0, 21.0]

    def test_a_state_of_another_form_is_refused(self, tmp_path: Path) -> None:
        files = FileStore(fresh, tmp_path)
        files.take(block({0: 10}))
        with pytest.raises(ValueError, match="client 1: a state of another form"):
            files.take(block({1: 10}, compressed=False))

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "states").write_text("a file")
        with pytest.raises(RunError, match="cannot be written"):
            FileStore(fresh, tmp_path / "states").take(block({0: 10}))


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file can grow beyond this size meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    named, temporary = FileStore(fresh, tmp_path / "states"), FileStore(fresh)
    place = temporary._directory
    for files in named, temporary:
        files.take(block({0: 10}))
        files.close()
    assert not (tmp_path / "states").exists()
    assert not place.exists()
    dropped = FileStore(fresh)
    dropped.take(block({0: 10}))
    place = dropped._directory
    del dropped
    assert not place.exists()
