"""Makes the modules of bench/ importable by name; they are programs, not a package."""

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "bench"
if str(BENCH) not in sys.path:
    sys.path.append(str(BENCH))
