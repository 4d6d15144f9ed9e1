"""The hand-written types of the extension are those of the extension.

What they mean is said in the stub; here only names and signatures are compared.
"""

from __future__ import annotations

import subprocess
import sys


def test_the_stub_agrees_with_the_extension() -> None:
    command = [sys.executable, "-m", "mypy.stubtest", "stagelink._native"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
