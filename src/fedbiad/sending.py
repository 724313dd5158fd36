"""Between a client and the server: what is sent, how many bytes it takes, and what arrives.

In one process the bytes may be skipped for speed: `wired` sends every message through them, to the same result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from fedbiad import compiled, wire
from fedbiad.aggregation import Total, count_holders, count_known
from fedbiad.arrays import ClientState, IntArray, Params, Pattern
from fedbiad.client import Trained
from fedbiad.cohort import Cohort
from fedbiad.compressors.base import Compressor, Room, Segment
from fedbiad.errors import UpdateError, WireError
from fedbiad.increments import Offer, applied
from fedbiad.messages import IncrementsMessage, ReplyMessage, Report, RequestMessage
from fedbiad.network import Network
from fedbiad.payloads import VALUE_BITS, Dense, Float32, Payload
from fedbiad.rows import Layout
from fedbiad.transports.base import Counts

FAILED = "the loss or a weight is not finite"


@dataclass(frozen=True)
class Senders:
    """Of each client of a block how many samples it has, how much it counts, and what its compressor remembers."""

    samples: list[int]
    weights: list[int]
    remembered: Mapping[int, ClientState]
    present: Pattern | None = None
    """Words in each client's own data [clients, words], where clients send no others."""


@dataclass(frozen=True, eq=False)
class Change:
    """What a client learned at the entries of the rows it uploads: trained minus received, and where they stand."""

    delta: Float32
    where: IntArray


@dataclass(frozen=True)
class Arrived:
    """The usable replies of a block as the server has them; arrays [clients], `members` their places in the block."""

    members: IntArray
    pattern: Pattern
    total: Total
    loss: npt.NDArray[np.float64]
    error: npt.NDArray[np.float64] | None
    """||what arrived - what was learned||^2, where a compressor stands between them."""
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
    network: Network | None = None
    """The clients' links, for compressors that look at them."""

    # ------------------------------------------------------------------ down

    def download(self, u: Params, cohort: Cohort) -> tuple[Params, Counts]:
        """U as each client receives it [clients, ...], and what that costs. Rows not assigned arrive as 0 if wired."""
        patterns = [_assigned(cohort, i) for i in range(len(cohort))]
        kept = self._kept_weights(patterns)
        labels = [() if pattern is None else (pattern,) for pattern in patterns]
        encoded = wire.dense_request_sizes(cohort.round, cohort.ids, labels, kept)
        counts = self._counts(VALUE_BITS * kept, [bool(own) for own in labels], encoded)
        if cohort.offer is not None:
            counts = _with_increments(counts, cohort, cohort.offer)
        if not self.wired:
            return {name: value.unsqueeze(0).expand(len(cohort), *value.shape) for name, value in u.items()}, counts
        flat = flatten(self.layout, u)
        received = []
        for i, (client, pattern) in enumerate(zip(cohort.ids, patterns, strict=True)):
            missed, copy = self._missed(cohort.offer, i)
            if missed:
                data = wire.encode_increments(IncrementsMessage(self.run, cohort.round, client, missed))
            else:
                payload = Payload((Dense(flat[_kept(self.layout, pattern)]),), difference=False)
                request = RequestMessage(self.run, cohort.round, client, pattern, payload)
                data = wire.encode_request(self.layout, request)
            received.append(self.receive(data, cohort.round, client, copy))
        return unflatten(self.layout, np.stack(received)), counts

    def receive(self, data: bytes, round_: int, client: int, copy: Float32 | None) -> Float32:
        """U as a client has it after a request [N]: from the message alone, or from its own copy and increments."""
        if not wire.carries_increments(data):
            got = wire.decode_request(data, self.layout, self.run, round_, client)
            full = np.zeros(self.layout.num_weights, dtype=np.float32)
            full[_kept(self.layout, got.pattern)] = got.payload.values()
            return full
        missed = wire.decode_increments(data, self.run, round_, client).increments
        if copy is None:
            raise WireError(f"client {client} has no copy that increments lead on from: it must ask for the model")
        return applied(copy, (wire.decode_increment(one, self.layout) for one in missed))

    def _missed(self, offer: Offer | None, i: int) -> tuple[tuple[bytes, ...], Float32 | None]:
        """What one client is sent of the increments, and its own copy: what those before made of the oldest."""
        if offer is None or offer.oldest is None or not offer.counts[i]:
            return (), None
        count = int(offer.counts[i])
        before = (wire.decode_increment(one, self.layout) for one in offer.increments[:-count])
        return offer.increments[-count:], applied(offer.oldest, before)

    # ------------------------------------------------------------------ up

    def upload(self, cohort: Cohort, trained: Trained, senders: Senders) -> Arrived:
        """What arrives of a trained block, what it costs, and what the clients' compressors remember then."""
        failed = {k: FAILED for k, usable in zip(trained.ids, trained.usable, strict=True) if not usable}
        usable = np.flatnonzero(trained.usable)
        if self.compressor is None and not self.wired:
            return self._bare(cohort, trained, senders, usable, failed)
        members, errors, replies, moved = [], [], [], np.zeros(self.layout.num_weights, dtype=np.float32)
        remembered: dict[int, ClientState] = {}
        for i in usable.tolist():
            try:
                change = self.change(trained, i, senders)
                reply, learned = self.reply(cohort, trained, i, senders, change)
                size = wire.reply_size(self.layout, reply, _row(cohort, i))
                reply = self._through_the_wire(reply, cohort, i) if self.wired else reply
            except (UpdateError, WireError) as error:
                failed[trained.ids[i]] = str(error)
                continue
            if learned:
                remembered[trained.ids[i]] = learned
            members.append(i)
            replies.append((reply, size))
            arrived = self._arrived(reply, cohort, i)
            compiled.accumulate(moved, arrived, senders.weights[i])
            got = arrived if change.where is self._everywhere else arrived[change.where]
            errors.append(compiled.squared_distance(got, change.delta))
        chosen = np.array(members, dtype=np.int64)
        weights, pattern = [senders.weights[i] for i in members], trained.pattern[chosen]
        present = self._told_words([reply for reply, _ in replies])
        holders = count_holders(self.layout.sent, self._sent(pattern, present), weights)
        sums = {name: part[0] for name, part in unflatten(self.layout, moved[None]).items()}
        total = Total(sums, holders, float(sum(weights)))
        return Arrived(
            chosen, pattern, self._with_known(total, present, weights),
            np.array([reply.report.loss for reply, _ in replies], dtype=np.float64),
            np.array(errors, dtype=np.float64) if self._estimates else None,
            self._counts(
                [reply.payload.paper_bits for reply, _ in replies], [reply.pattern is not None for reply, _ in replies],
                [size for _, size in replies], self.layout.num_words,
            ),
            remembered, failed,
        )  # fmt: skip

    def _bare(
        self, cohort: Cohort, trained: Trained, senders: Senders, members: IntArray, failed: dict[int, str]
    ) -> Arrived:
        """The same where what arrives is what was trained, without writing any message."""
        pattern, places = trained.pattern[members], members.tolist()
        present = None if senders.present is None else senders.present[members]
        sent, told = self._sent(pattern, present), _tells(trained.pattern, cohort.assigned)[members]
        kept = self.layout.sent.kept_weights(sent)
        labels: list[wire.Labels] = [(rows,) if tells else () for rows, tells in zip(pattern, told, strict=True)]
        if present is not None:
            labels = [(*rows, words) for rows, words in zip(labels, present, strict=True)]
        encoded = wire.dense_reply_sizes(
            cohort.round, np.array(cohort.ids)[members], np.array(senders.samples)[members], labels, kept,
            trained.checks, trained.resampled[members].sum(1),
        )  # fmt: skip
        weights = [senders.weights[i] for i in places]
        total = trained.learned.total(self.layout.sent, members, sent, weights)
        return Arrived(
            members, pattern, self._with_known(total, present, weights), _losses(trained)[members], None,
            self._counts(VALUE_BITS * kept, told, encoded, self.layout.num_words), {}, failed,
        )  # fmt: skip

    def _sent(self, pattern: Pattern, present: Pattern | None) -> Pattern:
        """The rows of `layout.sent` that clients with these words send [..., rows]."""
        return pattern if present is None else self.layout.sent_rows(pattern, present)

    def _with_known(self, total: Total, present: Pattern | None, weights: list[int]) -> Total:
        """The same sums, and of every word the weight of the clients that have it."""
        return total if present is None else replace(total, known=count_known(self.layout, present, weights))

    def _told_words(self, replies: list[ReplyMessage]) -> Pattern | None:
        """The words that replies tell [replies, words]; None: they are not asked for."""
        if not self.layout.words:
            return None
        told = [reply.present for reply in replies if reply.present is not None]
        return np.stack(told) if told else np.zeros((0, self.layout.num_words), dtype=np.bool_)

    @property
    def _estimates(self) -> bool:
        """Whether what arrives stands for what was learned without being it."""
        return self.compressor is not None and self.compressor.vote_step is None

    def change(self, trained: Trained, i: int, senders: Senders) -> Change:
        """What one client learned in the rows it uploads."""
        sent = self._sent(trained.pattern[i], _words(senders, i))
        learned = flatten(self.layout, trained.learned.change(i, trained.pattern[i]))
        if sent.all():
            return Change(learned, self._everywhere)
        where = np.flatnonzero(self.layout.sent.kept_entries(sent))
        return Change(learned[where], where)

    @cached_property
    def _everywhere(self) -> IntArray:
        return np.arange(self.layout.num_weights)

    def reply(
        self, cohort: Cohort, trained: Trained, i: int, senders: Senders, change: Change
    ) -> tuple[ReplyMessage, ClientState]:
        """The message of one client, and what its compressor remembers then."""
        payload, remembered = self._payload(cohort, trained, i, senders, change)
        reply = ReplyMessage(
            self.run, cohort.round, cohort.ids[i], senders.samples[i], _told(cohort, trained, i), payload,
            _report(trained, i), _words(senders, i),
        )  # fmt: skip
        return reply, remembered

    def _payload(
        self, cohort: Cohort, trained: Trained, i: int, senders: Senders, change: Change
    ) -> tuple[Payload, ClientState]:
        if self.compressor is None:
            return Payload((Dense(change.delta),), difference=True), {}
        state = senders.remembered.get(cohort.ids[i]) or self.compressor.init_client(self.layout.num_weights)
        sent = self._sent(trained.pattern[i], _words(senders, i))
        return self.compressor.for_message(self._room(cohort, trained, i, senders)).compress(
            change.delta, change.where, segments(self.layout.sent, sent), state, cohort.round,
            cohort.stream(i, "compression"),
        )  # fmt: skip

    def _room(self, cohort: Cohort, trained: Trained, i: int, senders: Senders) -> Room:
        """What the compressor of one client may know of its message."""
        client, empty = cohort.ids[i], Payload((Dense(np.zeros(0, dtype=np.float32)),), difference=True)
        bare = ReplyMessage(
            self.run, cohort.round, client, senders.samples[i], _told(cohort, trained, i), empty, _report(trained, i),
            _words(senders, i),
        )  # fmt: skip
        whole, besides = wire.reply_room(self.layout, bare)
        uplink = None if self.network is None else 1.0 / float(self.network.upload_seconds(client, 1, cohort.seed))
        return Room(whole, besides, uplink)

    def _through_the_wire(self, reply: ReplyMessage, cohort: Cohort, i: int) -> ReplyMessage:
        assigned = _row(cohort, i)
        data = wire.encode_reply(self.layout, reply, assigned)
        return wire.decode_reply(data, self.layout, self.run, cohort.round, cohort.ids[i], assigned)

    def _arrived(self, reply: ReplyMessage, cohort: Cohort, i: int) -> Float32:
        """D^k in full coordinates [N], 0 at entries that were not sent."""
        pattern = _row(cohort, i) if reply.pattern is None else reply.pattern
        sent = wire.sent_rows(self.layout, pattern, reply.present)
        if sent is None:
            return reply.payload.values()
        change = np.zeros(self.layout.num_weights, dtype=np.float32)
        change[self.layout.sent.kept_entries(sent)] = reply.payload.values()
        return change

    def _counts(
        self,
        bits: Sequence[int] | IntArray,
        told: Sequence[bool] | Pattern,
        encoded: Sequence[int] | IntArray,
        words: int = 0,
    ) -> Counts:
        """By the paper's count 32 bits a value, 64 bits a position and, where rows or words are told, 1 bit each."""
        labels = -(-words // 8) + -(-self.layout.num_rows // 8) * np.asarray(told, dtype=np.int64)
        return Counts(-(-np.asarray(bits, dtype=np.int64) // 8) + labels, np.asarray(encoded, dtype=np.int64))

    def _kept_weights(self, patterns: list[Pattern | None]) -> IntArray:
        kept = np.full(len(patterns), self.layout.num_weights)
        some = {i: pattern for i, pattern in enumerate(patterns) if pattern is not None}
        if some:
            kept[list(some)] = self.layout.kept_weights(np.stack(list(some.values())))
        return kept


def _with_increments(counts: Counts, cohort: Cohort, offer: Offer) -> Counts:
    """The same, but for clients that are sent increments."""
    paper, encoded = counts.paper.copy(), counts.encoded.copy()
    for i in np.flatnonzero(offer.counts).tolist():
        last = slice(-int(offer.counts[i]), None)
        paper[i] = -(-int(offer.bits[last].sum()) // 8)
        encoded[i] = wire.increments_size(cohort.round, cohort.ids[i], offer.lengths[last].tolist())
    return Counts(paper, encoded)


def _losses(trained: Trained) -> npt.NDArray[np.float64]:
    """The mean loss of each client, as a float32 arrives."""
    means: npt.NDArray[np.float64] = trained.losses.mean(1).astype(np.float32).astype(np.float64)
    return means


def _report(trained: Trained, i: int) -> Report:
    return Report(float(_losses(trained)[i]), trained.checks, int(trained.resampled[i].sum()))


def _told(cohort: Cohort, trained: Trained, i: int) -> Pattern | None:
    """The rows a reply names; None: exactly those assigned."""
    sent = trained.pattern[i]
    return sent if _tells(sent, _row(cohort, i)) else None


def _tells(sent: Pattern, assigned: Pattern | None) -> Pattern:
    """Whether a reply names its rows [...]: if they are others than those assigned [..., rows]."""
    tells: Pattern = (sent != (True if assigned is None else assigned)).any(-1)
    return tells


def _words(senders: Senders, i: int) -> Pattern | None:
    """The words a reply tells; None: they are not asked for."""
    return None if senders.present is None else senders.present[i]


def _assigned(cohort: Cohort, i: int) -> Pattern | None:
    """The rows a request names; None: all."""
    return None if cohort.assigned is None or cohort.assigned[i].all() else cohort.assigned[i]


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
            found.append(Segment(name, slice(start, start + count), len(shape), shape[0] if len(shape) > 1 else 1))
        start += count
    return found


def _row(cohort: Cohort, i: int) -> Pattern | None:
    """The rows one client was sent; None: all."""
    return None if cohort.assigned is None else cohort.assigned[i]


def _kept(layout: Layout, pattern: Pattern | None) -> npt.NDArray[np.bool_] | slice:
    return slice(None) if pattern is None else layout.kept_entries(pattern)
