"""What a stage and a task are asked to do, as frozen values.

It checks one value against another; what needs the checkpoint is checked where that is open.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from stagelink.errors import ConfigError
from stagelink.request.sampling import Sampling
from stagelink.verify.scenario import Wanted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stagelink.placement.ranges import Ranges

CONTEXT_DEFAULT = 2048
CHUNK_ROWS_DEFAULT = 128
JOIN_SECONDS_DEFAULT = 30.0
# Local stages share few cores while they import frameworks; one that dies is seen at once.
LOCAL_JOIN_SECONDS_DEFAULT = 120.0
BUSY_SECONDS_DEFAULT = 300.0
READY_SECONDS_DEFAULT = 3600.0
MAX_TOKENS_DEFAULT = 256
# The words of --seal, and the suites of docs/protocol.md 4.6 that they stand for.
SUITES = {"aes-128": "aes-128-gcm", "chacha20": "chacha20-poly1305"}


@dataclasses.dataclass(frozen=True, slots=True)
class ModelConfig:
    """The model and the shapes that every rank of a ring must agree on.

    Attributes:
        model: A folder, a .gguf file, or ``smollm2``.
        world: How many stages.
        ranges: Layers of every rank, or ``None`` to cut evenly.
        engines: Engine of every rank, or one for all: names of installed ones, or ``module:Class``.
        devices: Device of every rank, or one for all, as the engines name them.
        dtype: Compute and row dtype.
        context: Most positions of a stream; ``None`` for the model's, at most 2,048.
        streams_max: Streams that can be open at once.
        chunk_rows: Rows of a full prompt chunk.
        cache: Keep a GGUF's conversion in the user's cache folder.
        threads: Compute threads of a stage; ``None`` for what the environment says.
        kv_dtype: dtype of the KV, or ``"auto"``.
        batch_invariant: Whether a stream's bits must not depend on its neighbours or its chunks.
    """

    model: str
    world: int
    ranges: Ranges | None = None
    engines: tuple[str, ...] = ("numpy",)
    devices: tuple[str, ...] = ("auto",)
    dtype: str = "float32"
    context: int | None = None
    streams_max: int = 1
    chunk_rows: int = CHUNK_ROWS_DEFAULT
    cache: bool = True
    threads: int | None = None
    kv_dtype: str = "auto"
    batch_invariant: bool = False

    def engine_of(self, rank: int) -> str:
        """Return the engine of one rank."""
        return self.engines[0 if len(self.engines) == 1 else rank]

    def device_of(self, rank: int) -> str:
        """Return the device of one rank."""
        return self.devices[0 if len(self.devices) == 1 else rank]


@dataclasses.dataclass(frozen=True, slots=True)
class LinkConfig:
    """Where one rank listens and whom it joins; unused where the ring has one stage.

    Attributes:
        rank: This stage's rank.
        listen: Own address, ``host:port``; port 0 lets the kernel choose.
        lead: Rank 0's address; ``None`` on rank 0.
        key_file: The shared key.
        launch_id: 16 bytes, or ``None`` to make it (rank 0) or to learn it (a follower).
        join_seconds: How long the ring may take to come together.
        ready_seconds: How long all stages may take to load.
        busy_seconds: How long one round may compute on a stage without an end.
        wait: ``"adaptive"``, ``"spin"`` or ``"block"``.
        suite: How every link is protected, a value of ``SUITES`` or ``"psk"``; the same on every
            rank.
    """

    rank: int
    listen: str
    lead: str | None
    key_file: str
    launch_id: bytes | None = None
    join_seconds: float = JOIN_SECONDS_DEFAULT
    ready_seconds: float = READY_SECONDS_DEFAULT
    busy_seconds: float = BUSY_SECONDS_DEFAULT
    wait: str = "adaptive"
    suite: str = "psk"


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """What rank 0 does once the ring runs: answer one prompt, or chat on its terminal.

    Attributes:
        prompt: The prompt's text; ``None`` with ``prompt_ids`` or for a chat.
        prompt_ids: The prompt as token ids, used as they are.
        raw: Send ``prompt`` without the chat template.
        max_tokens: Most tokens to draw; ``None`` for what the context has room for.
        sampling: How tokens are drawn.
        ignore_eos: Draw on after an end-of-text token.
        json: Print one JSON object instead of text.
        quiet: Print no progress and no table.
        digest_logits: Keep a SHA-256 of the logits of every drawn token.
    """

    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    raw: bool = False
    max_tokens: int | None = MAX_TOKENS_DEFAULT
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    ignore_eos: bool = False
    json: bool = False
    quiet: bool = False
    digest_logits: bool = False

    @property
    def is_chat(self) -> bool:
        """No prompt was given."""
        return self.prompt is None and self.prompt_ids is None


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """Everything that the ranks of a local launch share; travels in a private file, not in argv.

    Attributes:
        model: The model and the shapes.
        task: What rank 0 does.
        verify: Run a verification's rounds instead of the task, and record what every stage makes.
    """

    model: ModelConfig
    task: Task
    verify: Wanted | None = None

    def write(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read what `write` wrote; ``ConfigError`` ``job`` for anything else."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(_model(data["model"]), _task(data["task"]), _wanted(data["verify"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is no job file: {error}", reason="job") from error


def _model(data: Mapping[str, Any]) -> ModelConfig:
    ranges = data["ranges"]
    read = None if ranges is None else tuple((int(first), int(end)) for first, end in ranges)
    lists = {name: tuple(str(one) for one in data[name]) for name in ("engines", "devices")}
    return ModelConfig(**{**data, "ranges": read, **lists})


def _task(data: Mapping[str, Any]) -> Task:
    ids = data["prompt_ids"]
    read = None if ids is None else tuple(int(one) for one in ids)
    return Task(**{**data, "prompt_ids": read, "sampling": Sampling(**data["sampling"])})


def _wanted(data: Mapping[str, Any] | None) -> Wanted | None:
    if data is None:
        return None
    prompts = tuple(tuple(int(one) for one in prompt) for prompt in data["prompts"])
    return Wanted(**{**data, "prompts": prompts, "checks": tuple(data["checks"])})
