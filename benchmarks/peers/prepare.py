"""Write the arrays every peer reads: standardised MNIST dealt to the clients, and the first weights."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import work

from fedbiad.data import load
from fedbiad.files import write_atomically

DONE = "done"
"""A file of this name says that all the others are whole."""


def prepare(directory: Path) -> None:
    """Write the arrays unless they are there already."""
    if (directory / DONE).exists():
        return
    mnist = load("mnist")
    dealt = work.deal(len(mnist.train_targets))
    arrays = {
        "inputs": mnist.train_inputs.flatten(1).numpy()[dealt],
        "targets": mnist.train_targets.numpy()[dealt],
        "test_inputs": mnist.test_inputs.flatten(1).numpy(),
        "test_targets": mnist.test_targets.numpy(),
        **work.first_weights(),
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        write_atomically(directory / f"{name}.npy", _as_npy(array))
    write_atomically(directory / DONE, b"")


def _as_npy(array: npt.NDArray[Any]) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return content.getvalue()
