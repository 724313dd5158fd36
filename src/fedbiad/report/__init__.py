"""One HTML page about any number of runs; it opens offline and asks the network for nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import metadata, resources
from pathlib import Path
from string import Template

from fedbiad.errors import FedbiadError
from fedbiad.files import write_atomically
from fedbiad.report.content import section_data
from fedbiad.report.runs import Section, find, read, sections
from fedbiad.report.table import section_html

__all__ = ["write_report"]


def write_report(directories: Sequence[Path], out: Path) -> Path:
    """Write the page about the runs in `directories` (run directories, or directories of them) to `out`."""
    if out.is_dir():
        raise FedbiadError(f"{out} is a directory; name a file, e.g. {out / 'report.html'}")
    content = page(sections([read(path) for path in find(directories)]))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, content.encode())
    except OSError as error:
        raise FedbiadError(f"{out} cannot be written: {error.strerror}; choose another -o") from None
    return out


def page(parts: Sequence[Section]) -> str:
    """The whole page: text and tables as HTML, the numbers of the charts as one JSON island, scripts and styles."""
    links = "".join(f'<li><a href="#{part.id}">{escape(part.title)}</a></li>' for part in parts)
    return Template(_asset("page.html")).substitute(
        title=escape("Federated runs: " + ", ".join(dict.fromkeys(part.data for part in parts))),
        jump=f'<nav aria-label="Data sets"><ul>{links}</ul></nav>' if len(parts) > 1 else "",
        sections="\n".join(section_html(part, number) for number, part in enumerate(parts)),
        data=island([section_data(part) for part in parts]),
        version=escape(metadata.version("fedbiad")),
        css=_asset("page.css"),
        plotly=_plotly(),
        script=_asset("page.js") + _asset("charts.js") + _asset("rows.js"),
    )


def island(value: object) -> str:
    """JSON that cannot end the script element it stands in; what is not finite must be gone by now."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _plotly() -> str:
    # only here: its import would slow every other command down
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]  # noqa: PLC0415

    return str(get_plotlyjs())


def _asset(name: str) -> str:
    return (resources.files("fedbiad.report") / name).read_text(encoding="utf-8")
