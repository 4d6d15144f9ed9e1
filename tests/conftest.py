"""What every test starts from: the numpy engine where a test names none.

Which engines are installed here must not change what a test runs.
"""

from __future__ import annotations

import os

os.environ.setdefault("STAGELINK_ENGINE", "numpy")
