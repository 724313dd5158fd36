"""Names for the arrays that travel between rooms; a leading axis counts the clients of a block."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor

Params = dict[str, Tensor]
"""Parameters by name: U (no leading axis) or one U^k for each client of a block [clients, ...]."""

Pattern = npt.NDArray[np.bool_]
"""Dropping patterns beta [clients, rows]: True = the row is held, False = it is dropped."""

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

Losses = FloatArray
"""Losses [clients, iterations] of a round."""

ClientState = Mapping[str, npt.NDArray[np.generic]]
"""What a client remembers between rounds (scores E^k, ...): named arrays, [clients, ...] for a block."""

ServerState = Mapping[str, npt.NDArray[np.generic]]
"""What the server remembers of a method between rounds (score maps, bandits, ...): named arrays."""

Shapes = dict[str, tuple[int, ...]]
"""Shape of every parameter, without a client axis, in the model's order."""
