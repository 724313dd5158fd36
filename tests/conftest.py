"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# how long an example takes says nothing on a busy machine
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
