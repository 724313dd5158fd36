"""The server's step published as a coded increment, which both sides apply: clients fetch what they missed of them.

U_r is what was published: U_{r-1} plus the increment as it is decoded. What an increment leaves of the server's step,
at most half a step of its code an entry, is added to the next one, so U_r stays that close to the U that the server
would have without (docs/evidence.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedbiad import wire
from fedbiad.arrays import IntArray, Params, ServerState
from fedbiad.coding.parts import blocks_of
from fedbiad.cohort import Cohort
from fedbiad.compressors.evidence import CODER, ENDS
from fedbiad.compressors.nearest import nearest
from fedbiad.errors import RunError, UpdateError
from fedbiad.increments import Offer, applied
from fedbiad.methods import seen
from fedbiad.payloads import Float32, Payload
from fedbiad.rows import Layout
from fedbiad.sending import flatten, unflatten

BESIDES = 6
"""Bytes of an increment beside its one part: the length of the coded stream, the number of parts, the kind."""
PREFIX = "download/"
"""Of the names in the server's state."""


@dataclass(frozen=True, eq=False)
class Published:
    """What the server knows after a round: its increments, as far as they are of use, and who has which U."""

    left: Float32
    """What was not published yet [N]."""
    seen: IntArray
    last: IntArray
    """Clients that took part, ascending, and the last round r whose reply arrived: such a client has U_{r-1}."""
    increments: tuple[bytes, ...] = ()
    """Oldest first."""
    bits: tuple[int, ...] = ()
    """Of each by the paper's count."""
    oldest: Float32 | None = None
    """U before the first of them, where messages are really sent."""

    def arrays(self) -> ServerState:
        """As named arrays, for a checkpoint."""
        parts: dict[str, npt.NDArray[np.generic]] = {
            "left": self.left, "seen": self.seen, "last": self.last, "bits": np.array(self.bits, dtype=np.int64),
            "lengths": self.lengths, "increments": np.array(bytearray(b"".join(self.increments)), dtype=np.uint8),
        }  # fmt: skip
        if self.oldest is not None:
            parts["oldest"] = self.oldest
        return {PREFIX + name: part for name, part in parts.items()}

    @classmethod
    def of(cls, arrays: ServerState) -> Published:
        """The inverse."""
        own = {name.removeprefix(PREFIX): part for name, part in arrays.items()}
        ends = np.cumsum(own["lengths"].astype(np.int64)).tolist()
        data = own["increments"].tobytes()
        increments = tuple(data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)) if ends else ()
        return cls(
            own["left"].astype(np.float32), own["seen"].astype(np.int64), own["last"].astype(np.int64), increments,
            tuple(own["bits"].tolist()), own["oldest"].astype(np.float32) if "oldest" in own else None,
        )  # fmt: skip

    def clients(self, ids: tuple[int, ...]) -> tuple[IntArray, IntArray, IntArray]:
        """`seen` and `last` with an entry for each of these clients, 0 for a new one, and their places."""
        memory, places = seen.entries({"seen": self.seen, "last": self.last}, np.array(ids, dtype=np.int64))
        return memory["seen"].astype(np.int64), memory["last"].astype(np.int64), places

    @property
    def lengths(self) -> IntArray:
        """Bytes of each increment."""
        return np.array([len(one) for one in self.increments], dtype=np.int64)


@dataclass(frozen=True)
class Publisher:
    """How U is published."""

    layout: Layout
    budget: float
    """Bytes of an increment, as a share of the message with the whole model."""
    lost: float = 0.0
    """The share of clients that have lost their copy when they are asked."""
    wired: bool = False

    def split(self, state: ServerState, u: Params) -> tuple[ServerState, Published]:
        """The method's own part of the server's state, and what was published; nothing yet in a fresh one."""
        own = {name: part for name, part in state.items() if name.startswith(PREFIX)}
        rest = {name: part for name, part in state.items() if name not in own}
        if not own:
            nobody, flat = np.zeros(0, dtype=np.int64), flatten(self.layout, u)
            return rest, Published(np.zeros_like(flat), nobody, nobody, oldest=flat if self.wired else None)
        published = Published.of(own)
        if self.wired and published.oldest is None:
            raise RunError("the run was begun without engine.wire, so clients' copies are not known; go on without it")
        return rest, published

    def offer(self, published: Published, cohort: Cohort) -> Offer:
        """To each client the increments it missed or the whole model, whichever takes fewer bytes."""
        _, last, places = published.clients(cohort.ids)
        last, lengths = last[places], published.lengths
        lost = cohort.luck("copy", 1)[:, 0] < self.lost
        counts = np.where((last > 0) & ~lost, cohort.round - last, 0)
        for i, (client, count) in enumerate(zip(cohort.ids, counts.tolist(), strict=True)):
            whole = wire.dense_request_size(cohort.round, client, None, self.layout.num_weights)
            gone = count > len(lengths)
            if gone or (count and wire.increments_size(cohort.round, client, lengths[-count:].tolist()) >= whole):
                counts[i] = 0
        bits = np.array(published.bits, dtype=np.int64)
        return Offer(counts, lengths, bits, published.increments if self.wired else (), published.oldest)

    def publish(
        self, published: Published, u: Params, stepped: Params, round_: int, arrived: tuple[int, ...]
    ) -> tuple[Params, Published]:
        """U_r from U_{r-1} and where the server's own step leads; `arrived` are the clients that replied."""
        before, target = flatten(self.layout, u), flatten(self.layout, stepped) + published.left
        payload = self._increment(target - before, round_)
        after = applied(before, [payload])
        clients, last, places = published.clients(arrived)
        last[places] = round_
        grown = replace(
            published, left=target - after, seen=clients, last=last,
            increments=(*published.increments, wire.encode_increment(self.layout, payload)),
            bits=(*published.bits, payload.paper_bits),
        )  # fmt: skip
        # copied: what shares memory cannot be saved
        new = {name: part[0].to(u[name].dtype).clone() for name, part in unflatten(self.layout, after[None]).items()}
        return new, self._of_use(grown)

    def _increment(self, change: Float32, round_: int) -> Payload:
        limit = self.budget * wire.dense_request_size(round_, 0, None, self.layout.num_weights)
        shapes = tuple(self.layout.shapes.values())
        try:
            part = nearest(change, blocks_of(shapes, 0, len(change)), 8 * (limit - BESIDES) / CODER - ENDS)
        except UpdateError as error:
            raise RunError(f"round {round_}: no increment can be published: {error}; "
                           "raise training.increments, or leave it out") from None  # fmt: skip
        return Payload((part,), difference=True)

    def _of_use(self, published: Published) -> Published:
        """Without the oldest increments, as soon as all together are longer than the model."""
        lengths, drop = published.lengths, 0
        while lengths[drop:].sum() > 4 * self.layout.num_weights:
            drop += 1
        oldest = published.oldest
        if oldest is not None:
            oldest = applied(oldest, (wire.decode_increment(one, self.layout) for one in published.increments[:drop]))
        return replace(published, increments=published.increments[drop:], bits=published.bits[drop:], oldest=oldest)
