"""Between a client and the server: what is sent, how many bytes it takes, and what arrives.

In one process the bytes may be skipped for speed: `wired` sends every message through them, to the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedbiad import wire
from fedbiad.arrays import ClientState, IntArray, Params, Pattern
from fedbiad.client import Trained
from fedbiad.cohort import Cohort
from fedbiad.compressors.base import Compressor, Segment
from fedbiad.errors import WireError
from fedbiad.messages import ReplyMessage, Report, RequestMessage
from fedbiad.payloads import Dense, Float32, Payload
from fedbiad.rows import Layout
from fedbiad.transports.base import Counts

FAILED = "the loss or a weight is not finite"


@dataclass(frozen=True)
class Arrived:
    """The usable replies of a block as the server has them; arrays [clients], `members` their places in the block."""

    members: IntArray
    pattern: Pattern
    u: Params
    loss: npt.NDArray[np.float64]
    upload: Counts
    remembered: dict[int, ClientState]
    """What the compressors of the clients remember now."""
    failed: dict[int, str]


@dataclass(frozen=True)
class Channel:
    """The way from one block of clients to the server."""

    layout: Layout
    run: int
    """Tells the messages of one run from those of another."""
    compressor: Compressor | None = None
    wired: bool = False

    # ------------------------------------------------------------------ down

    def download(self, u: Params, cohort: Cohort) -> tuple[Params, Counts]:
        """U as each client receives it [clients, ...], and what that costs. Rows not assigned arrive as 0 if wired."""
        flat = flatten(self.layout, u)
        requests = [self._request(flat, cohort, i) for i in range(len(cohort))]
        paper = [_paper_bytes(r.payload, self.layout, r.pattern) for r in requests]
        encoded = [wire.request_size(self.layout, request) for request in requests]
        counts = Counts(np.array(paper, dtype=np.int64), np.array(encoded, dtype=np.int64))
        if not self.wired:
            return {name: value.unsqueeze(0).expand(len(cohort), *value.shape) for name, value in u.items()}, counts
        received = []
        for i, request in enumerate(requests):
            data = wire.encode_request(self.layout, request)
            got = wire.decode_request(data, self.layout, self.run, cohort.round, cohort.ids[i])
            full = np.zeros_like(flat)
            full[_kept(self.layout, got.pattern)] = got.payload.values()
            received.append(full)
        return unflatten(self.layout, np.stack(received)), counts

    def _request(self, flat: Float32, cohort: Cohort, i: int) -> RequestMessage:
        pattern = None if cohort.assigned is None or cohort.assigned[i].all() else cohort.assigned[i]
        payload = Payload((self._dense(flat, pattern),), difference=False)
        return RequestMessage(self.run, cohort.round, cohort.ids[i], pattern, payload)

    # ------------------------------------------------------------------ up

    def upload(
        self, u: Params, cohort: Cohort, trained: Trained, samples: list[int], memory: Callable[[int], ClientState]
    ) -> Arrived:
        """What arrives of a trained block, what it costs, and what the clients' compressors remember then.

        `memory` tells what the compressor of a client remembers now.
        """
        failed = {k: FAILED for k, usable in zip(trained.ids, trained.usable, strict=True) if not usable}
        members, values, replies = [], [], []
        remembered: dict[int, ClientState] = {}
        full = flatten(self.layout, u)
        for i in np.flatnonzero(trained.usable).tolist():
            reply, learned = self._reply(full, cohort, trained, i, samples[i], memory)
            size = wire.reply_size(self.layout, reply, _row(cohort, i))
            if self.wired:
                try:
                    reply = self._through_the_wire(reply, cohort, i)
                except WireError as error:
                    failed[trained.ids[i]] = str(error)
                    continue
            if learned:
                remembered[trained.ids[i]] = learned
            members.append(i)
            replies.append((reply, size))
            values.append(None if self._untouched else self._arrived(full, reply, cohort, i))
        chosen = np.array(members, dtype=np.int64)
        paper = [_paper_bytes(reply.payload, self.layout, reply.pattern) for reply, _ in replies]
        u_arrived = (
            {name: value[chosen] if len(chosen) < len(cohort) else value for name, value in trained.u.items()}
            if self._untouched
            else unflatten(self.layout, np.stack([v for v in values if v is not None]) if values else full[None][:0])
        )
        return Arrived(
            chosen, trained.pattern[chosen], u_arrived,
            np.array([reply.report.loss for reply, _ in replies], dtype=np.float64),
            Counts(np.array(paper, dtype=np.int64), np.array([size for _, size in replies], dtype=np.int64)),
            remembered, failed,
        )  # fmt: skip

    @property
    def _untouched(self) -> bool:
        """Whether what arrives is what was trained, without looking."""
        return self.compressor is None and not self.wired

    def _reply(
        self,
        full: Float32,
        cohort: Cohort,
        trained: Trained,
        i: int,
        samples: int,
        memory: Callable[[int], ClientState],
    ) -> tuple[ReplyMessage, ClientState]:
        sent, assigned = trained.pattern[i], _row(cohort, i)
        same = sent.all() if assigned is None else np.array_equal(sent, assigned)
        remembered: ClientState = {}
        if self._untouched:
            payload = Payload((self._dense(None, sent),), difference=False)
        else:
            flat = flatten(self.layout, {name: value[i] for name, value in trained.u.items()})
            payload, remembered = self._compressed(full, flat, cohort, trained, i, memory)
        report = Report(float(np.float32(trained.losses[i].mean())), trained.checks, int(trained.resampled[i].sum()))
        pattern = None if same else sent
        return ReplyMessage(self.run, cohort.round, cohort.ids[i], samples, pattern, payload, report), remembered

    def _compressed(
        self,
        full: Float32,
        flat: Float32,
        cohort: Cohort,
        trained: Trained,
        i: int,
        memory: Callable[[int], ClientState],
    ) -> tuple[Payload, ClientState]:
        sent = trained.pattern[i]
        where = np.flatnonzero(self.layout.kept_entries(sent))
        if self.compressor is None:
            return Payload((Dense(flat[where]),), difference=False), {}
        state = memory(cohort.ids[i])
        return self.compressor.compress(
            flat[where] - full[where], where, segments(self.layout, sent), state, cohort.round,
            cohort.stream(i, "compression"),
        )  # fmt: skip

    def _through_the_wire(self, reply: ReplyMessage, cohort: Cohort, i: int) -> ReplyMessage:
        assigned = _row(cohort, i)
        data = wire.encode_reply(self.layout, reply, assigned)
        return wire.decode_reply(data, self.layout, self.run, cohort.round, cohort.ids[i], assigned)

    def _arrived(self, full: Float32, reply: ReplyMessage, cohort: Cohort, i: int) -> Float32:
        kept = _kept(self.layout, _row(cohort, i) if reply.pattern is None else reply.pattern)
        arrived = full.copy()
        values = reply.payload.values()
        arrived[kept] = full[kept] + values if reply.payload.difference else values
        return arrived

    def _dense(self, flat: Float32 | None, pattern: Pattern | None) -> Dense:
        """The kept entries; where only their number matters, an array that takes no memory."""
        if flat is not None and self.wired:
            return Dense(flat[_kept(self.layout, pattern)])
        count = self.layout.num_weights if pattern is None else int(self.layout.kept_weights(pattern[None])[0])
        return Dense(np.broadcast_to(np.float32(0), count))


def flatten(layout: Layout, u: Params) -> Float32:
    """All weights in full coordinates [N]: parameter by parameter in the layout's order."""
    return torch.cat([u[name].detach().flatten() for name in layout.shapes]).float().numpy()


def unflatten(layout: Layout, flat: Float32) -> Params:
    """The inverse for a block [clients, N]; tensors share the array's memory."""
    params: Params = {}
    start = 0
    for name, shape in layout.shapes.items():
        size = int(np.prod(shape, dtype=np.int64))
        params[name] = torch.from_numpy(flat[:, start : start + size]).view(len(flat), *shape)
        start += size
    return params


def segments(layout: Layout, pattern: Pattern) -> list[Segment]:
    """Where the kept entries of each parameter stand among all kept entries; parameters without any are left out."""
    found, start = [], 0
    for name, shape in layout.kept_shapes(pattern).items():
        count = math.prod(shape)
        if count:
            found.append(Segment(name, slice(start, start + count), len(shape)))
        start += count
    return found


def _row(cohort: Cohort, i: int) -> Pattern | None:
    """The rows one client was sent; None: all."""
    return None if cohort.assigned is None else cohort.assigned[i]


def _kept(layout: Layout, pattern: Pattern | None) -> npt.NDArray[np.bool_] | slice:
    return slice(None) if pattern is None else layout.kept_entries(pattern)


def _paper_bytes(payload: Payload, layout: Layout, pattern: Pattern | None) -> int:
    """32 bits a value, 64 bits a position and, where rows are told, 1 bit a label."""
    labels = 0 if pattern is None else layout.num_rows
    return -(-payload.paper_bits // 8) + -(-labels // 8)
