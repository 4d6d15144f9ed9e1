"""`python -m stagelink` is `stagelink`."""

from __future__ import annotations

import sys

from stagelink.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
