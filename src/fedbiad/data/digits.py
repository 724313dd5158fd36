"""The 8x8 handwritten digits that come with the package: 1,797 images, no download.

UCI "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998; CC BY 4.0), its test part as
scikit-learn ships it; pixel values 0..16. The split is fixed: the first 1,500 images train, the last 297 test.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedbiad.data.mnist import Arrays
from fedbiad.errors import DataError

PATH = Path(__file__).with_name("digits.npz")
SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
"""Checksum of the image bytes followed by the target bytes."""
TRAIN = 1500


def read(path: Path = PATH) -> Arrays:
    """The verified images and targets: first 1,500 for training, last 297 for testing."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            images, targets = file["images"], file["targets"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, str(error)) from error
    if hashlib.sha256(images.tobytes() + targets.tobytes()).hexdigest() != SHA256:
        raise _damaged(path, "checksum of the content differs")
    return images[:TRAIN], targets[:TRAIN], images[TRAIN:], targets[TRAIN:]


def _damaged(path: Path, reason: str) -> DataError:
    """The error for an embedded file that is not as it was shipped."""
    return DataError(f"{path} is damaged ({reason}); it is part of fedbiad: reinstall the package")
