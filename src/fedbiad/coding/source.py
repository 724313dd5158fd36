"""Reading the two streams of a message; every count is checked before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedbiad.coding.page import AT, KIND, MAX_VARINT, REASONS, STREAM, reason
from fedbiad.coding.range_coder import NO_WORDS, STATE, Symbols, Table, decode, end_of, new_coder, opened
from fedbiad.coding.sink import FLOAT
from fedbiad.errors import WireError

Read = TypeVar("Read")
UNOPENED = new_coder()
"""Of sources that are not `split`: nothing is decoded with it."""
UNOPENED.setflags(write=False)


class Source:
    """Where a decoder reads: the plain bytes of a message, then its range-coded stream."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0
        self._coded = b""
        self._coder, self._words = UNOPENED, NO_WORDS

    @property
    def left(self) -> int:
        """Plain bytes not yet read."""
        return len(self._data) - self._at

    @property
    def total(self) -> int:
        """Bytes that hold what is not yet read: plain ones, and the whole range-coded stream."""
        return self.left + len(self._coded)

    def split(self, coded: int) -> None:
        """The last `coded` bytes are the range-coded stream."""
        if coded > self.left:
            raise WireError(f"truncated: {coded} bytes of coded stream declared, {self.left} are left")
        cut = len(self._data) - coded
        self._coded, self._data = bytes(self._data[cut:]), self._data[:cut]
        self._coder, self._words = opened(self._coded)

    def take(self, size: int, what: str) -> memoryview:
        """The next plain bytes; refused before anything is allocated if there are fewer."""
        begin, end = self._at, self._at + size
        if end > len(self._data):
            raise WireError(f"truncated: {what} takes {size} bytes, {self.left} are left")
        self._at = end
        return self._data[begin:end]

    def varint(self, what: str, most: int, least: int = 0) -> int:
        """A count within bounds, in the fewest bytes."""
        data, at, value, shift, byte = self._data, self._at, 0, 0, 0x80
        while byte >= 0x80:
            if shift == 7 * MAX_VARINT:
                raise WireError(f"impossible count: {what} has more than {MAX_VARINT} bytes")
            if at == len(data):
                raise WireError(f"truncated: {what} takes 1 bytes, 0 are left")
            byte = data[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
        self._at = at
        if byte == 0 and shift > 7:
            raise WireError(f"{what} is not written in the fewest bytes")
        if not least <= value <= most:
            raise WireError(f"impossible count: {what} is {value}, not within {least} .. {most}")
        return value

    def float32(self, what: str) -> np.float32:
        """One finite float32."""
        (value,) = FLOAT.unpack(self.take(4, what))
        if not math.isfinite(value):
            raise WireError(f"{what} holds NaN or infinite values")
        return np.float32(value)

    def array(self, count: int, dtype: str, what: str) -> npt.NDArray[Any]:
        """An array of numbers, copied; floats must be finite."""
        found = np.frombuffer(self.take(count * np.dtype(dtype).itemsize, what), dtype=dtype)
        values = found.astype(found.dtype.newbyteorder("="))
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise WireError(f"{what} holds NaN or infinite values")
        return values

    def code(self, count: int, starts: Table) -> Symbols:
        """Symbols that share a table."""
        symbols = np.zeros(count, dtype=np.uint16)
        self.run(decode, symbols, starts)
        return symbols

    def run(self, decoder: Callable[..., bool], *arguments: Any) -> None:
        """Have a compiled decoder read."""
        if not decoder(self._coder, self._words, *arguments):
            raise WireError(REASONS[STREAM])

    def read(self, reader: Callable[..., Read], *arguments: Any) -> Read:
        """Have a compiled reader read plain bytes and coded symbols; what cannot be is noted on its `Page`."""
        self._coder[AT] = self._at
        found = reader(self._coder, self._words, np.frombuffer(self._data, dtype=np.uint8), *arguments)
        if self._coder[KIND]:
            raise WireError(reason(self._coder))
        self._at = int(self._coder[AT])
        return found

    def finish(self) -> None:
        """Everything must have been read, and the stream must be the one an encoder would have written."""
        if self.left:
            raise WireError(f"{self.left} bytes too many")
        above, span, read = self._coder[:STATE].tolist()
        state = self._coded[4 * (read - 2) : 4 * read].ljust(8, b"\0")
        point = int.from_bytes(state, "big")
        spare = len(self._coded) > 4 * read or self._coded[-1:] == b"\0"
        if spare or end_of(point - above, span) != point:
            raise WireError("the coded stream is not the one its content is coded as")
