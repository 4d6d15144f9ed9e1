"""The example of docs/engines.md runs as it stands there."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "engines.md"


def test_the_example_of_the_engines_page_runs(tmp_path: Path) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index("    from pathlib import Path")
    end = next(at for at, line in enumerate(lines) if at > begin and line.startswith("## "))
    code = textwrap.dedent("\n".join(lines[begin:end]))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
