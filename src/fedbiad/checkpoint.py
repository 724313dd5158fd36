"""Exact resume: everything a run needs to go on, in self-checking files.

A checkpoint is a safetensors file (no pickle) named after its round and the hash of its content, written atomically;
random streams are keyed, so they need no saving. A file holds U_r and the server's state whole, but of the clients'
states only those that changed since the file before it, which it names by hash; once such files together outweigh a
whole one, a whole one is written. Kept are the files behind the last checkpoint and behind the last one that shares
none with it: whichever file is damaged, there is a checkpoint before it to fall back to.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch

from fedbiad.arrays import Params, ServerState
from fedbiad.files import write_atomically
from fedbiad.state import Store

States = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round: U_r, the server's state, and those of all clients seen (as `Store.dump` gives)."""

    round: int
    u: Params
    server: ServerState
    states: States


@dataclass(frozen=True)
class _File:
    """A checkpoint file by its name: round, hash of the file whose states it builds on ("" if whole), own hash."""

    round: int
    base: str
    digest: str
    path: Path


class Checkpoints:
    """The checkpoints of a run in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._last: _File | None = None
        self._added = 0

    def save(self, round_: int, u: Params, server: ServerState, store: Store) -> Path:
        """Write a checkpoint, whole or what changed since the last one, then drop files no longer needed."""
        states = store.dump(changed=True)
        weight = _weight(states)
        whole = self._last is None or self._added + weight >= _weight_of_all(store, states)
        if whole:
            states = {}  # not both in memory
            states = store.dump()
        base = "" if whole or self._last is None else self._last.digest
        tensors = {f"u/{name}": value.contiguous() for name, value in u.items()}
        tensors |= _tensors("server", server) | _tensors("state", states)
        content = safetensors.torch.save(tensors)
        file = _File(round_, base, _digest(content), self._directory)
        path = self._directory / f"{round_:06d}-{file.digest}-{base or 'whole'}.safetensors"
        write_atomically(path, content)
        self._last, self._added = file, 0 if whole else self._added + weight
        store.clean()
        self._drop_old()
        return path

    def load(self) -> tuple[Checkpoint | None, list[Path]]:
        """The newest checkpoint whose files are all undamaged (None if there is none), and the damaged ones met."""
        files = {file.digest: file for file in self._newest_first()}
        contents: dict[str, bytes | None] = {}
        for newest in files.values():
            chain = _chain(newest, files)
            for file in chain:
                if file.digest not in contents:
                    content = file.path.read_bytes()
                    contents[file.digest] = content if _digest(content) == file.digest else None
            parts = [contents[file.digest] for file in chain]
            if chain and not chain[-1].base and all(part is not None for part in parts):
                loaded = [_parse(part) for part in parts if part is not None]
                self._last = newest
                self._added = sum(_weight(states) for _, _, states in loaded[:-1])
                u, server, _ = loaded[0]
                states = _merged([states for _, _, states in reversed(loaded)])
                return Checkpoint(newest.round, u, server, states), _damaged(files, contents)
        self._last, self._added = None, 0
        return None, _damaged(files, contents)

    def _drop_old(self) -> None:
        newest = self._newest_first()
        files = {file.digest: file for file in newest}
        chains = [_chain(file, files) for file in newest]
        apart = [chain for chain in chains if chain[-1] != chains[0][-1]]
        needed = {link for chain in [chains[0], *apart[:1]] for link in chain}
        for file in newest:
            if file not in needed:
                file.path.unlink()

    def _newest_first(self) -> list[_File]:
        found = []
        for path in self._directory.glob("*-*-*.safetensors"):
            with contextlib.suppress(ValueError):
                round_, digest, base = path.stem.split("-")
                found.append(_File(int(round_), "" if base == "whole" else base, digest, path))
        return sorted(found, key=lambda file: (file.round, file.digest), reverse=True)


def _chain(file: _File, files: dict[str, _File]) -> list[_File]:
    """The files behind a checkpoint, newest first; it ends early where one is missing."""
    chain = [file]
    while chain[-1].base in files:
        chain.append(files[chain[-1].base])
    return chain


def _merged(oldest_first: list[States]) -> States:
    """The last state of every client."""
    filled = [states for states in oldest_first if states]
    if not filled:
        return {}
    names = [name for name in filled[0] if name != "clients"]
    ids = np.unique(np.concatenate([states["clients"] for states in filled]))
    merged: States = {name: np.empty((len(ids), *filled[0][name].shape[1:]), filled[0][name].dtype) for name in names}
    for states in filled:
        at = np.searchsorted(ids, states["clients"])
        for name in names:
            merged[name][at] = states[name]
    return {"clients": ids, **merged}


def _parse(content: bytes) -> tuple[Params, ServerState, States]:
    tensors = safetensors.torch.load(content)

    def under(prefix: str) -> Params:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    server, states = ({n: v.numpy() for n, v in under(prefix).items()} for prefix in ("server/", "state/"))
    return under("u/"), server, states


def _tensors(kind: str, arrays: ServerState) -> Params:
    return {f"{kind}/{name}": torch.from_numpy(np.asarray(value, order="C")) for name, value in arrays.items()}


def _weight(states: States) -> int:
    return sum(value.nbytes for value in states.values())


def _weight_of_all(store: Store, changed: States) -> int:
    """Bytes of all clients' states: all are alike."""
    return 0 if not changed else _weight(changed) * len(store) // len(changed["clients"])


def _damaged(files: dict[str, _File], contents: dict[str, bytes | None]) -> list[Path]:
    return [files[digest].path for digest, content in contents.items() if content is None]


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
