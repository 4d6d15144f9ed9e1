"""The fault table: every fault that a ring must name, in the phases in which it differs.

Rank 1 of three is hit where nothing else is said: it has a neighbour on either side and is no lead.
"""

from __future__ import annotations

import signal

from tests.faults.case import BUSY_SECONDS, Case, rows_overdue, silence, silence_before_open, stall
from tests.faults.faults import (
    KEEP_ALIVE_BYTES,
    PLAN_BYTES,
    ROWS_FRAME_BYTES,
    in_coming_plan,
    in_coming_rows,
    on_boundary,
    on_control,
    signalled,
)

PHASES = ("load", "prompt", "decode", "idle")
BOUNDARY = {"boundary": (1,)}
CONTROL = {"control": (1,)}
# Two rounds are under way, so that two frames follow each other.
TWO_ROUNDS = {**BOUNDARY, "ahead": 2}

KILLED = [
    Case(
        fault=f"rank {rank} gets SIGKILL",
        phase=phase,
        inject=signalled(rank, signal.SIGKILL),
        named=(rank,),
        reason="peer_lost",
        mute=(rank,),
    )
    for rank, phases in ((1, PHASES), (0, PHASES), (2, ("decode",)))
    for phase in phases
]
FROZEN = [
    Case(
        fault=f"rank {rank} gets SIGSTOP",
        phase=phase,
        inject=signalled(rank, signal.SIGSTOP),
        named=(rank,),
        reason="silent",
        # Before the ring is open nobody knows another's interval, so the default one counts.
        found_seconds=silence_before_open if phase == "load" else silence,
        mute=(rank,),
    )
    for rank, phases in ((1, PHASES), (0, ("decode", "idle")))
    for phase in phases
]
WEDGED = [
    Case(
        fault=f"the engine of rank {rank} hangs",
        phase=phase,
        inject=signalled(rank, signal.SIGUSR1),
        named=(rank,),
        reason="stalled",
        found_seconds=stall,
        mute=(rank,),
        settings={"busy": BUSY_SECONDS},
    )
    for rank, phases in ((1, ("load", "prompt", "decode")), (0, ("decode",)))
    for phase in phases
]
LINKS = [
    Case(
        fault="control link reset",
        phase="decode",
        inject=on_control(1, "reset both"),
        named=(0, 1),
        reason="peer_lost",
        settings=CONTROL,
    ),
    Case(
        fault="control link closed in order",
        phase="decode",
        inject=on_control(1, "half_close both"),
        named=(0, 1),
        reason="peer_lost",
        settings=CONTROL,
    ),
    Case(
        fault="control link half open",
        phase="decode",
        inject=on_control(1, "black_hole both"),
        named=(0, 1),
        reason="silent",
        found_seconds=silence,
        settings=CONTROL,
    ),
    Case(
        fault="control link half open",
        phase="idle",
        inject=on_control(1, "black_hole both"),
        named=(0, 1),
        reason="silent",
        found_seconds=silence,
        settings=CONTROL,
    ),
    Case(
        fault="link from rank 0 to rank 1 reset",
        phase="decode",
        inject=on_boundary(1, "reset both"),
        named=(0, 1),
        reason="peer_lost",
        settings=BOUNDARY,
    ),
    Case(
        fault="link from rank 0 to rank 1 closed in order",
        phase="decode",
        inject=on_boundary(1, "half_close both"),
        named=(0, 1),
        reason="peer_lost",
        settings=BOUNDARY,
    ),
    Case(
        fault="link from rank 0 to rank 1 half open",
        phase="decode",
        inject=on_boundary(1, "black_hole both"),
        named=(0,),
        reason="deadline",
        found_seconds=rows_overdue,
        settings=BOUNDARY,
    ),
    Case(
        fault="link from rank 0 to rank 1 goes silent inside a frame",
        phase="decode",
        inject=in_coming_rows(1, "black_hole up {offset}", 5_000),
        named=(0,),
        reason="deadline",
        found_seconds=rows_overdue,
        settings=BOUNDARY,
    ),
]
ROWS = [
    Case(
        fault="one bit of a rows header",
        phase="decode",
        inject=in_coming_rows(1, "flip up {offset} 0x10", 17),
        named=(0,),
        reason="header_checksum",
        settings=BOUNDARY,
    ),
    Case(
        fault="one bit of the rows",
        phase="decode",
        inject=in_coming_rows(1, "flip up {offset} 0x10", 15_000),
        named=(0,),
        reason="payload_checksum",
        settings=BOUNDARY,
    ),
    Case(
        fault="rows frame cut off",
        phase="decode",
        inject=in_coming_rows(1, "truncate up {offset}", 15_000),
        named=(0, 1),
        reason="peer_lost",
        settings=BOUNDARY,
    ),
    Case(
        fault="rows frame twice",
        phase="decode",
        inject=in_coming_rows(1, f"duplicate up {{offset}} {ROWS_FRAME_BYTES}", 0),
        named=(0,),
        reason="rows_round",
        also=("no_credit",),
        settings=BOUNDARY,
    ),
    Case(
        fault="two rows frames change places",
        phase="decode",
        inject=in_coming_rows(1, f"reorder up {{offset}} {ROWS_FRAME_BYTES}", 0),
        named=(0,),
        reason="rows_round",
        settings=TWO_ROUNDS,
    ),
]
PLANS = [
    Case(
        fault="one bit of a plan's header",
        phase="decode",
        inject=in_coming_plan(1, "flip down {offset} 0x10", PLAN_BYTES, 17),
        named=(0,),
        reason="header_checksum",
        settings={**CONTROL, "interval": 2.0, "compute": 0.02},
    ),
    Case(
        fault="one bit of a plan",
        phase="decode",
        inject=in_coming_plan(1, "flip down {offset} 0x10", PLAN_BYTES, 60),
        named=(0,),
        reason="payload_checksum",
        settings={**CONTROL, "interval": 2.0, "compute": 0.02},
    ),
    Case(
        fault="one bit of a keep-alive",
        phase="idle",
        inject=in_coming_plan(1, "flip down {offset} 0x10", KEEP_ALIVE_BYTES, 40),
        named=(0,),
        reason="payload_checksum",
        found_seconds=silence,
        settings=CONTROL,
    ),
    Case(
        fault="plan cut off",
        phase="decode",
        inject=in_coming_plan(1, "truncate down {offset}", PLAN_BYTES, 60),
        named=(0, 1),
        reason="truncated",
        also=("peer_lost",),
        settings={**CONTROL, "interval": 2.0, "compute": 0.02},
    ),
    Case(
        fault="keep-alive twice",
        phase="idle",
        inject=in_coming_plan(
            1, f"duplicate down {{offset}} {KEEP_ALIVE_BYTES}", KEEP_ALIVE_BYTES, 0
        ),
        named=(0,),
        reason="bad_sequence",
        found_seconds=silence,
        settings=CONTROL,
    ),
    Case(
        fault="two keep-alives change places",
        phase="idle",
        inject=in_coming_plan(
            1, f"reorder down {{offset}} {KEEP_ALIVE_BYTES}", KEEP_ALIVE_BYTES, 0
        ),
        named=(0,),
        reason="bad_sequence",
        # Held back until the second is there, which is the sixth from the command on.
        found_seconds=lambda interval: 6 * interval,
        settings=CONTROL,
    ),
]
TABLE = [*KILLED, *FROZEN, *WEDGED, *LINKS, *ROWS, *PLANS]
