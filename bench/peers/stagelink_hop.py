"""The project's own link as one more peer, so that its rivals are seen beside it in one run.

The measurement itself is that of bench/link.py; this only prints it in the peers' form.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def main() -> None:
    """One run of the link, the checksum off as in the reference."""
    told = json.loads(sys.argv[1])
    signal.alarm(told["seconds"])
    import link_ends  # noqa: PLC0415 - it needs the native extension
    import stagelink  # noqa: PLC0415

    case = link_ends.Case(told["size"], told["wait"], checksum=False, rounds=told["rounds"])
    with tempfile.TemporaryDirectory() as folder:
        times = link_ends.run_link(case, Path(folder)).times_us
    version = getattr(stagelink, "__version__", "unknown")
    print(json.dumps({"version": version, "times_us": times}))


if __name__ == "__main__":
    main()
