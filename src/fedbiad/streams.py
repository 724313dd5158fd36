"""Random streams keyed by (seed, round, client, purpose): never global, never by position in the cohort.

A stream depends on its key alone, so results do not depend on the order or grouping in which clients run,
and a resumed run needs no stored generator state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from fedbiad import compiled
from fedbiad.arrays import FloatArray

SERVER = -1
"""The client number of the server's own streams."""


def key(seed: int, round_: int, client: int, purpose: str) -> int:
    """The 64-bit key of a stream: a hash of its four coordinates."""
    text = f"{seed}/{round_}/{client}/{purpose}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def stream(seed: int, round_: int, client: int, purpose: str) -> np.random.Generator:
    """A fresh generator for one purpose of one client (or the server) in one round."""
    own: Any = _Key(key(seed, round_, client, purpose))  # numpy takes it, but its types do not say so
    return np.random.Generator(np.random.Philox(own))


class _Key(ISeedSequence):
    """A key as it is; `Philox(key=...)` is the same, but first gathers entropy it does not use: thrice the time."""

    def __init__(self, key: int) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """The 128 bits of Philox's key."""
        return np.array([self._key, 0], dtype=np.uint64)


def luck(keys: Sequence[int], count: int, step: int | None = None) -> FloatArray:
    """Uniform random numbers in (0, 1), `count` for each key [keys, count]: many small draws at the price of one.

    With a step they are that step's own, the hash of the key taken on.
    """
    begun = np.array(keys, dtype=np.uint64)
    drawn: FloatArray = compiled.uniforms(begun if step is None else compiled.keys_of_step(begun, step), count)
    return drawn
