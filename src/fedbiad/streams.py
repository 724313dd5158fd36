"""Random streams keyed by (seed, round, client, purpose): never global, never by position in the cohort.

A stream depends on its key alone, so results do not depend on the order or grouping in which clients run,
and a resumed run needs no stored generator state.
"""

from __future__ import annotations

import hashlib

import numpy as np

SERVER = -1
"""The client number of the server's own streams."""


def key(seed: int, round_: int, client: int, purpose: str) -> int:
    """The 64-bit key of a stream: a hash of its four coordinates."""
    text = f"{seed}/{round_}/{client}/{purpose}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def stream(seed: int, round_: int, client: int, purpose: str) -> np.random.Generator:
    """A fresh generator for one purpose of one client (or the server) in one round."""
    return np.random.Generator(np.random.Philox(key=key(seed, round_, client, purpose)))
