"""MNIST and Fashion-MNIST: four idx files each, looked up, verified and parsed by hand.

Files are looked for in $FEDBIAD_DATA, then in the user's cache directory, compressed (.gz) or raw; the
checksum of the uncompressed content is verified whenever a file is read.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import platformdirs

from fedbiad.errors import DataError
from fedbiad.files import write_atomically

Bytes = npt.NDArray[np.uint8]
Arrays = tuple[Bytes, Bytes, Bytes, Bytes]
"""Train images [n, side, side], train targets [n], test images, test targets, as stored."""

SIDE = 28
CLASSES = 10
UBYTE = 0x08
"""The idx type code of unsigned bytes."""

DIRECTORIES = {"mnist": "mnist", "fmnist": "fashion-mnist"}
FILES: dict[str, dict[str, str]] = {  # SHA-256 of the uncompressed content
    "mnist": {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "fmnist": {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
}


def cache_directory(name: str) -> Path:
    """Where `fedbiad data fetch` puts a data set's files."""
    return Path(platformdirs.user_cache_dir("fedbiad")) / "data" / DIRECTORIES[name]


def directories(name: str) -> list[Path]:
    """Where a data set's files are looked for, in this order."""
    own = os.environ.get("FEDBIAD_DATA")
    return [*([Path(own) / DIRECTORIES[name]] if own else []), cache_directory(name)]


def locate(name: str, file: str) -> Path:
    """The first copy of a file, compressed or raw; an error that says where was looked if there is none."""
    for directory in directories(name):
        for path in (directory / f"{file}.gz", directory / file):
            if path.is_file():
                return path
    looked = ", ".join(map(str, directories(name)))
    raise DataError(
        f"{name}: {file} not found, looked in {looked}; run `fedbiad data fetch {name}` "
        "or point FEDBIAD_DATA at a directory that has it"
    )


def matches(name: str, file: str, content: bytes) -> bool:
    """Whether the uncompressed content of a file has the known checksum."""
    return hashlib.sha256(content).hexdigest() == FILES[name][file]


def read_file(name: str, file: str) -> bytes:
    """The uncompressed, verified content of the first copy of a file."""
    path = locate(name, file)
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(name, path, f"cannot be read: {error}") from error
    if not matches(name, file, content):
        raise _damaged(name, path, "checksum of the content differs")
    return content


def stored(name: str, file: str) -> bool:
    """Whether the cache directory has a file, compressed and intact."""
    try:
        return matches(name, file, gzip.decompress((cache_directory(name) / f"{file}.gz").read_bytes()))
    except (OSError, EOFError, zlib.error):
        return False


def store(name: str, file: str, content: bytes) -> None:
    """Put a file into the cache directory as a whole: interrupted, it leaves the old one as it was."""
    path = cache_directory(name) / f"{file}.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, gzip.compress(content, compresslevel=6, mtime=0))


def _damaged(name: str, path: Path, reason: str) -> DataError:
    """The error for a file that is there but not as it should be, with the way to mend it."""
    # Fetching mends the cache only; a bad file in FEDBIAD_DATA would go on hiding the good one.
    first = "" if path.parent == cache_directory(name) else "remove it, then "
    return DataError(f"{path} is damaged ({reason}); {first}run `fedbiad data fetch {name} --force`")


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
