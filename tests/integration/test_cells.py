"""The runs of a comparison are processes: what one that was killed leaves behind, and what is said about it."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest

from fedbiad import compare
from fedbiad.compare import Cell
from fedbiad.errors import RunError
from fedbiad.plan import load


def test_a_run_ended_by_a_signal_says_so_and_the_rest_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell("fedavg", load("digits", {"rounds": "150", "method": "fedavg"}), tmp_path / "fedavg-seed0")
    launch = compare._launch

    def killed_after_a_round(own: Cell, scratch: Path) -> tuple[subprocess.Popen[bytes], Path]:
        process, log = launch(own, scratch)

        def kill() -> None:
            while not (own.path / "rounds.jsonl").exists():
                time.sleep(0.01)
            process.kill()

        threading.Thread(target=kill).start()
        return process, log

    with monkeypatch.context() as patched:
        patched.setattr(compare, "_launch", killed_after_a_round)
        with pytest.raises(RunError, match=r"ended by SIGKILL \(out of memory\? try fewer --jobs\); the same command"):
            compare.run([cell], 1, lambda *_: None, lambda: False)
    [summary] = compare.run([cell], 1, lambda *_: None, lambda: False)
    assert summary["rounds"] == 150
