"""What this machine is, put into every result so that figures are never read without it.

It measures nothing.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _processor() -> str:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _commit() -> str | None:
    root = Path(__file__).resolve().parent.parent
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def describe() -> dict[str, Any]:
    """Processor, cores, load, kernel, congestion control and the commit that is measured."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "commit": _commit(),
    }
