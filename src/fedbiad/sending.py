"""Between a client and the server: what is sent, how many bytes it takes, and what arrives.

In one process the bytes may be skipped for speed: `wired` sends every message through them, to the same result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedbiad import wire
from fedbiad.aggregation import Total, sum_block
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
class Senders:
    """Of each client of a block how many samples it has, how much it counts, and what its compressor remembers."""

    samples: list[int]
    weights: list[int]
    remembered: Mapping[int, ClientState]


@dataclass(frozen=True)
class Arrived:
    """The usable replies of a block as the server has them; arrays [clients], `members` their places in the block."""

    members: IntArray
    pattern: Pattern
    total: Total
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

    def upload(self, cohort: Cohort, trained: Trained, senders: Senders) -> Arrived:
        """What arrives of a trained block, what it costs, and what the clients' compressors remember then."""
        failed = {k: FAILED for k, usable in zip(trained.ids, trained.usable, strict=True) if not usable}
        members, changes, replies = [], [], []
        remembered: dict[int, ClientState] = {}
        for i in np.flatnonzero(trained.usable).tolist():
            reply, learned = self._reply(cohort, trained, i, senders)
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
            if not self._untouched:
                changes.append(self._arrived(reply, cohort, i))
        chosen = np.array(members, dtype=np.int64)
        pattern, weights = trained.pattern[chosen], [senders.weights[i] for i in members]
        paper = [_paper_bytes(reply.payload, self.layout, reply.pattern) for reply, _ in replies]
        if self._untouched:
            total = trained.learned.total(self.layout, chosen, pattern, weights)
        else:
            flat = np.stack(changes) if changes else np.zeros((0, self.layout.num_weights), dtype=np.float32)
            total = sum_block(self.layout, pattern, unflatten(self.layout, flat), weights)
        return Arrived(
            chosen, pattern, total,
            np.array([reply.report.loss for reply, _ in replies], dtype=np.float64),
            Counts(np.array(paper, dtype=np.int64), np.array([size for _, size in replies], dtype=np.int64)),
            remembered, failed,
        )  # fmt: skip

    @property
    def _untouched(self) -> bool:
        """Whether what arrives is what was trained, without looking."""
        return self.compressor is None and not self.wired

    def _reply(self, cohort: Cohort, trained: Trained, i: int, senders: Senders) -> tuple[ReplyMessage, ClientState]:
        sent, assigned = trained.pattern[i], _row(cohort, i)
        same = sent.all() if assigned is None else np.array_equal(sent, assigned)
        remembered: ClientState = {}
        if self._untouched:
            payload = Payload((self._dense(None, sent),), difference=True)
        else:
            payload, remembered = self._payload(cohort, trained, i, senders)
        report = Report(float(np.float32(trained.losses[i].mean())), trained.checks, int(trained.resampled[i].sum()))
        pattern = None if same else sent
        reply = ReplyMessage(self.run, cohort.round, cohort.ids[i], senders.samples[i], pattern, payload, report)
        return reply, remembered

    def _payload(self, cohort: Cohort, trained: Trained, i: int, senders: Senders) -> tuple[Payload, ClientState]:
        sent = trained.pattern[i]
        change = flatten(self.layout, trained.learned.change(i, sent))
        where = np.flatnonzero(self.layout.kept_entries(sent))
        if self.compressor is None:
            return Payload((Dense(change[where]),), difference=True), {}
        state = senders.remembered.get(cohort.ids[i]) or self.compressor.init_client(self.layout.num_weights)
        return self.compressor.compress(
            change[where], where, segments(self.layout, sent), state, cohort.round, cohort.stream(i, "compression")
        )

    def _through_the_wire(self, reply: ReplyMessage, cohort: Cohort, i: int) -> ReplyMessage:
        assigned = _row(cohort, i)
        data = wire.encode_reply(self.layout, reply, assigned)
        return wire.decode_reply(data, self.layout, self.run, cohort.round, cohort.ids[i], assigned)

    def _arrived(self, reply: ReplyMessage, cohort: Cohort, i: int) -> Float32:
        """D^k in full coordinates [N], 0 at entries that were not sent."""
        change = np.zeros(self.layout.num_weights, dtype=np.float32)
        change[_kept(self.layout, _row(cohort, i) if reply.pattern is None else reply.pattern)] = reply.payload.values()
        return change

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
