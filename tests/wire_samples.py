"""Messages of every kind with what their receiver knows, ways to damage them, and what holds of all accepted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import xxhash

from fedbiad import wire
from fedbiad.errors import WireError
from fedbiad.messages import IncrementsMessage, ReplyMessage, Report, RequestMessage, Rows
from fedbiad.models import MLP
from fedbiad.payloads import Dense, Half, Levels, Multiples, Part, Payload, Signs, Sparse, Ternary
from fedbiad.rows import Layout, RowGroup, Slice

RUN, ROUND, CLIENT = 0x1234ABCD, 7, 300
REPORT = Report(0.75, 3, 1, 20, 400)


@dataclass(frozen=True)
class Case:
    """A message and what its receiver knows."""

    name: str
    data: bytes
    layout: Layout
    reply: bool
    assigned: Rows | None = None

    def decode(self, data: bytes) -> RequestMessage | ReplyMessage | IncrementsMessage:
        """Read `data` as the receiver of this message would."""
        if self.reply:
            return wire.decode_reply(data, self.layout, RUN, ROUND, CLIENT, self.assigned)
        if wire.carries_increments(data):
            return wire.decode_increments(data, RUN, ROUND, CLIENT)
        return wire.decode_request(data, self.layout, RUN, ROUND, CLIENT)


def layouts() -> tuple[Layout, Layout, Layout]:
    """A small network, the same with bare weight rows, and one with more rows than are numbered exactly."""
    vector = Layout({"w": (5000,), "b": (3,)}, (RowGroup("w", 5000, (Slice("w", 0),)),))
    return MLP(24, (12,), 4).layout("units"), MLP(24, (12,), 4).layout("weight-rows"), vector


def worded() -> tuple[Layout, Layout]:
    """Words that no label drops, and more of them than are numbered exactly, which labels drop as well."""
    words = (Slice("table", 0), Slice("bias", 0))
    few = Layout({"table": (70, 3), "bias": (70,), "free": (2,)}, (RowGroup("c", 3, (Slice("table", 1),)),), words)
    group = RowGroup("w", 5000, (Slice("w", 0),))
    return few, Layout({"w": (5000,), "b": (3,)}, (group,), (Slice("w", 0),))


def parts(kept: int, rng: np.random.Generator) -> dict[str, tuple[Part, ...]]:
    """Payloads of every kind over `kept` entries, in each way of coding."""
    few = np.sort(rng.choice(kept, max(kept // 20, 1), replace=False))
    clustered = np.arange(30)
    values = rng.standard_normal(kept).astype(np.float32)
    half, positive = kept // 2, values > 0
    return {
        "dense": (Dense(values),),
        "half": (Half(values.astype(np.float16)),),
        "sparse": (Sparse(kept, few, values[few]),),
        "sparse, alike": (Sparse(kept, clustered, 1 + values[clustered] ** 2),),
        "ternary": (Ternary(kept, few, positive[few], np.float32(0.25)),),
        "ternary, clustered": (Ternary(kept, clustered, positive[clustered], np.float32(0)),),
        "votes": (Signs(positive),),
        "signs, rare": (Signs(values > 1.5, np.float32(0.5)),),
        "levels": (Levels((values * 2).astype(np.int16), 9, np.float32(3)),),
        "levels, wide": (Levels((values * 9000).astype(np.int16), 32767, np.float32(3)),),
        **{name: (part,) for name, part in multiples(kept, rng).items()},
        "two": (
            Dense(values[:half]),
            Ternary(kept - half, clustered[:9], positive[:9], np.float32(1)),
        ),
    }


def multiples(kept: int, rng: np.random.Generator) -> dict[str, Multiples]:
    """Multiples of a step: none, few, many; with levels of rows, of columns, and signs that tell each other."""
    step, striped = np.float32(0.125), np.zeros((kept // 8 + 1, 8))
    striped[: kept // 16] = rng.exponential(1.5, (kept // 16, 8)) * [1, -1, 0, 0, 4, -4, 0, 0]
    changes = {
        "multiples, none": np.zeros(kept),
        "multiples, few": np.where(rng.random(kept) < 0.03, rng.normal(0, 2, kept), 0),
        "multiples, wide": rng.normal(0, 9000, kept).clip(-30000, 30000),
        "multiples, striped": striped.ravel()[:kept],
    }
    found = {}
    for name, change in changes.items():
        whole = np.rint(change).astype(np.int32)
        where = np.flatnonzero(whole)
        found[name] = Multiples(kept, step, where, whole[where])
    return found


def reply_of(
    payload: tuple[Part, ...], pattern: Rows | None = None, difference: bool = True, present: Rows | None = None
) -> ReplyMessage:
    """A reply that carries these parts."""
    return ReplyMessage(RUN, ROUND, CLIENT, 60, pattern, Payload(payload, difference), REPORT, present)


def corpus(seed: int = 0) -> list[Case]:
    """One message for each way of coding."""
    return list(_corpus(np.random.default_rng(seed)))


def _corpus(rng: np.random.Generator) -> Iterator[Case]:
    units, bare, vector = layouts()
    for layout in (units, bare, vector):
        held = rng.random(layout.num_rows) < 0.8
        few = held & (rng.random(layout.num_rows) < 0.1)
        for rows in (None, held, few):
            kept = layout.num_weights if rows is None else int(layout.kept_weights(rows[None])[0])
            values = rng.standard_normal(kept).astype(np.float32)
            request = RequestMessage(RUN, ROUND, CLIENT, rows, Payload((Dense(values),), False))
            yield Case("request", wire.encode_request(layout, request), layout, False)
            assigned = None if rows is None else held
            data = wire.encode_reply(layout, reply_of((Dense(values),), rows), assigned)
            yield Case("reply", data, layout, True, assigned)
    for assigned in (None, rng.random(units.num_rows) < 0.7):
        kept = units.num_weights if assigned is None else int(units.kept_weights(assigned[None])[0])
        for name, payload in parts(kept, rng).items():
            yield Case(name, wire.encode_reply(units, reply_of(payload), assigned), units, True, assigned)
    yield from _worded_corpus(rng)
    coded = [
        wire.encode_increment(units, Payload((part,), True)) for part in multiples(units.num_weights, rng).values()
    ]
    for missed in (coded[:1], coded[1:2], coded):
        message = IncrementsMessage(RUN, ROUND, CLIENT, tuple(missed))
        yield Case("increments", wire.encode_increments(message), units, False)


def _worded_corpus(rng: np.random.Generator) -> Iterator[Case]:
    """Replies that tell words: packed, numbered or range-coded, with and without a pattern."""
    for layout in worded():
        for share in (0.02, 0.5, 1.0):
            present = rng.random(layout.num_words) < share
            for rows in (None, rng.random(layout.num_rows) < 0.4):
                sent = wire.sent_rows(layout, rows, present)
                assert sent is not None
                kept = int(layout.sent.kept_weights(sent[None])[0])
                values = rng.standard_normal(kept).astype(np.float32)
                many = np.flatnonzero(values > 0.5)
                for payload in (Dense(values), Sparse(kept, many, values[many])):
                    data = wire.encode_reply(layout, reply_of((payload,), rows, present=present))
                    yield Case("words", data, layout, True)


def reseal(data: bytes) -> bytes:
    """The same bytes with the checksum that fits them."""
    return data[:-4] + xxhash.xxh3_64_intdigest(data[:-4]).to_bytes(8, "little")[:4]


def mutate(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """One to four random changes: bits, bytes, lengths, pieces of itself or of another message."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(0, max(len(changed), 1)))
        length = int(rng.integers(1, 9))
        match int(rng.integers(0, 8)):
            case 0 if changed:
                changed[at] ^= 1 << int(rng.integers(0, 8))
            case 1 if changed:
                changed[at] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, int(rng.integers(0, 256))]))
            case 2:
                del changed[at:]
            case 3:
                del changed[at : at + length]
            case 4:
                changed[at:at] = rng.bytes(length)
            case 5:
                changed[at : at + length] = b"\xff" * length
            case 6:
                begin = int(rng.integers(0, len(other)))
                changed[at : at + length] = other[begin : begin + length]
            case _:
                changed[at:] = other[at:]
    return bytes(changed)


def outcome(case: Case, data: bytes) -> str | None:
    """Why the receiver refuses `data`; None: accepted, and then everything promised of a message holds."""
    try:
        message = case.decode(data)
        check(case, message)
    except WireError as error:
        return str(error)
    return None


def check(case: Case, message: RequestMessage | ReplyMessage | IncrementsMessage) -> None:
    """What holds of every accepted message, whoever sent it; increments that cannot be read are refused here."""
    assert (message.run, message.round, message.client) == (RUN, ROUND, CLIENT)
    if isinstance(message, IncrementsMessage):
        for increment in message.increments:
            values = wire.decode_increment(increment, case.layout).values()
            assert values.shape == (case.layout.num_weights,)
            assert np.isfinite(values).all()
        return
    rows = case.assigned if message.pattern is None else message.pattern
    if rows is not None:
        assert rows.shape == (case.layout.num_rows,)
    if case.assigned is not None and message.pattern is not None:
        assert not (message.pattern & ~case.assigned).any()
    layout = case.layout
    if isinstance(message, ReplyMessage):
        assert (message.present is None) == (not layout.words)
        assert message.present is None or message.present.shape == (layout.num_words,)
        rows, layout = wire.sent_rows(layout, rows, message.present), layout.sent
    kept = layout.num_weights if rows is None else int(layout.kept_weights(rows[None])[0])
    values = message.payload.values()
    assert values.shape == (kept,)
    assert values.dtype == np.float32
    assert np.isfinite(values).all()
    for part in message.payload.parts:
        if isinstance(part, Sparse | Ternary | Multiples):
            positions = part.positions
            assert (np.diff(positions) > 0).all()
            assert not len(positions) or (positions[0] >= 0 and positions[-1] < part.size)
        if isinstance(part, Multiples):
            assert part.multiples.all()
        if isinstance(part, Levels):
            assert np.abs(part.levels.astype(int)).max(initial=0) <= part.steps
    if isinstance(message, ReplyMessage):
        assert np.isfinite(message.report.loss)
        assert message.report.resampled <= message.report.checks
        assert message.report.noise_drawn <= message.report.noise_weights
        again = wire.encode_reply(case.layout, message, case.assigned)
    else:
        again = wire.encode_request(case.layout, message)
    same = case.decode(again)
    assert not isinstance(same, IncrementsMessage)
    np.testing.assert_array_equal(same.payload.values(), values)
