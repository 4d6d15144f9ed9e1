"""Gloo as the peer: ``torch.distributed`` send and receive of one tensor of bytes.

Gloo's own thread drives the socket; how it waits is not ours to choose.
"""

from __future__ import annotations

import datetime as dt
import os

import torch
import torch.distributed as dist
from end import begin, go_round


def main() -> None:
    """Go round with one tensor each way."""
    end = begin()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{end.folder / 'gloo-store'}",
        rank=end.rank,
        world_size=2,
        timeout=dt.timedelta(seconds=end.seconds),
    )
    other = 1 - end.rank
    out = torch.frombuffer(bytearray(end.payload), dtype=torch.uint8)
    back = torch.zeros(end.size, dtype=torch.uint8)
    go_round(
        end,
        torch.__version__,
        lambda: dist.send(out, other),
        lambda: dist.recv(back, other),
        lambda: bytes(back.tolist()),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
