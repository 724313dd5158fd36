"""The embedded 8x8 digits."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbiad.data import digits, fetch, load
from fedbiad.errors import DataError


def test_is_the_known_set_with_its_fixed_split() -> None:
    train_images, train_targets, test_images, test_targets = digits.read()
    assert train_images.shape == (1500, 8, 8)
    assert test_images.shape == (297, 8, 8)
    counts = np.bincount(np.concatenate([train_targets, test_targets]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (train_images.min(), train_images.max()) == (0, 16)
    assert train_images[0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert train_targets[:10].tolist() == list(range(10))


def test_loads_standardised_with_the_training_pixels() -> None:
    data = load("digits")
    assert data.train_inputs.shape == (1500, 1, 8, 8)
    assert data.train_inputs.dtype == data.test_inputs.dtype == torch.float32
    assert data.train_targets.dtype == data.test_targets.dtype == torch.int64
    assert data.train_inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert data.train_inputs.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    raw = digits.read()
    pixels = torch.from_numpy(raw[0] / 16)
    expected = (torch.from_numpy(raw[2] / 16) - pixels.mean()) / pixels.std(correction=0)
    torch.testing.assert_close(data.test_inputs[:, 0], expected.float())


@pytest.mark.parametrize("size", [7, 16, 28, 32, 0])
def test_other_sizes_are_refused(size: int) -> None:
    with pytest.raises(DataError, match=rf"digits has no image size {size}; choose 8"):
        load("digits", size)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(DataError, match=r"'cifar'; choose one of mnist, fmnist, digits"):
        load("cifar")


def test_is_small_enough_to_ship() -> None:
    assert digits.PATH.stat().st_size < 100_000


def test_changed_content_is_refused(tmp_path: Path) -> None:
    with np.load(digits.PATH, allow_pickle=False) as file:
        images, targets = file["images"], file["targets"]
    assert hashlib.sha256(images.tobytes() + targets.tobytes()).hexdigest() == digits.SHA256
    images[3, 3, 3] += 1
    changed = tmp_path / "digits.npz"
    np.savez(changed, images=images, targets=targets)
    with pytest.raises(DataError, match=r"digits\.npz is damaged \(checksum.*reinstall"):
        digits.read(changed)


@pytest.mark.parametrize("keep", [0, 10, 20_000])
def test_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    short = tmp_path / "short.npz"
    short.write_bytes(digits.PATH.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"short\.npz is damaged"):
        digits.read(short)


def test_pickles_are_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.npz"
    np.savez(bad, images=np.array([{"a": 1}], dtype=object), targets=np.zeros(1, np.uint8))
    with pytest.raises(DataError, match=r"allow_pickle=False"):
        digits.read(bad)


def test_fetching_reports_that_it_is_embedded() -> None:
    lines: list[str] = []
    assert fetch("digits", report=lines.append) == digits.PATH
    assert lines == ["digits: embedded in the package, nothing to fetch"]
    with pytest.raises(DataError, match=r"'cifar'; choose one of mnist, fmnist, digits"):
        fetch("cifar")
