"""What was compiled is kept, until a file changes that it may have been compiled from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fedbiad

PROGRAM = """
import numpy as np
from fedbiad.compiled import uniforms
uniforms(np.zeros(1, np.uint64), 1)
print(sum(uniforms.stats.cache_hits.values()), uniforms.stats.cache_path)
"""


def test_compiled_anew_after_a_change_of_another_file(tmp_path: Path) -> None:
    package = tmp_path / "fedbiad"
    shutil.copytree(Path(fedbiad.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def hits() -> int:
        """How often what was compiled is found, in a run of its own."""
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        )
        count, place = run.stdout.split()
        assert Path(place).is_relative_to(os.environ.get("NUMBA_CACHE_DIR", package))
        return int(count)

    assert [hits(), hits()] == [0, 1]
    with (package / "products.py").open("a") as file:
        file.write("\n# compiled into others\n")
    assert hits() == 0
    with (package / "names.py").open("a") as file:  # has nothing to do with it
        file.write("\n# a note\n")
    assert hits() == 1
