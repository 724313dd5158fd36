"""Writing clients' samples to the directory that `mapped` reads, one client after another."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedbiad.arrays import IntArray
from fedbiad.data.mapped import ABOUT, About, Scaling, Split, span_problem
from fedbiad.errors import DataError
from fedbiad.files import write_directory

Array = npt.NDArray[Any] | Tensor
Samples = tuple[Array, Array]
"""Inputs [samples, ...] and class labels [samples]."""


def write_mapped(
    directory: Path,
    clients: Iterable[Samples],
    test: Samples,
    classes: int,
    *,
    validation: Samples | None = None,
    scaling: Scaling | None = None,
) -> None:
    """Write clients 0, 1, ... as they come; never more than one is held in memory.

    Inputs of type uint8 are stored as bytes and scaled when they are read (by default to [0, 1]), floats as float32.
    """
    with write_directory(directory) as draft:
        form = _Form(classes)
        with _Growing(draft / "inputs.npy") as inputs, _Growing(draft / "targets.npy") as targets:
            sizes = list[int]()
            for samples in clients:
                x, y = form.checked(samples, f"client {len(sizes)}")
                inputs.append(x)
                targets.append(y)
                sizes.append(len(y))
        ends = np.cumsum(sizes, dtype=np.int64)
        _finish(draft, form, ends - sizes, np.array(sizes, dtype=np.int64), targets.rows, test, validation, scaling)


def write_mapped_pool(
    directory: Path,
    pool: Samples,
    starts: IntArray,
    sizes: IntArray,
    test: Samples,
    classes: int,
    *,
    validation: Samples | None = None,
    scaling: Scaling | None = None,
) -> None:
    """Write clients whose samples are stretches of a common pool; the stretches may overlap."""
    problem = "starts and sizes differ in length" if len(starts) != len(sizes) else None
    problem = problem or span_problem(starts, sizes, len(pool[1]))
    if problem:
        raise DataError(problem)
    with write_directory(directory) as draft:
        form = _Form(classes)
        for name, part in zip(("inputs", "targets"), form.checked(pool, "the pool"), strict=True):
            np.save(draft / f"{name}.npy", part)
        held = np.zeros(len(pool[1]) + 1, dtype=np.int64)
        np.add.at(held, starts, 1)
        np.add.at(held, starts + sizes, -1)
        unused = int(np.count_nonzero(np.cumsum(held[:-1]) == 0))
        _finish(draft, form, starts, sizes, len(pool[1]), test, validation, scaling, unused)


def _finish(
    draft: Path, form: _Form, starts: IntArray, sizes: IntArray, samples: int, test: Samples,
    validation: Samples | None, scaling: Scaling | None, unused: int = 0,
) -> None:  # fmt: skip
    """Everything but the clients' samples themselves."""
    if not len(sizes):
        raise DataError("there are no clients to write")
    np.save(draft / "starts.npy", starts.astype(np.int64))
    np.save(draft / "sizes.npy", sizes.astype(np.int64))
    judged: dict[Split, int] = {}
    parts: dict[Split, Samples | None] = {"test": test, "validation": validation}
    for split, part in parts.items():
        if part is not None:
            inputs, targets = form.checked(part, f"the {split} part")
            np.save(draft / f"{split}-inputs.npy", inputs)
            np.save(draft / f"{split}-targets.npy", targets)
            judged[split] = len(targets)
    if scaling is not None and form.dtype != np.uint8:
        raise DataError(f"scaling is for inputs of type uint8; these are {form.dtype}")
    scaling = (scaling or Scaling()) if form.dtype == np.uint8 else None
    about = About(form.classes, len(sizes), samples, form.shape, judged, scaling, unused)
    (draft / ABOUT).write_text(json.dumps(dataclasses.asdict(about), indent=2) + "\n")


class _Form:
    """What all samples have in common; the first ones set it."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.shape: tuple[int, ...] = ()
        self.dtype: np.dtype[Any] | None = None

    def checked(self, samples: Samples, whose: str) -> tuple[npt.NDArray[Any], IntArray]:
        """The samples as they are stored; an error says whose are wrong."""
        inputs, targets = (np.asarray(part) for part in samples)
        if not len(targets) or inputs.shape[:1] != targets.shape:
            raise DataError(f"{whose} has {len(inputs)} inputs and {len(targets)} labels; "
                            "it needs as many inputs as labels, and at least one")  # fmt: skip
        if targets.dtype.kind not in "iu" or targets.min() < 0 or targets.max() >= self.classes:
            raise DataError(f"{whose} has labels that are not whole numbers in 0 to {self.classes - 1}")
        if inputs.dtype.kind == "f":
            inputs = inputs.astype(np.float32, copy=False)
        elif inputs.dtype != np.uint8:
            raise DataError(f"{whose} has inputs of type {inputs.dtype}; they must be uint8 or floats")
        if self.dtype is None:
            self.shape, self.dtype = inputs.shape[1:], inputs.dtype
        if (inputs.shape[1:], inputs.dtype) != (self.shape, self.dtype):
            raise DataError(f"{whose} has inputs {inputs.dtype} {list(inputs.shape[1:])}, "
                            f"those before it {self.dtype} {list(self.shape)}")  # fmt: skip
        return inputs, targets.astype(np.int64, copy=False)


class _Growing:
    """A .npy file that arrays are appended to; how many rows there are is written last."""

    def __init__(self, path: Path) -> None:
        self._file, self._like, self.rows = path.open("xb"), np.zeros(0), 0

    def __enter__(self) -> Self:
        return self

    def append(self, array: npt.NDArray[Any]) -> None:
        """Write these rows behind those that are there."""
        if not self.rows:
            self._like = array[:0]
            self._write_header()
        self._file.write(np.ascontiguousarray(array).data)
        self.rows += len(array)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self._file.seek(0, os.SEEK_SET)
            self._write_header()
        self._file.close()

    def _write_header(self) -> None:
        """The header leaves room for the first axis to grow, so that it is always equally long."""
        described = np.lib.format.header_data_from_array_1_0(self._like)
        described["shape"] = (self.rows, *self._like.shape[1:])
        np.lib.format.write_array_header_1_0(self._file, described)
