"""MNIST and Fashion-MNIST: idx files, verification on reading, padding and standardising."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import platformdirs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbiad.data import federate, load, mnist, store
from fedbiad.data.base import pixel_statistics
from fedbiad.errors import DataError

FILE = "train-images-idx3-ubyte"


@pytest.fixture
def mnist_home(request: pytest.FixtureRequest) -> Path:
    """The directory with a data set's real files; the test is skipped where there is none."""
    name = getattr(request, "param", "mnist")
    try:
        folders = [store.locate(name, file).parent for file in store.FILES[name]]
    except DataError:
        pytest.skip(f"run `fedbiad data fetch {name}`")
    return folders[0]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up MNIST of 12 training and 4 test images in FEDBIAD_DATA, known by its checksums."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "own" / "mnist"
    folder.mkdir(parents=True)
    sums = {}
    for split, n in (("train", 12), ("t10k", 4)):
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = np.arange(n, dtype=np.uint8) % 10
        for file, array in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
            content = mnist.to_idx(array)
            sums[file] = hashlib.sha256(content).hexdigest()
            (folder / f"{file}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setitem(store.FILES, "mnist", sums)
    monkeypatch.setenv("FEDBIAD_DATA", str(tmp_path / "own"))
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    return folder


@pytest.mark.usefixtures("mnist_home")
def test_real_mnist_has_its_known_statistics() -> None:
    train_images, train_targets, test_images, test_targets = mnist.read_mnist()
    assert pixel_statistics(train_images, 255) == pytest.approx((0.1307, 0.3081), abs=5e-5)
    assert (train_images.shape, test_images.shape) == ((60000, 28, 28), (10000, 28, 28))
    assert np.bincount(train_targets).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(test_targets).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.usefixtures("mnist_home")
@pytest.mark.parametrize("mnist_home", ["fmnist"], indirect=True)
def test_real_fashion_mnist_has_its_known_statistics() -> None:
    train_images, train_targets, _, test_targets = mnist.read_fmnist()
    assert pixel_statistics(train_images, 255) == pytest.approx((0.2860, 0.3530), abs=5e-5)
    assert (np.bincount(train_targets) == 6000).all()
    assert (np.bincount(test_targets) == 1000).all()


@pytest.mark.usefixtures("mnist_home")
def test_real_mnist_federates_over_a_hundred_clients() -> None:
    data = federate(load("mnist"), partition="labels", clients=100, seed=0, evaluate_on="validation")
    assert (data.inputs.shape, len(data.eval_targets)) == ((50000 - data.unused, 1, 28, 28), 10000)
    assert sum(data.sizes) + data.unused == 50000
    assert {len(torch.unique(data.targets[data.span(k)])) for k in range(100)} == {5}


@pytest.mark.usefixtures("tiny")
def test_inputs_are_standardised_by_the_training_pixels() -> None:
    data = load("mnist")
    train, _, test, _ = mnist.read_mnist()
    pixels = train / 255
    assert data.train_inputs.dtype == torch.float32
    assert data.train_targets.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    for inputs, images in ((data.train_inputs, train), (data.test_inputs, test)):
        expected = (images / 255 - pixels.mean()) / pixels.std()
        np.testing.assert_allclose(inputs[:, 0].numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("tiny")
def test_padding_is_black_and_changes_nothing_else() -> None:
    native, padded = load("mnist"), load("mnist", 32)
    train, *_ = mnist.read_mnist()
    assert padded.train_inputs.shape == (12, 1, 32, 32)
    assert torch.equal(padded.train_inputs[..., 2:30, 2:30], native.train_inputs)
    assert torch.equal(padded.test_inputs[..., 2:30, 2:30], native.test_inputs)
    border = padded.train_inputs.clone()
    border[..., 2:30, 2:30] = border[0, 0, 0, 0]
    np.testing.assert_allclose(border, -(train / 255).mean() / (train / 255).std(), rtol=1e-6)
    for size in (0, 27, 30, 64):
        with pytest.raises(DataError, match=rf"mnist has no image size {size}; choose 28 or 32"):
            load("mnist", size)


def test_raw_files_are_read_as_well(tiny: Path) -> None:
    before = load("mnist").train_inputs
    for path in list(tiny.glob("*.gz")):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert torch.equal(load("mnist").train_inputs, before)


def test_missing_data_say_where_was_looked_and_what_to_run(tiny: Path) -> None:
    (tiny / f"{FILE}.gz").unlink()
    with pytest.raises(DataError, match=rf"{FILE} not found.* run `fedbiad data fetch mnist`") as caught:
        load("mnist")
    assert f"{tiny}, {store.cache_directory('mnist')}" in str(caught.value)


def test_own_directory_comes_before_the_cache(tiny: Path) -> None:
    store.store("mnist", FILE, content := store.read_file("mnist", FILE))
    (tiny / f"{FILE}.gz").write_bytes(b"bad")
    # Fetching could not mend this one: it would go on hiding the copy in the cache.
    with pytest.raises(DataError, match=r"own.* is damaged .*; remove it, then run `fedbiad data fetch mnist"):
        store.read_file("mnist", FILE)
    (tiny / f"{FILE}.gz").unlink()
    assert store.read_file("mnist", FILE) == content


@pytest.mark.parametrize("damage", ["empty", "not gzip", "truncated", "other content", "trailing"])
def test_damaged_files_are_named_with_the_mending_command(tiny: Path, damage: str) -> None:
    path = store.cache_directory("mnist") / f"{FILE}.gz"
    store.store("mnist", FILE, store.read_file("mnist", FILE))
    (tiny / f"{FILE}.gz").unlink()
    good, other = path.read_bytes(), gzip.compress(b"other")
    packed = {"empty": b"", "not gzip": b"no gzip", "truncated": good[:-12], "other content": other}
    assert store.stored("mnist", FILE)
    path.write_bytes(packed.get(damage, good + b"x"))
    assert not store.stored("mnist", FILE)
    with pytest.raises(DataError, match=r"is damaged \(.*\); run `fedbiad data fetch mnist --force`") as caught:
        store.read_file("mnist", FILE)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_interrupted_write_leaves_the_old_file(tiny: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    store.store("mnist", FILE, content := store.read_file("mnist", FILE))
    (tiny / f"{FILE}.gz").unlink()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patch.setattr(os, failing, interrupt)
        store.store("mnist", FILE, b"new")
    assert store.read_file("mnist", FILE) == content
    assert [path.name for path in store.cache_directory("mnist").iterdir()] == [f"{FILE}.gz"]


def test_images_and_labels_must_belong_together(tiny: Path) -> None:
    for labels in ([0] * 5, [0, 0, 0, 10]):
        content = mnist.to_idx(np.array(labels, np.uint8))
        store.FILES["mnist"]["t10k-labels-idx1-ubyte"] = hashlib.sha256(content).hexdigest()
        (tiny / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(content))
        with pytest.raises(DataError, match=rf"t10k: images \(4, 28, 28\) and {len(labels)} labels up to {labels[-1]}"):
            mnist.read_mnist()


@settings(deadline=None, max_examples=50)
@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=3), seed=st.integers(0, 100))
def test_idx_round_trip(shape: list[int], seed: int) -> None:
    array = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(mnist.parse_idx(mnist.to_idx(array), len(shape), "x"), array)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack(">I", 0x801), r"labels: 4 bytes are too few"),
        (struct.pack(">II", 0x803, 2) + b"ab", r"magic number 0x00000803, expected 0x00000801"),
        (struct.pack(">II", 0xD01, 2) + b"ab", r"magic number 0x00000d01"),
        (struct.pack(">II", 0x801, 2) + b"a", r"header says \(2,\), but 1 bytes"),
        (struct.pack(">II", 0x801, 2) + b"abc", r"header says \(2,\), but 3 bytes"),
    ],
)
def test_malformed_idx_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        mnist.parse_idx(data, 1, "labels")


def test_csv_rows_become_the_idx_files() -> None:
    images = np.arange(3 * 784, dtype=np.int64).astype(np.uint8).reshape(3, 28, 28)
    rows = [",".join(map(str, [label, *images[i].ravel()])) for i, label in enumerate((7, 0, 9))]
    for newline in ("\n", "\r\n"):
        table = (newline.join(["label,1x1,...", *rows]) + newline).encode()
        assert mnist.csv_to_idx(table) == (mnist.to_idx(images), mnist.to_idx(np.array([7, 0, 9], np.uint8)))
