"""One rank of a ring as a process of its own: joins, serves or idles, and reports as JSON lines.

It asserts nothing; the tests of this folder start it, end it and read what it wrote.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from stagelink import _native
from stagelink.errors import StagelinkError

WIDTH = 5120
FIELDS = [bytes([index]) * 32 for index in range(8)]


def say(event: str, **facts: Any) -> None:
    """Write one line: what happened, and when by the clock that all processes share."""
    print(json.dumps({"event": event, "at": time.monotonic(), **facts}), flush=True)


def facts(rank: int, world: int) -> dict[str, Any]:
    """A stage of ten layers without a model; rows of 20 KiB."""
    return {
        "rank": rank,
        "world": world,
        "first": rank * 10,
        "end": rank * 10 + 10,
        "layers": world * 10,
        "width": WIDTH,
        "planes": 1,
        "row_dtype": "float32",
        "kv_dtype": "float32",
        "chunk_rows": 8,
        "rows_max": 256,
        "streams_max": 2,
        "context": 1 << 20,
        "states": 2,
        "kv_rows": 1 << 22,
        "weight_bytes": 0,
        "engine_version": "test",
        "backend": "none",
        "device": "none",
        "host": f"host{rank}",
        "rounds_in_flight_max": 8,
    }


def join(
    rank: int, world: int, lead: str | None, key_file: str, listener: _native.Listener, **link: Any
) -> _native.Ring:
    """Join with short timers, unless ``link`` says otherwise."""
    settings: dict[str, Any] = {"keepalive_seconds": 0.1, "join_seconds": 20.0}
    return _native.Ring.join(
        listener=listener,
        lead=lead,
        key_file=key_file,
        launch_id=None,
        fields=FIELDS,
        description=_native.Description(**facts(rank, world)),
        **(settings | link),
    )


def ready(ring: _native.Ring) -> None:
    """Tell that the stage is loaded."""
    ring.ready(load_ms=0, bytes_held=0, bytes_read=0, seconds=20)


def follow(ring: _native.Ring) -> None:
    """Send on what comes until bye."""
    rows = _native.RowsBuffer(WIDTH * 4 * 256)
    while (received := ring.receive_plan()) is not None:
        number, plan = received
        if plan.rows_total:
            ring.receive_rows(number, rows)
            ring.send_rows(number, rows)
    ring.close()


def main() -> int:
    """Run one rank: ``stage_process.py RANK WORLD LEAD KEY_FILE MODE``."""
    rank, world, lead, key_file, mode = sys.argv[1:]
    ring = None
    try:
        ring = join(int(rank), int(world), lead, key_file, _native.Listener("127.0.0.1:0"))
        say("joined")
        if mode == "load":
            ring.progress("loading")
            time.sleep(60)
        ready(ring)
        say("ready")
        if mode == "compute":
            say("plan", round=(ring.receive_plan() or (0, None))[0])
            ring.progress("computing", round=1, busy_limit_seconds=60)
            time.sleep(60)
        follow(ring)
        say("closed")
    except StagelinkError as error:
        say(
            "error",
            name=type(error).__name__,
            reason=error.reason,
            rank=error.rank,
            text=str(error),
        )
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        if ring is not None:
            ring.fail("interrupted", "interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
