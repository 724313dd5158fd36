"""From the parts of a payload to bytes and back: positions, levels, values and patterns in few bits, exactly."""

from fedbiad.coding.parts import get_payload, put_payload
from fedbiad.coding.patterns import get_pattern, pattern_bytes, put_pattern
from fedbiad.coding.sink import Sink
from fedbiad.coding.source import Source

__all__ = ["Sink", "Source", "get_pattern", "get_payload", "pattern_bytes", "put_pattern", "put_payload"]
