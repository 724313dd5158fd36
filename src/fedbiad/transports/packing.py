"""What is told once about a run, packed for other processes: its tensors stand beside the rest, as arrays.

Arrays are what an object store shares without a copy: all processes of a node read the same data.
"""

from __future__ import annotations

import io
import pickle
import socket
import uuid
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbiad.arrays import Params
from fedbiad.errors import RunError
from fedbiad.transports.block import BlockTraining
from fedbiad.versions import versions

Arrays = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Packed:
    """A run for other processes; `key` tells it from other runs."""

    key: str
    content: bytes
    tensors: list[npt.NDArray[np.generic]]
    versions: dict[str, str]


def pack(training: BlockTraining, pickler: type[Any]) -> Packed:
    """Pack with this kind of pickler."""
    tensors: list[npt.NDArray[np.generic]] = []

    def place(part: object) -> int | None:
        if type(part) is not Tensor or part.requires_grad or part.dtype not in SHARED:
            return None
        tensors.append(part.numpy())
        return len(tensors) - 1

    content = io.BytesIO()
    writer = pickler(content)
    writer.persistent_id = place
    writer.dump(training)
    return Packed(uuid.uuid4().hex, content.getvalue(), tensors, versions())


def unpack(packed: Packed) -> BlockTraining:
    """The run, where the software is the same to the last bit."""
    wanted, found = packed.versions, versions()
    other = [f"{name} {found[name]} instead of {wanted[name]}" for name in wanted if found[name] != wanted[name]]
    if other:
        raise RunError(f"{socket.gethostname()} has {', '.join(other)}; install the same software on every node")
    reader = pickle.Unpickler(io.BytesIO(packed.content))  # from our own process, through Ray
    reader.persistent_load = lambda place: _view(packed.tensors[place])  # type: ignore[method-assign]
    training: BlockTraining = reader.load()
    return training


def arrays(params: Params) -> Arrays:
    """Parameters as arrays, not copied."""
    return {name: value.numpy() for name, value in params.items()}


def tensors(parts: Arrays) -> Params:
    """And back, as a copy: what an object store gives can neither be written to nor let go."""
    return {name: torch.from_numpy(value.copy()) for name, value in parts.items()}


SHARED = (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool)


def _view(value: npt.NDArray[np.generic]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it must not be written to, and no one writes to a run's data
        return torch.from_numpy(value)
