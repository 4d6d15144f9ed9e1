"""What lies in the current folder is not imported by the stages that a command starts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.verify.test_rings import SHORT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ring.rig import Lab


def test_a_stage_imports_nothing_from_the_current_folder(lab: Lab, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "numpy.py").write_text("raise SystemExit('not this one')\n", encoding="utf-8")
    # As the installed command begins: without the current folder.
    command = [sys.executable, "-P", "-m", "stagelink", "verify", str(lab.model), *SHORT]
    ended = subprocess.run(
        [*command, "--engines", "numpy,numpy", "--checks", "repeat"],
        cwd=there, env=lab.environment, capture_output=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["verdict"] == "pass"
