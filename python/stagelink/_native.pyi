"""Types of the Rust extension: the link, its messages and its buffers.

Errors are the classes of ``stagelink.errors``; every wait lets other Python threads run and ends at
a deadline.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias, final

import numpy as np

__all__ = [
    "ROW_LANE_BYTES",
    "AddressFilter",
    "Borrowed",
    "Description",
    "Listener",
    "Plan",
    "Posted",
    "Ring",
    "RowsBuffer",
    "__version__",
    "boundary_sockets",
    "check_key_file",
    "decode_frame",
    "encode_frame",
    "interface_of",
    "refusal_codes",
    "run_vector",
]

__version__: str

ROW_LANE_BYTES: int
"""Rows of a round that take more bytes than this travel on the bulk lane (docs/protocol.md 6.6)."""

# Anything with a contiguous buffer; the type checker knows the protocol only from Python 3.12 on.
_Bytes: TypeAlias = (
    RowsBuffer | Borrowed | memoryview | bytearray | bytes | np.ndarray[Any, np.dtype[Any]]
)

def refusal_codes() -> dict[str, int]:
    """Every refusal code of docs/protocol.md 9, name to number."""

def boundary_sockets(ring: Ring, /) -> tuple[int, int]:
    """Duplicates of the row lane's sockets, to the next rank and from the previous one.

    Only to be asked for facts, while no thread moves rows; the caller closes them.
    """

def interface_of(address: str) -> str | None:
    """Name of this machine's interface that has the IP address; ``None`` where none has it."""

def check_key_file(path: str) -> None:
    """Raise ``ConfigError`` unless ``path`` may be a key file: 32 bytes, owner, mode, no link."""

def decode_frame(data: bytes) -> dict[str, Any]:
    """Parse one whole frame after the handshake: ``kind`` (name), header fields, and ``value``: the
    payload's fields.

    Only rules that need no state are checked. Raises ``PeerProtocolError`` with the rule's code as
    ``reason``.
    """

def encode_frame(
    kind: str, sequence: int, count: int, payload: bytes, checksum: bool = True
) -> bytes:
    """A header with the right checksums, and the payload.

    ``LocalProtocolError`` for an unknown kind or size.
    """

def run_vector(vector: dict[str, Any], files: dict[str, bytes]) -> str | None:
    """Judge one entry of tests/vectors/manifest.json: the refusal's name, ``None`` for none."""

@final
class Plan:
    """One round's plan (docs/protocol.md 6.7) as columns, one element an entry; immutable."""

    def __new__(
        cls,
        *,
        ids: Sequence[int],
        ops: Sequence[int],
        firsts: Sequence[int],
        rows: Sequence[int],
        accepted: Sequence[int],
        generations: Sequence[int],
        returns: Sequence[int],
        resumes: Sequence[int] | None = None,
        cuts: Sequence[int] | None = None,
        token_ids: Sequence[int] | None = None,
        cache_keys: Sequence[bytes] | None = None,
        tap_sums: bool = False,
    ) -> Plan:
        """Check every stateless rule of section 6.7.

        Raises ``LocalProtocolError`` with the rule's code.
        """

    @staticmethod
    def parse(payload: bytes) -> Plan:
        """Parse a plan frame's payload; raises ``PeerProtocolError``."""

    def encode(self) -> bytes:
        """The payload's bytes."""

    @property
    def ids(self) -> tuple[int, ...]: ...
    @property
    def ops(self) -> tuple[int, ...]: ...
    @property
    def firsts(self) -> tuple[int, ...]: ...
    @property
    def rows(self) -> tuple[int, ...]: ...
    @property
    def accepted(self) -> tuple[int, ...]: ...
    @property
    def resumes(self) -> tuple[int, ...]: ...
    @property
    def generations(self) -> tuple[int, ...]: ...
    @property
    def returns(self) -> tuple[int, ...]:
        """Per entry 1 all, 2 last, 3 none."""

    @property
    def cuts(self) -> tuple[int, ...]: ...
    @property
    def token_ids(self) -> tuple[int, ...] | None: ...
    @property
    def cache_keys(self) -> tuple[bytes, ...] | None: ...
    @property
    def tap_sums(self) -> bool: ...
    @property
    def rows_total(self) -> int: ...
    @property
    def rows_returned(self) -> int: ...
    @property
    def returned_offsets(self) -> tuple[int, ...]:
        """Row offsets in the round of the rows that return, ascending."""

@final
class Description:
    """What a stage says of itself at boot (docs/protocol.md 6.1), without its address.

    Immutable.
    """

    def __new__(
        cls,
        *,
        rank: int,
        world: int,
        first: int,
        end: int,
        layers: int,
        width: int,
        planes: int,
        row_dtype: str,
        kv_dtype: str,
        chunk_rows: int,
        rows_max: int,
        streams_max: int,
        context: int,
        states: int,
        kv_rows: int,
        weight_bytes: int,
        engine_version: str,
        backend: str,
        device: str,
        host: str,
        buffers: int = 16,
        rounds_in_flight_max: int = 1,
        batch_invariant: bool = False,
        keep: bool = True,
        token_ids: bool = False,
    ) -> Description:
        """Check every limit; raises ``LocalProtocolError`` with the rule's code.

        ``batch_invariant``: it was asked for and is promised, on every rank or on none. ``keep``:
        plans may cut a stream's state back. ``token_ids``: plans may carry the token id of every
        row (6.7, block 1).
        """

    @property
    def rank(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def end(self) -> int: ...

@final
class RowsBuffer:
    """Zeroed host memory for rows, 64-byte aligned, a writable buffer of format ``B``."""

    def __new__(cls, size: int) -> RowsBuffer:
        """Allocate ``size`` bytes, at most 1 GiB."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Borrowed:
    """Memory that has no buffer protocol, by its address: a torch tensor's ``data_ptr()``.

    Trusted local use only: nothing checks that the address is mapped. ``owner`` is kept alive as
    long as the link may touch the memory; ``post_*``, ``send_rows`` and the others take it.
    """

    def __new__(cls, address: int, nbytes: int, owner: object) -> Borrowed:
        """Describe ``nbytes`` writable bytes at ``address`` that live as long as ``owner``."""

    @property
    def address(self) -> int: ...
    def __len__(self) -> int: ...

@final
class AddressFilter:
    """Answers a C library's callback ``bool(void *address, bool ask, void *data)`` by address.

    For an address that was added the answer is false, and Python is not asked; for all others it
    is that of the callback ``unknown``, whose ``data`` are null. Trusted local use only: nothing
    checks the callback's address. The filter, and what ``unknown`` points to, must live as long as
    the library may call.
    """

    def __new__(cls, unknown: int) -> AddressFilter:
        """Take the address of the callback that is asked; ``ValueError`` for 0."""

    @property
    def callback(self) -> int: ...
    @property
    def data(self) -> int: ...
    def add(self, address: int) -> None:
        """Answer for an address from now on; also from within the callback that is asked."""

    def clear(self) -> None:
        """Know no address."""

    def __len__(self) -> int: ...

@final
class Posted:
    """A buffer that was handed to the link, from ``post_*`` until its transfer is over.

    The buffer's export is held until then. As a context manager it is over when the block ends:
    a send is waited for, a receive that nobody waited for is cancelled. Dropping a receive whose
    frame has begun ends the ring (``local``); a send that is dropped goes on.
    """

    def ready(self) -> bool:
        """Whether ``wait`` would return at once; no system call. True after a failure too."""

    def wait(self, seconds: float | None = None) -> tuple[int, int]:
        """Wait until the buffer is filled, or the kernel has all of it; the round and its rows.

        The buffer is the caller's again afterwards. Raises the ring's fate, or ``DeadlineError``
        after ``seconds``, which leaves the transfer as it is.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class Listener:
    """A bound listening socket.

    Refuses a wildcard, a foreign or a taken address with ``ConfigError``.
    """

    def __new__(cls, address: str) -> Listener:
        """Bind ``host:port`` or ``[v6]:port``; port 0 lets the kernel choose."""

    @property
    def address(self) -> str:
        """The address that was really bound, ``host:port``."""

@final
class Ring:
    """One rank's end of the ring, from ``join`` to ``close`` or the first failure of any rank."""

    @staticmethod
    def join(
        *,
        listener: Listener,
        lead: str | None,
        key_file: str,
        launch_id: bytes | None,
        fields: Sequence[bytes],
        description: Description,
        join_seconds: float = 30.0,
        keepalive_seconds: float = 2.0,
        silent_intervals: int = 3,
        wait: str = "adaptive",
        checksum: bool = True,
        suite: str = "psk",
    ) -> Ring:
        """Steps 1 to 5 of docs/protocol.md 5: handshakes, descriptions, roster, boundary links.

        Args:
            listener: Used up by the call; closed when the ring is complete.
            lead: Rank 0's address on a follower, ``None`` on rank 0.
            key_file: Path of the 32-byte key.
            launch_id: 16 bytes. On rank 0 ``None`` makes a random one; on a follower ``None``
                learns it.
            fields: The eight field digests of the fingerprint, 32 bytes each.
            description: What this stage is; its rank and world are the link's.
            join_seconds: Absolute limit of the whole call.
            keepalive_seconds: Keep-alive interval, rank 0's is told to all in the open message.
            silent_intervals: Silent intervals that end the ring.
            wait: ``"block"`` sleeps in poll, ``"spin"`` reads again and again, ``"adaptive"``
                learns how long a wait mostly takes, sleeps, and spins through its end.
            checksum: ``False`` on every rank leaves out the payload checksums.
            suite: ``"psk"``, or sealed: ``"aes-128-gcm"``, ``"chacha20-poly1305"``, which have tags
                instead of checksums. The same on every rank.
        """

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def launch_id(self) -> bytes: ...
    @property
    def members(self) -> list[dict[str, Any]]:
        """Per rank: rank, first, end, host, address.

        On rank 0 also backend, device, process, weight_bytes, kv_dtype, batch_invariant, keep.
        """

    def ready(self, *, load_ms: int, bytes_held: int, bytes_read: int, seconds: float) -> None:
        """Tell that this stage is loaded.

        Returns when rank 0 has opened the ring, at most ``seconds`` later.
        """

    @property
    def readies(self) -> list[dict[str, int]]:
        """Rank 0, after ``ready``: per follower rank, load_ms, bytes_held, bytes_read."""

    def progress(
        self, phase: str, *, round: int = 0, busy_limit_seconds: float = 0.0, done: int = 0
    ) -> None:
        """Note what the engine does.

        Every call moves the progress counter. A keep-alive carries it. Raises the ring's fate.
        """

    def send_plan(self, plan: Plan) -> int:
        """Rank 0: admit the plan against the streams, send it to all, return its round number."""

    def receive_plan(self) -> tuple[int, Plan] | None:
        """Follower: the next plan with streams and its round; ``None`` after rank 0's bye."""

    def send_rows(self, round: int, rows: _Bytes) -> None:
        """Send the round's rows to the next rank: header and rows in one vectored write.

        The buffer's first bytes are sent, as many as the plan says; ``LocalProtocolError`` where it
        is too small.
        """

    def receive_rows(self, round: int, rows: _Bytes) -> int:
        """Receive the round's rows from the previous rank into the buffer; return the row count."""

    def exchange(self, round: int, rows_out: _Bytes, rows_in: _Bytes) -> int:
        """``send_rows`` then ``receive_rows`` in one call: one hop of a decode step."""

    @property
    def rounds_in_flight_max(self) -> int:
        """Rounds with rows that may be on the ring at once; on rank 0 the least of all stages'."""

    def post_receive(self, rows: _Bytes) -> Posted:
        """Hand over a writable buffer for the rows of the next round of the bulk lane.

        A background thread fills the posted buffers in order. Each is a credit for the previous
        rank; at most ``buffers`` of the description can be posted at a time, and each must hold
        ``rows_max`` rows (``LocalProtocolError``).
        """

    def post_send(self, round: int, rows: _Bytes) -> Posted:
        """Hand over a round's rows; a background thread sends them when there is a credit.

        Rows of the row lane (at most ``ROW_LANE_BYTES``) are sent by this call itself.
        """

    def fileno(self) -> int:
        """A descriptor that is readable while a transfer is over that ``wait`` was not told of.

        It is readable for ever after the ring's fate. Only to be polled; it is the ring's.
        """

    @property
    def strangers(self) -> str:
        """Who came to the listener during boot and was not let in, counted; empty for nobody."""

    def figures(self) -> dict[str, Any]:
        """Counters since ``join``, per link.

        Bytes and frames sent and received, seconds waited, and ``wait``: how those were spent
        (docs/waiting.md).
        """

    def tell_figures(self, figures: Sequence[int]) -> None:
        """Follower, after rank 0's bye: rounds, rows, compute_us, wait_us, bytes sent, received."""

    @property
    def told_figures(self) -> dict[int, list[int]]:
        """Rank 0, after ``close``: what followers told of their loops, by rank."""

    def fail(self, reason: str, text: str) -> None:
        """End the ring for every rank, this rank being the culprit.

        ``reason`` is a refusal code (``engine``).
        """

    def close(self) -> None:
        """Orderly end: rank 0 says bye to all, a follower answers.

        Does nothing after a failure or twice.
        """
