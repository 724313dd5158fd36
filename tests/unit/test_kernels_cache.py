"""Compiled local training rounds the same whether it was just compiled or comes from the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import hashlib
import numpy as np
from fedbiad.patterns import Swaps
from fedbiad.training import kernels, places
rng = np.random.default_rng(0)
x = rng.standard_normal((20, 30), dtype=np.float32)
p, a = rng.standard_normal((20, 32), dtype=np.float32), np.zeros((20, 32), dtype=np.float32)
w, b = rng.standard_normal((1, 10, 32), dtype=np.float32), np.zeros((1, 10), dtype=np.float32)
visits, losses = rng.integers(0, 20, (1, 200)), np.zeros((1, 20))
units = places.Units(p, a, w)
pattern = np.arange(32)[None] < 16
course = kernels.Course(losses, pattern, np.zeros((1, 32), dtype=np.int64), losses > 0)
swaps = Swaps(3, np.array([2]), np.array([7], dtype=np.uint64))
gram = x @ x.T
kernels.train(units, np.array([gram.ctypes.data]), b, rng.integers(0, 10, 20), np.array([20]), visits,
              np.ones(1, dtype=np.float32), np.zeros((1, 10), dtype=np.bool_), 0.1, 10, swaps, course, True)
assert 0 < course.changed.sum() < 6
print(hashlib.blake2b(b"".join(part.tobytes() for part in (*units, b))).hexdigest())
"""


def test_the_first_run_and_later_ones_agree_to_the_bit(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    compiled, cached = (
        subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert list(tmp_path.rglob("*.nbc"))
    assert compiled.stdout == cached.stdout
