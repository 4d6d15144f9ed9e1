"""Property tests of this folder: the same examples every time, however slow the machine is."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("seeded", derandomize=True, deadline=None, max_examples=80)
settings.load_profile("seeded")
