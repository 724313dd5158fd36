"""Clients' samples in memory-mapped files: a million clients may be registered, only those that train are read.

A directory holds all samples as `inputs.npy` [samples, ...] (uint8 or float32) and `targets.npy` [samples]; client k
has those from `starts[k]` on, `sizes[k]` of them (`starts.npy`, `sizes.npy` [clients]); two clients may share some.
Those a model is judged on stand apart (`test-inputs.npy`, `test-targets.npy`; `validation-...` if there are any), and
`about.json` tells how much there is of everything. `mapped_writing` makes such a directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor

from fedbiad.arrays import IntArray
from fedbiad.cohort import Cohort
from fedbiad.data.base import EVAL_BATCH
from fedbiad.errors import DataError
from fedbiad.training.batches import Batch, Derived, LocalData, judged

Split = Literal["test", "validation"]
Count = Annotated[int, Field(ge=1)]
ABOUT = "about.json"
CLOSED = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True)
class Scaling:
    """A stored byte b stands for (b / white - mean) / std."""

    __pydantic_config__ = CLOSED
    white: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 255.0
    mean: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    std: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    def table(self) -> npt.NDArray[np.float32]:
        """What each byte stands for [256]."""
        return ((np.arange(256) / self.white - self.mean) / self.std).astype(np.float32)


@dataclass(frozen=True)
class About:
    """What a directory says of itself."""

    __pydantic_config__ = CLOSED
    classes: Count
    clients: Count
    samples: Count
    shape: tuple[Count, ...]
    """Of one sample."""
    judged: dict[Split, Count]
    """How many samples each part has that a model is judged on."""
    scaling: Scaling | None = None
    """Of inputs stored as bytes; None: they are float32."""
    unused: Annotated[int, Field(ge=0)] = 0
    """Samples that no client has."""
    format: Literal[1] = 1


class MappedData:
    """The clients of such a directory; what it holds in memory does not grow with their number or with what is read."""

    def __init__(self, directory: Path, eval_split: Split = "test") -> None:
        self._directory, self.eval_split = directory, eval_split
        self._about = _about(directory)
        if eval_split not in self._about.judged:
            parts = " or ".join(self._about.judged)
            raise DataError(f"{directory} has no {eval_split} samples; judge on its {parts} samples (`evaluate_on`)")
        self._check()

    def __reduce__(self) -> tuple[type[MappedData], tuple[Path, Split]]:
        """Another process opens the files itself."""
        return MappedData, (self._directory, self.eval_split)

    @property
    def num_clients(self) -> int:
        """How many clients are registered."""
        return self._about.clients

    @cached_property
    def sizes(self) -> IntArray:
        """How many samples each client holds, not read before they are looked at."""
        return self._map("sizes")

    @property
    def classes(self) -> int:
        """How many answers there are."""
        return self._about.classes

    @property
    def unused(self) -> int:
        """How many samples no client holds."""
        return self._about.unused

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Of the inputs of one sample."""
        return self._about.shape

    @property
    def eval_size(self) -> int:
        """On how many samples a model is judged."""
        return self._about.judged[self.eval_split]

    def local(self, cohort: Cohort, iterations: int, batch: int) -> LocalData:
        """What a block of clients trains on in a round: their samples alone are read, and stand in a small pool."""
        ids = list(cohort.ids)
        sizes, starts = self.sizes[ids].tolist(), self._map("starts")[ids].tolist()
        # mapped anew for every block: pages that were read once would else count as this process's for ever
        inputs, targets = self._map("inputs"), self._map("targets")
        places = [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        ends = np.cumsum(sizes).tolist()
        spans = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        return LocalData(
            self._values(np.concatenate([inputs[place] for place in places])),
            self._labels(np.concatenate([targets[place] for place in places]), "targets"),
            spans, cohort.schedule(sizes, iterations * batch), batch,
        )  # fmt: skip

    def evaluation(self) -> Iterator[Batch]:
        """The samples a model is judged on [1, samples, ...]."""
        for start in range(0, self.eval_size, EVAL_BATCH):
            part = slice(start, start + EVAL_BATCH)
            names = f"{self.eval_split}-inputs", f"{self.eval_split}-targets"
            inputs, targets = (self._map(name)[part].copy() for name in names)
            yield judged(self._values(inputs), self._labels(targets, names[1]), Derived(0), start)

    @cached_property
    def _table(self) -> npt.NDArray[np.float32]:
        return (self._about.scaling or Scaling()).table()

    def _values(self, stored: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(stored if self._about.scaling is None else self._table[stored])

    def _labels(self, stored: IntArray, name: str) -> Tensor:
        # compiled training looks labels up without asking whether they are there
        if stored.min() < 0 or stored.max() >= self.classes:
            raise _damaged(self._directory / f"{name}.npy", f"a label is not in 0 to {self.classes - 1}")
        return torch.from_numpy(stored)

    def _map(self, name: str) -> npt.NDArray[Any]:
        path = self._directory / f"{name}.npy"
        try:
            return np.asarray(np.lib.format.open_memmap(path, mode="r"))
        except FileNotFoundError:
            raise DataError(f"{path} is missing; write the directory again") from None
        except (OSError, ValueError) as error:
            raise _damaged(path, str(error)) from None

    def _check(self) -> None:
        """Every file is as long as it should be, and every client's samples are there; samples are not read."""
        about = self._about
        stored, whole = ("float32" if about.scaling is None else "uint8"), "int64"
        wanted: dict[str, tuple[tuple[int, ...], str]] = {
            "starts": ((about.clients,), whole), "sizes": ((about.clients,), whole),
        }  # fmt: skip
        for part, samples in ("", about.samples), *((f"{split}-", count) for split, count in about.judged.items()):
            wanted |= {f"{part}inputs": ((samples, *about.shape), stored), f"{part}targets": ((samples,), whole)}
        for name, (shape, dtype) in wanted.items():
            found = self._map(name)
            if (found.shape, found.dtype.name) != (shape, dtype):
                reason = f"{found.dtype} {list(found.shape)} instead of {dtype} {list(shape)}"
                raise _damaged(self._directory / f"{name}.npy", reason)
        problem = span_problem(self._map("starts"), self.sizes, about.samples)
        if problem:
            raise DataError(f"{self._directory}: {problem}; write the directory again")


def span_problem(starts: IntArray, sizes: IntArray, samples: int) -> str | None:
    """What is wrong with the first client that has no samples, or some that are not there; None: nothing is."""
    wrong = (sizes < 1) | (starts < 0) | (starts > samples - sizes)
    if not wrong.any():
        return None
    client = int(wrong.argmax())
    return (
        f"client {client} has the samples from {starts[client]} on, {sizes[client]} of them; "
        f"it needs at least one of the {samples} there are"
    )


def _about(directory: Path) -> About:
    path = directory / ABOUT
    try:
        return TypeAdapter(About).validate_json(path.read_bytes(), strict=True)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{directory} holds no clients (no {ABOUT}); write them there with `fedbiad.data.write_mapped`, "
            "or point data.path elsewhere"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise _damaged(path, f"{where}: {first['msg']}") from None


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"{path} is damaged ({reason}); write the directory again")
