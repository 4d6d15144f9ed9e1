"""`python -m stagelink.node` is `stagelink node`."""

from __future__ import annotations

import sys

from stagelink.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["node", *sys.argv[1:]]))
