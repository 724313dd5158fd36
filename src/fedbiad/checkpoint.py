"""Exact resume: everything a run needs to go on, in one self-checking file a round.

A checkpoint is a safetensors file (no pickle) named after its round and the hash of its content, written atomically;
random streams are keyed, so they need no saving. The last two are kept: a damaged one falls back to the one before.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch

from fedbiad.arrays import Params
from fedbiad.files import write_atomically

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round: U_r and the states of all clients seen (as `MemoryStore.dump` gives them)."""

    round: int
    u: Params
    states: dict[str, npt.NDArray[np.generic]]


def save(directory: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, then drop all but the last two."""
    tensors = {f"u/{name}": value.contiguous() for name, value in checkpoint.u.items()}
    tensors |= {f"state/{name}": torch.from_numpy(np.ascontiguousarray(v)) for name, v in checkpoint.states.items()}
    content = safetensors.torch.save(tensors)
    path = directory / f"{checkpoint.round:06d}-{_digest(content)}.safetensors"
    write_atomically(path, content)
    for old in _newest_first(directory)[KEPT:]:
        old.unlink()
    return path


def load(directory: Path) -> tuple[Checkpoint | None, list[Path]]:
    """The newest undamaged checkpoint (None if there is none), and the damaged ones passed over."""
    damaged: list[Path] = []
    for path in _newest_first(directory):
        content = path.read_bytes()
        round_, _, digest = path.stem.partition("-")
        if _digest(content) == digest:
            return _parse(int(round_), content), damaged
        damaged.append(path)
    return None, damaged


def _parse(round_: int, content: bytes) -> Checkpoint:
    tensors = safetensors.torch.load(content)
    u = {name.removeprefix("u/"): value for name, value in tensors.items() if name.startswith("u/")}
    states = {name.removeprefix("state/"): v.numpy() for name, v in tensors.items() if name.startswith("state/")}
    return Checkpoint(round_, u, states)


def _newest_first(directory: Path) -> list[Path]:
    found = []
    for path in directory.glob("*-*.safetensors"):
        with contextlib.suppress(ValueError):
            found.append((int(path.name.partition("-")[0]), path))
    return [path for _, path in sorted(found, reverse=True)]


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
