"""The ring backend of MLX as the peer: ``mx.distributed`` send and receive on its CPU build.

Its own threads drive the sockets; how they wait is not ours to choose.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version

from end import End, begin, go_round


def join(end: End) -> None:
    """Tell the backend where both ends are; it reads this when it starts."""
    hosts = end.folder / f"hosts-{end.rank}.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in end.ports]), encoding="utf-8")
    os.environ["MLX_HOSTFILE"] = str(hosts)
    os.environ["MLX_RANK"] = str(end.rank)


def main() -> None:
    """Go round with one array each way; every operation is evaluated at once."""
    end = begin()
    join(end)
    import mlx.core as mx  # noqa: PLC0415 - the environment above must come first

    mx.set_default_device(mx.cpu)
    group = mx.distributed.init(strict=True, backend="ring")
    other = 1 - end.rank
    out = mx.full((end.size,), end.payload[0], dtype=mx.uint8)
    mx.eval(out)
    back = out

    def send() -> None:
        mx.eval(mx.distributed.send(out, other, group=group))

    def receive() -> None:
        nonlocal back
        back = mx.distributed.recv((end.size,), mx.uint8, other, group=group)
        mx.eval(back)

    go_round(end, version("mlx"), send, receive, lambda: bytes(memoryview(back)))


if __name__ == "__main__":
    main()
