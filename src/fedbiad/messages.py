"""What the server asks of a client and what the client answers: one request and one reply a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedbiad.payloads import Payload

Rows = npt.NDArray[np.bool_]
"""The dropping pattern of one client [rows]: True = the row is in the message."""


@dataclass(frozen=True, eq=False)
class RequestMessage:
    """Round r to client k: U_{r-1} at the rows assigned, one dense part."""

    run: int
    """Which run this belongs to: 32 bits."""
    round: int
    client: int
    pattern: Rows | None
    """Rows assigned; None: all."""
    payload: Payload


@dataclass(frozen=True, eq=False)
class IncrementsMessage:
    """Round r to client k instead of U_{r-1}: the increments that lead to it from the copy the client has."""

    run: int
    round: int
    client: int
    increments: tuple[bytes, ...]
    """Oldest first, each as it was published (`wire.encode_increment`)."""


@dataclass(frozen=True)
class Report:
    """How a client's local training went."""

    loss: float
    """Mean training loss; travels as a float32."""
    checks: int = 0
    resampled: int = 0
    """Checks after which the pattern was changed."""
    noise_drawn: int = 0
    noise_weights: int = 0
    """Weights for which noise was drawn, of all weights sampled."""


@dataclass(frozen=True, eq=False)
class ReplyMessage:
    """Client k's answer in round r: what it uploads and how it went."""

    run: int
    round: int
    client: int
    samples: int
    """|D^k|."""
    pattern: Rows | None
    """Rows sent; None: exactly the rows assigned in the request."""
    payload: Payload
    report: Report
    present: Rows | None = None
    """Words in the client's data [words]: of the rows of words the others are not sent; None: not asked for."""
