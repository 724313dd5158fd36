"""Reading the two streams of a message; every count is checked before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import FloatArray
from fedbiad.coding.sink import EACH, MAX_VARINT, QUEUE, Sink, Symbols
from fedbiad.errors import WireError


class Source:
    """Where a decoder reads: the plain bytes of a message, then its range-coded stream.

    What was decoded is coded again alongside, so that `finish` accepts one stream for one content only.
    """

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0
        self._coded = memoryview(b"")
        self._decoder: Any = None
        self._again = Sink()

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
        self._coded, self._data = self._data[cut:], self._data[:cut]

    def take(self, size: int, what: str) -> memoryview:
        """The next plain bytes; refused before anything is allocated if there are fewer."""
        if size > self.left:
            raise WireError(f"truncated: {what} takes {size} bytes, {self.left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def varint(self, what: str, most: int, least: int = 0) -> int:
        """A count within bounds, in the fewest bytes."""
        value = shift = 0
        while True:
            (byte,) = self.take(1, what)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift == 7 * MAX_VARINT:
                raise WireError(f"impossible count: {what} has more than {MAX_VARINT} bytes")
        if byte == 0 and shift > 7:
            raise WireError(f"{what} is not written in the fewest bytes")
        if not least <= value <= most:
            raise WireError(f"impossible count: {what} is {value}, not within {least} .. {most}")
        return value

    def float32(self, what: str) -> np.float32:
        """One finite float32."""
        return np.float32(self.array(1, "<f4", what)[0])

    def array(self, count: int, dtype: str, what: str) -> npt.NDArray[Any]:
        """An array of numbers, copied; floats must be finite."""
        found = np.frombuffer(self.take(count * np.dtype(dtype).itemsize, what), dtype=dtype)
        values = found.astype(found.dtype.newbyteorder("="))
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise WireError(f"{what} holds NaN or infinite values")
        return values

    def code(self, count: int, model: Any) -> Symbols:
        """Symbols that share a model."""
        if not count:
            return np.zeros(0, dtype=np.int32)
        symbols = self._decode(lambda decoder: decoder.decode(model, count))
        self._again.code(symbols, model)
        return symbols

    def code_each(self, weights: FloatArray) -> Symbols:
        """Symbols with a row of weights [symbols, alphabet] each."""
        if not len(weights):
            return np.zeros(0, dtype=np.int32)
        symbols = self._decode(lambda decoder: decoder.decode(EACH, weights))
        self._again.code_each(symbols, weights)
        return symbols

    def _decode(self, decode: Callable[[Any], Any]) -> Symbols:
        if self._decoder is None:
            words = np.frombuffer(bytes(self._coded).ljust(-(-max(len(self._coded), 8) // 4) * 4, b"\0"), dtype=">u4")
            self._decoder = QUEUE.RangeDecoder(words.astype(np.uint32))
        try:
            symbols: Symbols = decode(self._decoder)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic inside the coder is no Exception
            raise WireError(f"the coded stream is invalid: {error}") from None
        return symbols

    def finish(self) -> None:
        """Everything must have been read, and the stream must be the one an encoder would have written."""
        if self.left:
            raise WireError(f"{self.left} bytes too many")
        if self._again.coded() != self._coded:
            raise WireError("the coded stream is not the one its content is coded as")
