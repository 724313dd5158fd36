"""What the benchmarks share: interleaved repeats, so that a busy spell hits all variants alike, and the machine."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

Work = Callable[[], object]


def interleaved(variants: Mapping[str, Work], repeats: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Seconds of every repeat of every variant, taken in turns."""
    times: dict[str, list[float]] = {label: [] for label in variants}
    for i in range(warm_up + repeats):
        for label, work in variants.items():
            began = time.perf_counter()
            work()
            if i >= warm_up:
                times[label].append(time.perf_counter() - began)
    return times


def spread(seconds: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(seconds), "least": min(seconds), "most": max(seconds)}


def product_speed(repeats: int = 15, rows: int = 600) -> float:
    """Multiplications and additions a second of a matrix product of the size local training has, on one thread."""
    left, right, out = torch.rand(rows, 784), torch.rand(784, 128), torch.empty(rows, 128)

    def work() -> None:
        for _ in range(20):
            torch.mm(left, right, out=out)

    return 20 * 2 * rows * 784 * 128 / min(interleaved({"": work}, repeats)[""])


def machine() -> dict[str, Any]:
    """What the numbers were taken on, and how busy it was."""
    return {"cpu": _cpu(), "cores": os.cpu_count(), "load": os.getloadavg()[0], "torch": torch.__version__,
            "python": platform.python_version()}  # fmt: skip


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()
