"""What all tests share."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

# how long an example takes says nothing on a busy machine
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tests run side by side: threads of one would wait for those of another."""
    torch.set_num_threads(1)
