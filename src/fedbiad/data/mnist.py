"""MNIST and Fashion-MNIST: four idx files each, parsed by hand."""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt

from fedbiad.data.store import read_file
from fedbiad.errors import DataError

Bytes = npt.NDArray[np.uint8]
Arrays = tuple[Bytes, Bytes, Bytes, Bytes]
"""Train images [n, side, side], train targets [n], test images, test targets, as stored."""

SIDE = 28
CLASSES = 10
UBYTE = 0x08
"""The idx type code of unsigned bytes."""


def parse_idx(data: bytes, dimensions: int, where: str) -> Bytes:
    """The array of an idx file of unsigned bytes with the given number of dimensions."""
    header = 4 + 4 * dimensions
    if len(data) < header:
        raise DataError(f"{where}: {len(data)} bytes are too few for an idx header of {header}")
    magic = struct.unpack(">I", data[:4])[0]
    if magic != (UBYTE << 8 | dimensions):
        raise DataError(f"{where}: magic number {magic:#010x}, expected {UBYTE << 8 | dimensions:#010x}")
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    if len(data) - header != math.prod(shape):
        raise DataError(f"{where}: header says {shape}, but {len(data) - header} bytes of content follow")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def to_idx(array: Bytes) -> bytes:
    """The idx file of an array of unsigned bytes."""
    return struct.pack(f">I{array.ndim}I", UBYTE << 8 | array.ndim, *array.shape) + array.tobytes()


def csv_to_idx(table: bytes) -> tuple[bytes, bytes]:
    """The images' and labels' idx files of a CSV table: a header, then label and 784 pixels a row."""
    body = table[table.index(b"\n") + 1 :].strip().replace(b"\n", b",")
    rows = np.fromstring(body, dtype=np.uint8, sep=",").reshape(-1, 1 + SIDE * SIDE)
    return to_idx(rows[:, 1:].reshape(-1, SIDE, SIDE)), to_idx(rows[:, 0])


def read_mnist() -> Arrays:
    """MNIST: 60,000 training and 10,000 test images of handwritten digits (LeCun et al. 1998)."""
    return *_read_split("mnist", "train"), *_read_split("mnist", "t10k")


def read_fmnist() -> Arrays:
    """Fashion-MNIST: 60,000 training and 10,000 test images of clothing (Xiao et al. 2017)."""
    return *_read_split("fmnist", "train"), *_read_split("fmnist", "t10k")


def _read_split(name: str, split: str) -> tuple[Bytes, Bytes]:
    """The images and targets of one split, checked to belong together."""
    where = f"{name} {split}"
    images = parse_idx(read_file(name, f"{split}-images-idx3-ubyte"), 3, f"{where} images")
    targets = parse_idx(read_file(name, f"{split}-labels-idx1-ubyte"), 1, f"{where} labels")
    if images.shape != (len(targets), SIDE, SIDE) or targets.max(initial=0) >= CLASSES:
        raise DataError(
            f"{where}: images {images.shape} and {len(targets)} labels up to {targets.max(initial=0)} do not "
            f"fit; expected {SIDE}x{SIDE} images, one label below {CLASSES} each"
        )
    return images, targets
