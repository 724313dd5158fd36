"""Clients in memory-mapped files: the same numbers as in memory, and memory for those alone that are read."""

from __future__ import annotations

import json
import pickle
import re
import tomllib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedbiad.cohort import Cohort
from fedbiad.data import FederatedData, MappedData, Scaling, federate, load, write_mapped, write_mapped_pool
from fedbiad.errors import DataError
from fedbiad.experiment import build, load_federated
from fedbiad.plan import from_dict
from fedbiad.training.batches import Batch
from running import fedbiad, small_plan

Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def made(size: int, first: int, dtype: str = "uint8") -> Arrays:
    """Samples of two entries; the first entry counts on from `first`, labels go round 0, 1, 2."""
    numbers = np.arange(first, first + size)
    return np.stack([numbers, 10 * numbers], axis=1).astype(dtype), numbers % 3


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Three clients with 2, 1 and 3 samples; stored bytes b stand for (b / 10 - 1) / 2."""
    clients = [made(2, 0), made(1, 2), made(3, 3)]
    write_mapped(tmp_path / "own", clients, made(4, 10), 3, scaling=Scaling(10.0, 1.0, 2.0))
    return tmp_path / "own"


def rounds_data(data: MappedData, *ids: int) -> Batch:
    return data.local(Cohort(0, 1, ids), iterations=2, batch=2).whole()


def test_numbers_worked_out_by_hand(small: Path) -> None:
    data = MappedData(small)
    assert (data.num_clients, data.sizes.tolist(), data.classes, data.eval_size) == (3, [2, 1, 3], 3, 4)
    assert (data.sample_shape, data.unused, data.eval_split) == ((2,), 0, "test")
    whole = rounds_data(data, 2, 1)
    # bytes 3, 30 are (0.3 - 1) / 2, (3 - 1) / 2; the second client has one sample only, repeated as padding
    assert whole.inputs[0].numpy() == pytest.approx(np.array([[-0.35, 1.0], [-0.3, 1.5], [-0.25, 2.0]]))
    assert whole.inputs[1].numpy() == pytest.approx(np.array([[-0.4, 0.5]] * 3))
    assert whole.targets.tolist() == [[0, 1, 2], [2, 2, 2]]
    assert whole.weight is not None
    assert whole.weight.tolist() == [[1, 1, 1], [1, 0, 0]]
    (judged,) = data.evaluation()
    assert judged.inputs[0, :, 0].numpy() == pytest.approx(np.array([0.0, 0.05, 0.1, 0.15]))
    assert judged.targets.tolist() == [[1, 2, 0, 1]]


def test_floats_are_stored_as_float32(tmp_path: Path) -> None:
    inputs, targets = made(3, 1, "float64")
    write_mapped(tmp_path / "own", [(torch.from_numpy(inputs), torch.from_numpy(targets))], made(1, 7, "float32"), 3)
    found = rounds_data(MappedData(tmp_path / "own"), 0)
    assert found.inputs.dtype == torch.float32
    assert found.inputs[0].tolist() == inputs.tolist()


def test_the_same_as_in_memory(tmp_path: Path) -> None:
    held = federate(load("digits"), partition="dirichlet", clients=7, seed=1)
    spans = [held.span(k) for k in range(7)]
    judged = held.eval_inputs, held.eval_targets
    write_mapped(tmp_path / "own", ((held.inputs[s], held.targets[s]) for s in spans), judged, held.classes)
    mapped = MappedData(tmp_path / "own")
    assert (mapped.num_clients, mapped.sizes.tolist(), mapped.eval_size) == (7, held.sizes.tolist(), held.eval_size)
    assert mapped.sample_shape == held.sample_shape == (1, 8, 8)
    cohort = Cohort(3, 2, (1, 4, 6))
    one, two = held.local(cohort, 5, 4), mapped.local(cohort, 5, 4)
    assert two.sizes == one.sizes
    assert (two.present(10) == one.present(10)).all()
    for step in range(5):
        assert torch.equal(two.batch(step).inputs, one.batch(step).inputs)
        assert torch.equal(two.batch(step).targets, one.batch(step).targets)
    for k in range(3):
        assert torch.equal(two.gram(k), one.gram(k))
    for a, b in zip(mapped.evaluation(), held.evaluation(), strict=True):
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.targets, b.targets)


def test_bytes_are_standardised_as_those_of_a_data_set(tmp_path: Path) -> None:
    """Entry by entry what `load` makes of pixels, so that MNIST from a directory is MNIST."""
    table = Scaling(16.0, 0.3, 0.4).table()
    assert table[:17].tolist() == ((np.arange(17) / 16 - 0.3) / 0.4).astype(np.float32).tolist()


def test_clients_may_share_samples(tmp_path: Path) -> None:
    starts, sizes = np.array([1, 2, 1]), np.array([3, 2, 1])
    write_mapped_pool(tmp_path / "own", made(6, 0), starts, sizes, made(1, 0), 3, scaling=Scaling(1.0))
    data = MappedData(tmp_path / "own")
    assert data.unused == 3  # samples 0, 4 and 5
    found = rounds_data(data, 0, 1, 2)
    assert [own[: sizes[k], 0].tolist() for k, own in enumerate(found.inputs)] == [[1, 2, 3], [2, 3], [1]]


def test_another_process_gets_the_path_alone(small: Path) -> None:
    data = MappedData(small)
    rounds_data(data, 0, 1, 2)
    sent = pickle.dumps(data)
    assert len(sent) < 500
    assert torch.equal(rounds_data(pickle.loads(sent), 2).inputs, rounds_data(data, 2).inputs)


def test_validation_samples(tmp_path: Path) -> None:
    write_mapped(tmp_path / "own", [made(2, 0)], made(4, 0), 3, validation=made(5, 4))
    assert MappedData(tmp_path / "own", "validation").eval_size == 5
    write_mapped(tmp_path / "none", [made(2, 0)], made(4, 0), 3)
    with pytest.raises(DataError, match="has no validation samples; judge on its test samples"):
        MappedData(tmp_path / "none", "validation")


REGISTERED = 1_000_000


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A million clients of 6 of 1,000 samples each."""
    path = tmp_path_factory.mktemp("million") / "own"
    starts = np.arange(REGISTERED, dtype=np.int64) * 7 % 995
    pool = np.zeros((1000, 28, 28), dtype=np.uint8), np.arange(1000) % 10
    write_mapped_pool(path, pool, starts, np.full(REGISTERED, 6), (pool[0][:2], pool[1][:2]), 10)
    return path


class TestAmountOfWork:
    def test_memory_does_not_know_how_many_clients_there_are(self, million: Path) -> None:
        tracemalloc.start()
        try:
            data = MappedData(million)
            data.local(Cohort(0, 1, (0, 999_999)), 5, 2)
            tracemalloc.reset_peak()
            block = data.local(Cohort(0, 2, tuple(range(0, REGISTERED, 50_000))), 5, 2)
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        pool = 20 * 6 * 28 * 28  # samples of the block in bytes, read as they are stored and as float32
        assert len(block.spans) == 20
        assert held < 4 * pool + 100_000
        assert peak < 5 * pool + 200_000

    def test_only_the_clients_of_the_block_are_read(self, million: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        read = list[int]()

        class Counting(np.ndarray[Any, Any]):
            def __getitem__(self, key: Any) -> Any:
                found = super().__getitem__(key)
                read.append(len(found))
                return np.asarray(found)

        data = MappedData(million)
        whole = data._map
        monkeypatch.setattr(data, "_map", lambda name: whole(name).view(Counting))
        data.local(Cohort(0, 1, (5, 7, 900_000)), 5, 2)
        assert sorted(read) == [3] + [6] * 6  # their starts, then inputs and targets of each


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def edited(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class TestDamaged:
    def test_no_directory(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"holds no clients \(no about.json\).*write_mapped.*data.path"):
            MappedData(tmp_path / "none")

    @pytest.mark.parametrize("name", ["inputs", "targets", "starts", "sizes", "test-inputs", "test-targets"])
    def test_a_file_is_missing_cut_or_something_else(self, small: Path, name: str) -> None:
        path = small / f"{name}.npy"
        cut(path)
        with pytest.raises(DataError, match=rf"{name}.npy is damaged .*; write the directory again"):
            MappedData(small)
        np.save(path, np.zeros(99, dtype=np.float64))
        with pytest.raises(DataError, match=rf"{name}.npy is damaged \(float64 \[99\] instead of"):
            MappedData(small)
        np.save(path, np.array([{}]), allow_pickle=True)
        with pytest.raises(DataError, match=rf"{name}.npy is damaged"):
            MappedData(small)
        path.unlink()
        with pytest.raises(DataError, match=rf"{name}.npy is missing; write the directory again"):
            MappedData(small)

    def test_it_says_what_is_wrong_with_about(self, small: Path) -> None:
        edited(small / "about.json", clients=0)
        with pytest.raises(DataError, match=r"about.json is damaged \(clients: Input should be greater"):
            MappedData(small)
        edited(small / "about.json", clients=3, colour="red")
        with pytest.raises(DataError, match=r"about.json is damaged \(colour"):
            MappedData(small)
        (small / "about.json").write_text("{")
        with pytest.raises(DataError, match=r"about.json is damaged \(content: Invalid JSON"):
            MappedData(small)

    @pytest.mark.parametrize(
        ("name", "values"), [("sizes", [2, 0, 3]), ("starts", [0, -1, 3]), ("starts", [0, 6, 3]), ("sizes", [2, 5, 3])]
    )
    def test_samples_that_are_not_there(self, small: Path, name: str, values: list[int]) -> None:
        np.save(small / f"{name}.npy", np.array(values))
        with pytest.raises(DataError, match=r"client 1 has the samples from .* at least one of the 6 there are"):
            MappedData(small)

    def test_labels_that_are_none(self, small: Path) -> None:
        np.save(small / "targets.npy", np.array([0, 1, 2, 3, 1, 2]))
        data = MappedData(small)
        rounds_data(data, 0, 1)
        with pytest.raises(DataError, match=r"targets.npy is damaged \(a label is not in 0 to 2\)"):
            rounds_data(data, 2)

    def test_what_disappears_during_a_run(self, small: Path) -> None:
        data = MappedData(small)
        (small / "inputs.npy").unlink()
        with pytest.raises(DataError, match=r"inputs.npy is missing"):
            rounds_data(data, 0)


class TestWriting:
    @pytest.mark.parametrize(
        ("clients", "problem"),
        [
            ([made(1, 0), made(0, 0)], "client 1 has 0 inputs and 0 labels; it needs .* at least one"),
            ([(made(2, 0)[0], made(1, 0)[1])], "client 0 has 2 inputs and 1 labels"),
            ([made(1, 0), made(1, 0, "float32")], r"client 1 has inputs float32 \[2\], those before it uint8 \[2\]"),
            ([made(1, 0), (np.zeros((1, 3), np.uint8), np.zeros(1, int))], r"client 1 has inputs uint8 \[3\]"),
            ([made(1, 0, "int32")], "client 0 has inputs of type int32; they must be uint8 or floats"),
            ([(made(1, 0)[0], np.array([3]))], "client 0 has labels that are not whole numbers in 0 to 2"),
            ([(made(1, 0)[0], np.array([0.5]))], "client 0 has labels that are not whole"),
            ([], "there are no clients to write"),
        ],
    )
    def test_what_cannot_be_trained_on_is_refused(self, tmp_path: Path, clients: list[Arrays], problem: str) -> None:
        with pytest.raises(DataError, match=problem):
            write_mapped(tmp_path / "own", clients, made(1, 0), 3)
        assert list(tmp_path.iterdir()) == []

    def test_parts_to_judge_on_and_scaling_are_checked(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="the test part has 0 inputs"):
            write_mapped(tmp_path / "own", [made(1, 0)], made(0, 0), 3)
        with pytest.raises(DataError, match="scaling is for inputs of type uint8; these are float32"):
            write_mapped(tmp_path / "own", [made(1, 0, "float32")], made(1, 0, "float32"), 3, scaling=Scaling())
        with pytest.raises(DataError, match="client 1 has the samples from 2 on, 5 of them"):
            write_mapped_pool(tmp_path / "own", made(6, 0), np.array([0, 2]), np.array([1, 5]), made(1, 0), 3)
        with pytest.raises(DataError, match="starts and sizes differ in length"):
            write_mapped_pool(tmp_path / "own", made(6, 0), np.array([0, 2]), np.array([1]), made(1, 0), 3)
        assert list(tmp_path.iterdir()) == []

    def test_nothing_is_written_over(self, small: Path) -> None:
        with pytest.raises(DataError, match="is already there"):
            write_mapped(small, [made(1, 0)], made(1, 0), 3)
        assert MappedData(small).num_clients == 3

    def test_it_is_there_whole_or_not_at_all(self, tmp_path: Path) -> None:
        def clients() -> Iterator[Arrays]:
            yield made(2, 0)
            assert not (tmp_path / "own").exists()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_mapped(tmp_path / "own", clients(), made(1, 0), 3)
        assert list(tmp_path.iterdir()) == []

    def test_one_client_after_another(self, tmp_path: Path) -> None:
        """Ten clients of a megabyte each never take the memory of four."""
        one = np.zeros((100, 100, 100), dtype=np.uint8), np.zeros(100, dtype=np.int64)
        tracemalloc.start()
        try:
            write_mapped(tmp_path / "own", ((one[0].copy(), one[1]) for _ in range(10)), (one[0][:1], one[1][:1]), 1)
            assert tracemalloc.get_traced_memory()[1] < 4_000_000
        finally:
            tracemalloc.stop()
        assert (tmp_path / "own" / "inputs.npy").stat().st_size == 128 + 10_000_000


class TestRuns:
    @pytest.fixture
    def digits(self, tmp_path: Path) -> Path:
        """The clients of the small plan, written to a directory."""
        held = load_federated(small_plan())
        assert isinstance(held, FederatedData)
        parts = (held.span(k) for k in range(held.num_clients))
        judged = held.eval_inputs, held.eval_targets
        write_mapped(tmp_path / "own", ((held.inputs[s], held.targets[s]) for s in parts), judged, 10)
        return tmp_path / "own"

    @pytest.fixture(autouse=True)
    def _one_thread(self) -> None:
        torch.set_num_threads(1)

    @pytest.mark.parametrize("engine", [{}, {"form": "compact"}])
    def test_to_the_same_end(self, digits: Path, engine: dict[str, Any]) -> None:
        held = small_plan(rounds=2, engine=engine)
        own = {"name": "mapped", "path": str(digits), "clients": 12, "partition": "users"}
        ends = []
        for plan in held, held.replace(data=own):
            experiment = build(plan)
            *_, (record, outcome) = experiment.run(experiment.initial())
            experiment.close()
            ends.append(({name: value.numpy().tobytes() for name, value in outcome.u.items()}, record["accuracy"]))
        assert ends[0] == ends[1]

    def test_from_the_command(self, digits: Path, tmp_path: Path) -> None:
        plan = tmp_path / "plan.toml"
        plan.write_text(
            f'rounds = 2\n[data]\nname = "mapped"\npath = "{digits}"\npartition = "users"\nclients = 12\n'
            '[model]\nname = "mlp"\nhidden = [16]\n[training]\nlearning_rate = 0.1\n'
            "[methods.fedbiad]\nstage_boundary = 1\n"
        )
        ended = fedbiad("run", str(plan), "--out", str(tmp_path / "run"), "--quiet")
        assert (ended.code, ended.err) == (0, "")
        assert "12 clients with" in fedbiad("describe", str(plan)).out
        wrong = fedbiad("run", str(plan), "--set", "data.clients=13", "--out", str(tmp_path / "wrong"))
        assert (wrong.code, wrong.out) == (2, "")
        assert f"{digits} has 12 clients, not data.clients = 13" in wrong.err
        missing = fedbiad("run", str(plan), "--set", "data.path=nowhere", "--out", str(tmp_path / "wrong"))
        assert missing.code == 2
        assert "nowhere holds no clients (no about.json)" in missing.err
        pooled = fedbiad("run", str(plan), "--set", "model.name=cnn", "--out", str(tmp_path / "run3"), "--quiet")
        assert pooled.code == 0

    def test_the_example_of_the_documents_works(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        text = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
        code, table = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "toml"))
        images = np.full((4, 1, 8, 8), 255, dtype=np.uint8), np.arange(4)
        exec(code[0], {"my_clients": lambda: [images] * 3, "test_inputs": images[0], "test_labels": images[1]})
        raw = {**tomllib.loads(table[0]), "training": {"learning_rate": 0.1}}
        raw["data"]["clients"] = 3
        data = load_federated(from_dict(raw))
        assert float(next(data.evaluation()).inputs.mean()) == pytest.approx((1 - 0.13) / 0.31)

    def test_a_cnn_needs_images(self, small: Path) -> None:
        data = {"name": "mapped", "path": str(small), "clients": 3, "partition": "users"}
        raw = {"data": data, "training": {"learning_rate": 0.1}, "model": {"name": "cnn"}}
        with pytest.raises(DataError, match=r"the cnn reads images \[channels, side, side\], not \[2\]"):
            build(from_dict(raw))

    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            ({"name": "mapped", "partition": "users"}, "data.path is missing"),
            ({"name": "mapped", "path": "x"}, "data.partition = 'labels': mapped is dealt out by users"),
            ({"name": "digits", "path": "x"}, "data.path is for clients of your own"),
        ],
    )
    def test_plans_that_do_not_fit(self, data: dict[str, str], problem: str) -> None:
        with pytest.raises(Exception, match=problem):
            from_dict({"data": {"clients": 3, **data}, "training": {"learning_rate": 0.1}})
