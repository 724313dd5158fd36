"""Messages as bytes: one versioned format for requests and replies, described byte by byte in docs/wire.md.

    "FB", version, flags | run, round, client | report | pattern | words | parts, plain | range-coded stream | checksum

A request carries U, or the increments of it that its client missed, each with parts and a stream of its own.
The receiver knows the layout, the run and what it asked for; all that a message declares is checked against that, and
against the bytes that are there, before anything is allocated. Nothing is unpickled.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import xxhash

from fedbiad.arrays import IntArray
from fedbiad.coding import Sink, Source, get_pattern, get_payload, pattern_bytes, put_pattern, put_payload
from fedbiad.coding.parts import KeptShapes
from fedbiad.coding.sink import FLOAT, Chunk, varint, varint_size, varint_sizes
from fedbiad.errors import WireError
from fedbiad.messages import IncrementsMessage, ReplyMessage, Report, RequestMessage, Rows
from fedbiad.payloads import Dense, Multiples, Payload
from fedbiad.rows import Layout

MAGIC = b"FB"
VERSION = 2
REPLY, DIFFERENCE, CHECKED, NOISY = 1, 2, 16, 32
PATTERN_SHIFT, WORDS_SHIFT, PATTERN_MODES = 2, 6, 3
"""Flags: bit 0 reply, bit 1 the payload is a difference (a request: increments), bits 2-3 how the pattern is coded (0:
not sent), bits 4 and 5 in a reply: counts of checks, of noise follow, bits 6-7 in a reply: how the client's words are
coded (0: not sent)."""
HEAD = struct.Struct("<2sBBI")
"""How a message begins: magic, version, flags, run."""
CHECKSUM_BYTES = 4
LEAST = HEAD.size + CHECKSUM_BYTES
MOST = 2**32 - 1
"""Rounds, clients, samples and checks are below 2^32."""
MOST_NOISE = 2**63 - 1


def encode_request(layout: Layout, message: RequestMessage) -> bytes:
    """The bytes of a request."""
    return _seal(_request_chunks(layout, message))


def encode_increment(layout: Layout, payload: Payload) -> bytes:
    """The bytes of an increment of U, published once for all clients: length of the coded stream, parts, stream."""
    body = Sink()
    put_payload(body, payload, _kept_shapes(layout, None))
    coded = body.coded()
    return b"".join([varint(len(coded)), *body.plain, coded])


def encode_increments(message: IncrementsMessage) -> bytes:
    """The bytes of a request with the increments that a client missed."""
    head = _head(DIFFERENCE, message.run, message.round, message.client) + varint(len(message.increments))
    return _seal([head, *(part for one in message.increments for part in (varint(len(one)), one))])


def increments_size(round_: int, client: int, lengths: Sequence[int]) -> int:
    """len(encode_increments(...)) for increments of these lengths."""
    told = varint_size(round_) + varint_size(client) + varint_size(len(lengths))
    return LEAST + told + sum(varint_size(length) + length for length in lengths)


def encode_reply(layout: Layout, message: ReplyMessage, assigned: Rows | None = None) -> bytes:
    """The bytes of a reply to a request for the rows `assigned` (None: all)."""
    return _seal(_reply_chunks(layout, message, assigned))


def reply_size(layout: Layout, message: ReplyMessage, assigned: Rows | None = None) -> int:
    """len(encode_reply(...)), without joining the bytes."""
    return _size(_reply_chunks(layout, message, assigned))


def reply_room(layout: Layout, message: ReplyMessage) -> tuple[int, int]:
    """Bytes of FedAvg's reply in the place of this one, and what this one takes beside its parts, whatever they are.

    FedAvg's reply has all weights and tells no words.
    """
    frame = (message.round, message.client, message.samples)
    whole = dense_reply_size(*frame, None, layout.num_weights, message.report)
    empty = dense_reply_size(*frame, message.pattern, 0, message.report, message.present)
    return whole, empty - 2  # without the number of parts and the kind of the one part


def decode_request(
    data: bytes, layout: Layout, run: int, round_: int | None = None, client: int | None = None
) -> RequestMessage:
    """The request in `data`; WireError says why there is none. None: any round or client will do."""
    source, flags, (found_run, found_round, found_client) = _open(data, False, run, round_, client)
    pattern = _pattern(source, layout, flags, None)
    payload = _payload(source, _kept_shapes(layout, pattern), flags)
    if payload.difference or len(payload.parts) != 1 or not isinstance(payload.parts[0], Dense):
        raise WireError("a request must carry the parameters themselves, in one dense part")
    return RequestMessage(found_run, found_round, found_client, pattern, payload)


def carries_increments(data: bytes) -> bool:
    """Whether a request is one of increments, as far as it says so."""
    return data[3:4] == bytes([DIFFERENCE])


def decode_increments(data: bytes, run: int, round_: int | None = None, client: int | None = None) -> IncrementsMessage:
    """The request of increments in `data`; WireError says why there is none. None: any round or client will do."""
    source, flags, (found_run, found_round, found_client) = _open(data, False, run, round_, client)
    if flags != DIFFERENCE:
        raise WireError("increments must be a difference to the whole of U")
    return IncrementsMessage(found_run, found_round, found_client, _increments(source, found_round))


def decode_increment(data: bytes, layout: Layout) -> Payload:
    """The increment in `data`; WireError says why there is none."""
    source = Source(memoryview(data))
    source.split(source.varint("the length of the coded stream", source.left))
    payload = _payload(source, _kept_shapes(layout, None), DIFFERENCE)
    if len(payload.parts) != 1 or not isinstance(payload.parts[0], Multiples):
        raise WireError("an increment must carry multiples of a step, in one part")
    return payload


def decode_reply(
    data: bytes,
    layout: Layout,
    run: int,
    round_: int | None = None,
    client: int | None = None,
    assigned: Rows | None = None,
) -> ReplyMessage:
    """The reply in `data` to a request for the rows `assigned` (None: all); WireError says why there is none."""
    source, flags, (found_run, found_round, found_client) = _open(data, True, run, round_, client)
    samples = source.varint("the number of samples", MOST)
    loss = float(source.float32("the loss"))
    checks = source.varint("the number of checks", MOST, 1) if flags & CHECKED else 0
    resampled = source.varint("the number of resampled patterns", checks) if flags & CHECKED else 0
    weights = source.varint("the number of weights sampled", MOST_NOISE, 1) if flags & NOISY else 0
    drawn = source.varint("the number of noise draws", weights) if flags & NOISY else 0
    pattern = _pattern(source, layout, flags, assigned)
    present = _words(source, layout, flags)
    kept = sent_rows(layout, assigned if pattern is None else pattern, present)
    payload = _payload(source, _kept_shapes(layout.sent, kept), flags)
    if not payload.difference:
        raise WireError("a reply must carry a difference")
    report = Report(loss, checks, resampled, drawn, weights)
    return ReplyMessage(found_run, found_round, found_client, samples, pattern, payload, report, present)


def sent_rows(layout: Layout, pattern: Rows | None, present: Rows | None) -> Rows | None:
    """The rows of `layout.sent` that a message has, by its pattern (None: all rows) and the client's words if told."""
    if present is None:
        return pattern
    return layout.sent_rows(layout.all_rows(1)[0] if pattern is None else pattern, present)


def dense_request_size(round_: int, client: int, pattern: Rows | None, kept: int) -> int:
    """len(encode_request(...)) of a request for `kept` weights, without writing it."""
    return int(dense_request_sizes(round_, (client,), (_labels(pattern),), (kept,))[0])


def dense_request_sizes(round_: int, clients: Counted, labels: Sequence[Labels], kept: Counted) -> IntArray:
    """The same of many clients, each with the patterns it is told, if any."""
    told = [pattern_bytes(*own) if own else 0 for own in labels]
    sizes: IntArray = _FRAME + varint_size(round_) + varint_sizes(np.asarray(clients)) + told + 4 * np.asarray(kept)
    return sizes


def dense_reply_size(
    round_: int,
    client: int,
    samples: int,
    pattern: Rows | None,
    kept: int,
    report: Report,
    present: Rows | None = None,
) -> int:
    """len(encode_reply(...)) of a reply with `kept` weights in one dense part, without writing it."""
    labels = _labels(pattern, present)
    sizes = dense_reply_sizes(round_, (client,), (samples,), (labels,), (kept,), report.checks, (report.resampled,))
    if report.noise_weights:
        sizes += varint_size(report.noise_weights) + varint_size(report.noise_drawn)
    return int(sizes[0])


def dense_reply_sizes(
    round_: int, clients: Counted, samples: Counted, labels: Sequence[Labels], kept: Counted, checks: int,
    resampled: Counted,
) -> IntArray:  # fmt: skip
    """The same of many clients, each with its pattern and its words where it tells them."""
    sizes = dense_request_sizes(round_, clients, labels, kept) + varint_sizes(np.asarray(samples)) + 4
    return sizes + varint_size(checks) + varint_sizes(np.asarray(resampled)) if checks else sizes


Labels = tuple[Rows, ...]
Counted = Sequence[int] | IntArray


def _labels(*told: Rows | None) -> Labels:
    return tuple(rows for rows in told if rows is not None)


_FRAME = LEAST + 3
"""Of a message with one dense part: beside the above the run, the empty coded stream, the parts and their kind."""


# ---------------------------------------------------------------------- writing


def _request_chunks(layout: Layout, message: RequestMessage) -> list[Chunk]:
    if message.pattern is not None:
        _check_labels(message.pattern, layout.num_rows, "a pattern", "rows")
    return _chunks(message, b"", 0, None, _kept_shapes(layout, message.pattern))


def _reply_chunks(layout: Layout, message: ReplyMessage, assigned: Rows | None) -> list[Chunk]:
    report, flags = message.report, REPLY
    told = varint(message.samples) + FLOAT.pack(report.loss)
    if not (report.resampled <= report.checks and report.noise_drawn <= report.noise_weights):
        raise WireError(f"impossible counts: {report}")
    if report.checks:
        flags, told = flags | CHECKED, told + varint(report.checks) + varint(report.resampled)
    if report.noise_weights:
        flags, told = flags | NOISY, told + varint(report.noise_weights) + varint(report.noise_drawn)
    _check_words(layout, message.present is not None)
    if message.pattern is not None:
        _check_labels(message.pattern, layout.num_rows, "a pattern", "rows")
    if message.present is not None:
        _check_labels(message.present, layout.num_words, "a bitmap", "words")
    kept = sent_rows(layout, assigned if message.pattern is None else message.pattern, message.present)
    return _chunks(message, told, flags, message.present, _kept_shapes(layout.sent, kept))


def _check_labels(labels: Rows, wanted: int, what: str, of: str) -> None:
    if labels.shape != (wanted,):
        raise WireError(f"{what} of shape {labels.shape} for {wanted} {of}")


def _chunks(
    message: RequestMessage | ReplyMessage, told: bytes, flags: int, present: Rows | None, shapes: KeptShapes
) -> list[Chunk]:
    """Everything but the checksum, in order; large arrays are not copied."""
    body = Sink()
    if message.pattern is not None:
        flags |= put_pattern(body, message.pattern) << PATTERN_SHIFT
    if present is not None:
        flags |= put_pattern(body, present) << WORDS_SHIFT
    put_payload(body, message.payload, shapes)
    flags |= DIFFERENCE * message.payload.difference
    coded = body.coded()
    head = _head(flags, message.run, message.round, message.client) + told + varint(len(coded))
    return [head, *body.plain, coded]


def _head(flags: int, run: int, round_: int, client: int) -> bytes:
    if not 0 <= run <= MOST:
        raise WireError(f"the run's number {run} does not fit 32 bits")
    return HEAD.pack(MAGIC, VERSION, flags, run) + varint(round_) + varint(client)


def _kept_shapes(layout: Layout, kept: Rows | None) -> KeptShapes:
    return tuple((layout.shapes if kept is None else layout.kept_shapes(kept)).values())


def _seal(chunks: list[Chunk]) -> bytes:
    """The chunks joined, and the checksum over them."""
    content = b"".join(chunks)
    return content + _checksum(content)


def _checksum(content: bytes | memoryview) -> bytes:
    """The lowest bytes of a hash, the lowest first."""
    digest: bytes = xxhash.xxh3_64_digest(content)
    return digest[: -CHECKSUM_BYTES - 1 : -1]


def _size(chunks: list[Chunk]) -> int:
    return sum(map(len, chunks)) + CHECKSUM_BYTES


# ---------------------------------------------------------------------- reading


def _open(
    data: bytes, reply: bool, run: int, round_: int | None, client: int | None
) -> tuple[Source, int, tuple[int, int, int]]:
    """Check that the message is whole, ours and the one expected; a source that stands behind run, round and client."""
    if len(data) < LEAST:
        raise WireError(f"truncated: {len(data)} bytes, a message has at least {LEAST}")
    magic, version, flags, found_run = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise WireError("not a message: it does not begin with FB")
    if version != VERSION:
        raise WireError(f"version {version} of the format; this is version {VERSION}")
    whole = memoryview(data)
    if _checksum(whole[:-CHECKSUM_BYTES]) != data[-CHECKSUM_BYTES:]:
        raise WireError("the checksum does not match: the message is damaged or truncated")
    if bool(flags & REPLY) != reply:
        raise WireError("a request where a reply was expected" if reply else "a reply where a request was expected")
    modes = flags >> PATTERN_SHIFT & PATTERN_MODES, flags >> WORDS_SHIFT
    if PATTERN_MODES in modes or not (reply or flags < CHECKED):
        raise WireError(f"unknown flags {flags:#04x}")
    if found_run != run:
        raise WireError(f"run {found_run:08x}, not {run:08x}")
    source = Source(whole[HEAD.size : -CHECKSUM_BYTES])
    found_round, found_client = source.varint("the round", MOST), source.varint("the client", MOST)
    if round_ is not None and found_round != round_:
        raise WireError(f"round {found_round}, not {round_}")
    if client is not None and found_client != client:
        raise WireError(f"client {found_client}, not {client}")
    return source, flags, (found_run, found_round, found_client)


def _increments(source: Source, round_: int) -> tuple[bytes, ...]:
    """The increments of a request, from U_0 on at most: not yet read, but each as long as it says."""
    found = []
    for _ in range(source.varint("the number of increments", min(round_ - 1, source.left), 1)):
        length = source.varint("the length of an increment", source.left, 1)
        found.append(bytes(source.take(length, "an increment")))
    source.finish()
    return tuple(found)


def _pattern(source: Source, layout: Layout, flags: int, assigned: Rows | None) -> Rows | None:
    """The rows of a message; where the coded stream begins is said before them."""
    source.split(source.varint("the length of the coded stream", source.left))
    mode = flags >> PATTERN_SHIFT & PATTERN_MODES
    if not mode:
        return None
    pattern = get_pattern(source, layout.num_rows, mode)
    if assigned is not None and (pattern & ~assigned).any():
        raise WireError("the pattern holds rows that were not assigned")
    return pattern


def _words(source: Source, layout: Layout, flags: int) -> Rows | None:
    """The words of the client that replies, if they are asked for."""
    mode = flags >> WORDS_SHIFT
    _check_words(layout, mode > 0)
    return get_pattern(source, layout.num_words, mode, "words") if mode else None


def _check_words(layout: Layout, told: bool) -> None:
    if told != bool(layout.words):
        raise WireError("it tells words, which were not asked for" if told else "it does not tell the client's words")


def _payload(source: Source, shapes: KeptShapes, flags: int) -> Payload:
    payload = get_payload(source, shapes, bool(flags & DIFFERENCE))
    source.finish()
    return payload
