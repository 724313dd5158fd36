"""Messages: round trips, exact sizes, every reason for refusing one, and memory."""

from __future__ import annotations

import dataclasses
import re
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import wire_samples as samples
from fedbiad import wire
from fedbiad.coding.sink import varint
from fedbiad.errors import FedbiadError, WireError
from fedbiad.messages import IncrementsMessage, ReplyMessage, Report, RequestMessage
from fedbiad.models import MLP
from fedbiad.payloads import Dense, Half, Levels, Part, Payload, Signs, Sparse, Ternary
from fedbiad.rows import Layout, RowGroup, Slice
from wire_samples import CLIENT, ROUND, RUN, Case, reply_of, reseal

CASES = samples.corpus()
SMALL = Layout({"w": (3, 2), "b": (3,)}, (RowGroup("w", 3, (Slice("w", 0), Slice("b", 0))),))
"""Three rows of two weights and a bias."""
HEAD = b"FB\x02\x31" + RUN.to_bytes(4, "little") + varint(ROUND) + varint(CLIENT)
TOLD = HEAD + varint(60) + struct.pack("<f", 0.75) + bytes([3, 1]) + varint(400) + bytes([20])
"""A reply up to the length of its coded stream."""
ZEROS = Dense(np.zeros(9, dtype=np.float32))


def decode(data: bytes, layout: Layout = SMALL) -> ReplyMessage:
    """Read a reply of the samples' run."""
    return wire.decode_reply(reseal(data), layout, RUN, ROUND, CLIENT)


def body(*parts: bytes, coded: bytes = b"") -> bytes:
    """A reply with these bytes for parts."""
    return TOLD + varint(len(coded)) + b"".join(parts) + coded + bytes(4)


# ---------------------------------------------------------------------- round trips


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_kind_of_message_comes_back(case: Case) -> None:
    message = case.decode(case.data)
    samples.check(case, message)
    if isinstance(message, ReplyMessage):
        assert wire.encode_reply(case.layout, message, case.assigned) == case.data
        assert wire.reply_size(case.layout, message, case.assigned) == len(case.data)
        assert message.report == samples.REPORT
        assert message.samples == 60
    elif isinstance(message, IncrementsMessage):
        assert wire.encode_increments(message) == case.data
        lengths = [len(increment) for increment in message.increments]
        assert wire.increments_size(message.round, message.client, lengths) == len(case.data)
    else:
        assert wire.encode_request(case.layout, message) == case.data


@pytest.mark.parametrize("assigned", [False, True])
@pytest.mark.parametrize("name", samples.parts(100, np.random.default_rng(0)))
def test_content_comes_back_exactly(name: str, assigned: bool) -> None:
    layout = samples.layouts()[0]
    rows = np.arange(layout.num_rows) % 3 > 0 if assigned else None
    kept = layout.num_weights if rows is None else int(layout.kept_weights(rows[None])[0])
    sent = samples.parts(kept, np.random.default_rng(5))[name]
    data = wire.encode_reply(layout, reply_of(sent), rows)
    got = wire.decode_reply(data, layout, RUN, ROUND, CLIENT, rows)
    assert got.pattern is None
    assert got.payload.difference
    for before, after in zip(sent, got.payload.parts, strict=True):
        assert_same(before, after)


def assert_same(before: Part, after: Part) -> None:
    """Every field that is told, bit for bit."""
    assert type(before) is type(after)
    for field in (field for field in dataclasses.fields(before) if field.compare):
        value, found = getattr(before, field.name), getattr(after, field.name)
        if isinstance(value, np.ndarray):
            assert found.dtype == value.dtype
            assert found.tobytes() == value.tobytes()
        else:
            assert found == value
            assert type(found) is type(value)


def test_patterns_come_back_and_decide_what_is_kept() -> None:
    rows = np.array([True, False, True])
    part = Dense(np.arange(6, dtype=np.float32))
    got = decode(wire.encode_reply(SMALL, reply_of((part,), rows)))
    assert got.pattern is not None
    assert got.pattern.tolist() == rows.tolist()
    assert got.payload.values().tolist() == [0, 1, 2, 3, 4, 5]


def test_a_dense_message_costs_its_values_and_a_small_header() -> None:
    layout = MLP(784, (128,), 10).layout("units")
    part = Dense(np.broadcast_to(np.float32(0), layout.num_weights))
    assert wire.reply_size(layout, reply_of((part,))) == 4 * 101_770 + len(TOLD) + 3 + 4
    request = RequestMessage(RUN, 1, 1, None, Payload((part,), difference=False))
    assert len(wire.encode_request(layout, request)) == 4 * 101_770 + 10 + 3 + 4


@pytest.mark.parametrize("held", [0, 1, 37, 64, 127, 128])
@pytest.mark.parametrize("rows", [128, 5000])
def test_sizes_of_dense_messages_without_writing_them(held: int, rows: int) -> None:
    layout = Layout({"w": (rows, 2), "b": (3,)}, (RowGroup("g", rows, (Slice("w", 0),)),))
    stream = np.random.default_rng(held)
    pattern = np.isin(np.arange(rows), stream.choice(rows, held, replace=False))
    for round_, client, samples_, report in [
        (1, 0, 5, Report(0.5)), (300, 90_000, 200, Report(0.5, 130, 7)), (9, 127, 128, Report(0.5, 2, 1, 300, 70_000)),
    ]:  # fmt: skip
        for told in (None, pattern):
            kept = layout.num_weights if told is None else int(layout.kept_weights(told[None])[0])
            dense = Payload((Dense(np.zeros(kept, dtype=np.float32)),), difference=False)
            request = wire.encode_request(layout, RequestMessage(RUN, round_, client, told, dense))
            assert wire.dense_request_size(round_, client, told, kept) == len(request)
            answer = Payload(dense.parts, difference=True)
            reply = wire.encode_reply(layout, ReplyMessage(RUN, round_, client, samples_, told, answer, report))
            assert wire.dense_reply_size(round_, client, samples_, told, kept, report) == len(reply)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_words_come_back_and_decide_what_is_kept(share: float) -> None:
    stream = np.random.default_rng(3)
    for layout in samples.worded():
        present = stream.random(layout.num_words) < share
        for rows in (None, stream.random(layout.num_rows) < 0.5):
            for assigned in (None, np.ones(layout.num_rows, dtype=np.bool_) if rows is None else rows):
                told = rows if assigned is None else None
                sent = layout.sent_rows(layout.all_rows(1)[0] if rows is None else rows, present)
                kept = int(layout.sent.kept_weights(sent[None])[0])
                values = stream.standard_normal(kept).astype(np.float32)
                message = reply_of((Dense(values),), told, present=present)
                data = wire.encode_reply(layout, message, assigned)
                got = wire.decode_reply(data, layout, RUN, ROUND, CLIENT, assigned)
                assert got.present is not None
                assert got.present.tolist() == present.tolist()
                assert got.payload.values().tolist() == values.tolist()
                size = wire.dense_reply_size(ROUND, CLIENT, 60, told, kept, message.report, present)
                assert size == len(data) == wire.reply_size(layout, message, assigned)
                whole = wire.dense_reply_size(ROUND, CLIENT, 60, None, layout.num_weights, message.report)
                assert wire.reply_room(layout, message) == (whole, size - 4 * kept - 2)


def test_words_take_few_bytes() -> None:
    """About the entropy: 300 of 5,000 words in 1,638 bits, 2,000 in 4,855; never more than a bit a word."""
    stream = np.random.default_rng(0)
    for count, bits in ((300, 1638), (2000, 4855), (5000, 0)):
        present = np.isin(np.arange(5000), stream.choice(5000, count, replace=False))
        own = wire.dense_reply_size(1, 1, 60, None, 0, Report(0.5), present)
        assert bits / 8 - 3 < own - wire.dense_reply_size(1, 1, 60, None, 0, Report(0.5)) < bits / 8 + 5


def test_words_that_cannot_be() -> None:
    layout = samples.worded()[0]
    plain = Layout(layout.shapes, layout.groups)
    present = np.arange(70) < 1
    told = wire.encode_reply(layout, reply_of((Dense(np.zeros(6, np.float32)),), present=present))
    with pytest.raises(WireError, match="tells words, which were not asked for"):
        wire.decode_reply(told, plain, RUN, ROUND, CLIENT)
    silent = wire.encode_reply(plain, reply_of((Dense(np.zeros(282, np.float32)),)))
    with pytest.raises(WireError, match="does not tell the client's words"):
        wire.decode_reply(silent, layout, RUN, ROUND, CLIENT)
    with pytest.raises(WireError, match="does not tell the client's words"):
        wire.encode_reply(layout, reply_of((Dense(np.zeros(282, np.float32)),)))
    with pytest.raises(WireError, match=r"a bitmap of shape \(69,\) for 70 words"):
        wire.encode_reply(layout, reply_of((Dense(np.zeros(6, np.float32)),), present=present[:-1]))
    with pytest.raises(WireError, match="the payload has 7 entries, the rows of the message keep 6"):
        wire.encode_reply(layout, reply_of((Dense(np.zeros(7, np.float32)),), present=present))


@pytest.mark.parametrize(
    ("mode", "bitmap", "reason"),
    [
        (1, b"\xff" * 9, "names words that do not exist"),  # 72 bits for 70 words
        (2, varint(71) + bytes(99), "the number of words held is 71, not within 0 .. 70"),
        (2, varint(1) + bytes([70]), "is not one of a pattern"),
        (1, b"\x01", "truncated"),
    ],
)
def test_bitmaps_that_cannot_be(mode: int, bitmap: bytes, reason: str) -> None:
    data = TOLD[:3] + bytes([TOLD[3] | mode << 6]) + TOLD[4:] + varint(0) + bitmap
    with pytest.raises(WireError, match=reason):
        decode(data + bytes(4), samples.worded()[0])


def test_a_reply_must_carry_a_difference() -> None:
    with pytest.raises(WireError, match="a reply must carry a difference"):
        decode(wire.encode_reply(SMALL, reply_of((ZEROS,), difference=False)))


def test_a_receiver_may_take_any_round_and_client() -> None:
    data = wire.encode_request(SMALL, RequestMessage(RUN, 9, 5, None, Payload((ZEROS,), difference=False)))
    got = wire.decode_request(data, SMALL, RUN)
    assert (got.round, got.client) == (9, 5)


def test_the_example_of_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
    [block] = re.findall(r"```hex\n(.*?)```", text, re.DOTALL)
    data = bytes.fromhex("".join(line.split("|")[0] for line in block.splitlines()))
    ternary = Ternary(9, np.array([1, 7]), np.array([False, True]), np.float32(0.5))
    report = Report(1.0, checks=2, resampled=1)
    message = ReplyMessage(0x12345678, 3, 300, 60, None, Payload((ternary,), difference=True), report)
    assert wire.encode_reply(SMALL, message).hex(" ") == data.hex(" ")
    assert wire.decode_reply(data, SMALL, 0x12345678, 3, 300).report == report


# ---------------------------------------------------------------------- refused

SHORT = wire.encode_reply(SMALL, reply_of((Ternary(9, np.array([1, 7]), np.array([True, False]), np.float32(1)),)))


def test_truncated_at_every_byte() -> None:
    for case in CASES:
        for length in range(0, len(case.data), max(len(case.data) // 60, 1)):
            with pytest.raises(WireError):
                case.decode(case.data[:length])
    for length in range(len(SHORT)):
        with pytest.raises(WireError, match="truncated"):
            wire.decode_reply(SHORT[:length], SMALL, RUN, ROUND, CLIENT)
        if length > 12:  # with a checksum that fits
            with pytest.raises(WireError):
                decode(SHORT[:length])


def test_every_single_bit_flipped() -> None:
    for bit in range(8 * len(SHORT)):
        flipped = bytearray(SHORT)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError, match=r"checksum|begin with FB|version"):
            wire.decode_reply(bytes(flipped), SMALL, RUN, ROUND, CLIENT)


def test_refusals_are_errors_of_ours() -> None:
    assert issubclass(WireError, FedbiadError)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run": RUN + 1}, "run 1234abce, not 1234abcd"),
        ({"round": ROUND + 1}, "round 8, not 7"),
        ({"client": CLIENT + 1}, "client 301, not 300"),
    ],
)
def test_another_run_round_or_client(change: dict[str, int], reason: str) -> None:
    other = replace(reply_of((ZEROS,)), **change)  # type: ignore[arg-type]
    with pytest.raises(WireError, match=reason):
        decode(wire.encode_reply(SMALL, other))


def test_requests_and_replies_are_not_mixed_up() -> None:
    request = wire.encode_request(SMALL, RequestMessage(RUN, ROUND, CLIENT, None, Payload((ZEROS,), difference=False)))
    reply = wire.encode_reply(SMALL, reply_of((ZEROS,)))
    with pytest.raises(WireError, match="a request where a reply was expected"):
        decode(request)
    with pytest.raises(WireError, match="a reply where a request was expected"):
        wire.decode_request(reply, SMALL, RUN, ROUND, CLIENT)
    with pytest.raises(WireError, match="unknown flags 0x10"):
        wire.decode_request(reseal(request[:3] + b"\x10" + request[4:]), SMALL, RUN, ROUND, CLIENT)


BAD_FLOATS = [np.nan, np.inf, -np.inf]
ONE = np.ones(9, dtype=np.float32)


def spoiled(value: float) -> list[tuple[Part, ...]]:
    """Payloads with one bad value, in every place a float can stand."""
    bad, number = ONE.copy(), np.float32(value)
    bad[4] = number
    where, some = np.array([1, 4]), np.array([True, False])
    return [
        (Dense(bad),), (Half(bad.astype(np.float16)),), (Sparse(9, where, bad[where]),),
        (Ternary(9, where, some, number),), (Signs(bad > 0, number),), (Levels(np.ones(9, dtype=np.int16), 3, number),),
    ]  # fmt: skip


@pytest.mark.parametrize("value", BAD_FLOATS)
def test_values_that_are_not_finite(value: float) -> None:
    for parts in spoiled(value):
        with pytest.raises(WireError, match="NaN or infinite"):
            decode(wire.encode_reply(SMALL, reply_of(parts)))
    with pytest.raises(WireError, match="the loss holds NaN or infinite"):
        decode(wire.encode_reply(SMALL, replace(reply_of((ZEROS,)), report=Report(value))))


def test_values_that_become_infinite() -> None:
    levels = Levels(np.full(9, 100, dtype=np.int16), 127, np.float32(3e38))
    with pytest.raises(WireError, match="infinite values"):
        decode(wire.encode_reply(SMALL, reply_of((levels,))))


F0, F1 = bytes(4), struct.pack("<f", 1)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"XB" + SHORT[2:], "does not begin with FB"),
        (b"FB\x01" + SHORT[3:], "version 1 of the format; this is version 2"),
        (SHORT[:3] + b"\x3d" + SHORT[4:], "unknown flags 0x3d"),
        (SHORT[:3] + b"\xf1" + SHORT[4:], "unknown flags 0xf1"),
        (SHORT[:3] + b"\x71" + SHORT[4:], "it tells words, which were not asked for"),
        (body(bytes([0, 0]), bytes(36), b"!"), "1 bytes too many"),
        (body(bytes([0, 0]), bytes(35)), "truncated: a dense part takes 36 bytes, 35 are left"),
        (body(bytes([0, 7]), bytes(36)), "unknown kind of part 0x07"),
        (body(bytes([0, 8]), bytes(36)), "unknown kind of part 0x08"),  # a dense part that claims to be coded
        (body(varint(8), bytes(99)), "the number of parts is 8, not within 0 .. 7"),
        (body(varint(2**60), bytes(99)), "the number of parts is"),
        (body(bytes([1, 0]), varint(10), bytes(99)), "the size of a part is 10, not within 0 .. 9"),
        (body(bytes([1, 0]), varint(2**62), bytes(99)), "the size of a part is"),
        (body(bytes([0, 2]), varint(10), bytes(99)), "the number of positions is 10, not within 0 .. 9"),
        (body(bytes([0, 2]), varint(2), bytes(6)), "the number of positions is 2, not within 0 .. 1"),  # no values
        (body(bytes([0, 3]), F1, varint(2**40), bytes(99)), "the number of positions is"),
        (body(bytes([0, 11]), F1, varint(7), bytes(99)), "the number of positions is 7, not within 0 .. 6"),
        (body(bytes([0, 11]), F1, bytes([2, 3]), bytes(99)), "the number of rows is 3, not within 0 .. 2"),
        (body(bytes([0, 11]), F1, bytes([4, 1, 0]), bytes(9)), "a row has more positions than columns"),
        (body(bytes([0, 3]), struct.pack("<f", -1), varint(0)), "a magnitude is negative"),
        (body(bytes([0, 4]), b"\xff\xff"), "followed by bits that mean nothing"),
        (body(bytes([0, 5]), varint(0), F1, bytes(9)), "the number of steps is 0, not within 1 .. 32767"),
        (body(bytes([0, 5]), varint(2), F1, bytes([3] * 9)), "a level lies outside -2 .. 2"),
        (body(bytes([0, 13]), varint(2), F1, varint(5)), "the greatest level is 5, not within 0 .. 4"),
        (body(bytes([0, 3]), F1, varint(2), b"\x01", coded=b"\xff\xff\xff\xff\xff"), "the coded stream|past the end"),
        (body(bytes([0, 3]), F1, varint(0), coded=b"\x01"), "not the one its content is coded as"),
        (TOLD + varint(99) + bytes(20), "the length of the coded stream is 99"),
        (HEAD + varint(60) + F0 + bytes([3, 4]) + bytes(20), "resampled patterns is 4, not within 0 .. 3"),
        (HEAD + varint(60) + F0 + bytes([3, 1, 5, 6]) + bytes(20), "noise draws is 6, not within 0 .. 5"),
        (HEAD + varint(60) + F0 + bytes([0, 0]) + bytes(20), "the number of checks is 0, not within 1"),
        (HEAD + varint(2**40) + bytes(20), "the number of samples is"),
        (HEAD + b"\xbc\x00" + bytes(20), "not written in the fewest bytes"),
    ],
)  # fmt: skip
def test_what_cannot_be(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode(data)


@pytest.mark.parametrize(
    ("flags", "pattern", "reason"),
    [
        (0x35, b"\x08", "names rows that do not exist"),
        (0x39, b"\x04\x00", "the number of rows held is 4, not within 0 .. 3"),
        (0x39, b"\x02\x03", "not one of a pattern"),
        (0x35, b"\x06", "rows that were not assigned"),
        (0x39, b"\x01\x01", "rows that were not assigned"),
    ],
)
def test_patterns_that_cannot_be(flags: int, pattern: bytes, reason: str) -> None:
    data = TOLD[:3] + bytes([flags]) + TOLD[4:] + varint(0) + pattern + bytes([0, 0]) + bytes(28)
    with pytest.raises(WireError, match=reason):
        wire.decode_reply(reseal(data), SMALL, RUN, ROUND, CLIENT, np.array([True, False, True]))


def test_requests_carry_parameters_only() -> None:
    payloads = [
        Payload((ZEROS,), difference=True), Payload((Signs(ONE > 0),), difference=False),
        Payload((Dense(ONE[:4]), Dense(ONE[4:])), difference=False),
    ]  # fmt: skip
    for payload in payloads:
        data = wire.encode_request(SMALL, RequestMessage(RUN, ROUND, CLIENT, None, payload))
        with pytest.raises(WireError, match="one dense part"):
            wire.decode_request(data, SMALL, RUN, ROUND, CLIENT)


def test_messages_that_do_not_fit_are_not_written() -> None:
    with pytest.raises(WireError, match="the payload has 9 entries, the rows of the message keep 6"):
        wire.encode_reply(SMALL, reply_of((ZEROS,)), np.array([True, False, True]))
    with pytest.raises(WireError, match=r"a pattern of shape \(2,\) for 3 rows"):
        wire.encode_reply(SMALL, reply_of((ZEROS,), np.array([True, True])))
    with pytest.raises(WireError, match="does not fit 32 bits"):
        wire.encode_reply(SMALL, replace(reply_of((ZEROS,)), run=2**32))
    with pytest.raises(WireError, match="impossible counts"):
        wire.encode_reply(SMALL, replace(reply_of((ZEROS,)), report=Report(0.5, checks=1, resampled=2)))
    with pytest.raises(WireError, match="1 values for 2 positions"):
        wire.encode_reply(SMALL, reply_of((Sparse(9, np.array([1, 4]), ONE[:1]),)))
    with pytest.raises(WireError, match="levels up to 8 of 7 steps"):
        wire.encode_reply(SMALL, reply_of((Levels(np.full(9, -8, dtype=np.int16), 7, np.float32(1)),)))
    with pytest.raises(WireError, match="40000 steps"):
        wire.encode_reply(SMALL, reply_of((Levels(np.zeros(9, dtype=np.int16), 40_000, np.float32(1)),)))


# ---------------------------------------------------------------------- memory


def peak(data: bytes, layout: Layout) -> int:
    """Bytes allocated at most while a reply is read or refused."""
    tracemalloc.start()
    try:
        wire.decode_reply(data, layout, RUN, ROUND, CLIENT)
    except WireError:
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return most


@pytest.mark.parametrize("count", [101_770, 2**31, 2**62])
def test_huge_declared_counts_take_no_memory(count: int) -> None:
    """A refusal takes less than half of the 407 kB that an honest message of this layout holds."""
    layout = MLP(784, (128,), 10).layout("units")
    number = varint(count)
    hostile = [
        TOLD + number + bytes(50), body(number), body(bytes([1, 0]), number), body(bytes([0, 0]), bytes(8)),
        body(bytes([0, 2]), number, bytes(50)), body(bytes([0, 10]), number, bytes(50)),
        body(bytes([0, 26]), number, bytes(50)), body(bytes([0, 3]), F1, number),
        body(bytes([0, 11]), F1, number, number, number), body(bytes([0, 5]), number, F1),
        body(bytes([0, 13]), varint(9), F1, number), body(bytes([0, 12]), number, b"\0"),
    ]  # fmt: skip
    for data in hostile:
        assert peak(reseal(data), layout) < 2 * layout.num_weights


def large(n: int, rng: np.random.Generator) -> dict[str, tuple[int, Part]]:
    """Large parts of every kind over n entries, and the bytes an entry that their content takes."""
    values = rng.standard_normal(n).astype(np.float32)
    half = np.flatnonzero(values > 0)
    return {
        "dense": (4, Dense(values)),
        "half": (4, Half(values.astype(np.float16))),
        "sparse": (12, Sparse(n, np.arange(n), values)),
        "half of them": (12, Sparse(n, half, values[half])),
        "ternary": (12, Ternary(n, half, values[half] > 1, np.float32(1))),
        "signs": (4, Signs(values > 0)),
        "rare signs": (4, Signs(values > 2)),
        "levels": (4, Levels((values * 2).astype(np.int16), 9, np.float32(1))),
    }


@pytest.mark.parametrize("name", large(10, np.random.default_rng(0)))
def test_reading_takes_at_most_twice_the_content(name: str) -> None:
    """The content: 4 bytes a value, or 12 with its position; 50 kB for all else."""
    layout = MLP(784, (128,), 10).layout("units")
    entry, part = large(layout.num_weights, np.random.default_rng(0))[name]
    data = wire.encode_reply(layout, reply_of((part,)))
    assert peak(data, layout) < 2 * entry * layout.num_weights + 50_000
