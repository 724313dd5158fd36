"""What a server remembers of each client it has seen: it need not know all clients in advance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import IntArray, ServerState

Memory = Mapping[str, npt.NDArray[np.generic]]


def nothing(**parts: npt.NDArray[np.generic]) -> ServerState:
    """An empty memory; each part given as what it would be for one client."""
    empty = {name: np.zeros((0, *part.shape), dtype=part.dtype) for name, part in parts.items()}
    return {"seen": np.zeros(0, dtype=np.int64), **empty}


def entries(memory: Memory, ids: IntArray) -> tuple[dict[str, npt.NDArray[np.generic]], IntArray]:
    """A copy of the memory with an entry for every id, zeros where it is new, and the place of each id in it.

    `memory["seen"]` holds the ids seen so far in ascending order; every other part has one entry for each.
    """
    seen: IntArray = np.union1d(memory["seen"].astype(np.int64), ids)
    old = np.searchsorted(seen, memory["seen"])
    grown: dict[str, npt.NDArray[np.generic]] = {"seen": seen}
    for name, part in memory.items():
        if name != "seen":
            grown[name] = np.zeros((len(seen), *part.shape[1:]), dtype=part.dtype)
            grown[name][old] = part
    return grown, np.searchsorted(seen, ids)
