"""A reference kept in a file: tokens and logits of every replayed stream, as safetensors.

It holds numbers and no code, and is read with the bounds of every checkpoint; nothing is compared.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stagelink.checkpoint.safetensors_file import SafetensorsReader, parse_header
from stagelink.checkpoint.safetensors_write import header_of
from stagelink.checkpoint.weight_file import WeightFile
from stagelink.errors import ConfigError
from stagelink.verify import measure
from stagelink.verify.scenario import FORCED, GREEDY

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from stagelink.verify.recording import Recording

    Floats = npt.NDArray[np.float32]

_MODEL = "model"
_STREAMS_MAX = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """One stream of a stored reference: its tokens, and the reference's logits.

    Attributes:
        tokens: Those of a forced prompt, or those that were drawn.
        logits: After each token of a prompt; those that each drawn token was drawn from.
        prompt: What the drawn tokens continue; empty for a forced prompt.
    """

    tokens: tuple[int, ...]
    logits: Floats
    prompt: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class StoredReference:
    """What a file holds.

    Attributes:
        model: SHA-256 of the checkpoint's content.
        prompts: The forced prompts, whose tokens are those of the verification.
        greedy: Drawn tokens of each prompt, where they were recorded.
    """

    model: bytes
    prompts: tuple[Kept, ...]
    greedy: tuple[Kept, ...]


def write_stored(
    path: Path, model: bytes, found: Recording, reference: Mapping[int, Floats]
) -> None:
    """Keep a recording's tokens and the reference's logits, given by index of the round."""
    tensors: dict[str, Floats] = {_MODEL: np.frombuffer(model, np.uint8).astype("<f4")}
    for role in (FORCED, GREEDY):
        for number, stream in enumerate(found.script.streams(role)):
            indexes = measure.rounds_of(found, stream)
            logits = np.concatenate([reference[one] for one in indexes if one in reference])
            tokens = [one for index in indexes for one in found.script.rounds[index].token_ids]
            if role == GREEDY:
                sent, tokens = tokens, measure.drawn(found, stream)
                # The last drawn token was never sent.
                prompt = sent[: len(sent) - len(tokens) + 1]
                tensors[f"{role}.{number}.prompt"] = np.array(prompt, "<f4")
            tensors[f"{role}.{number}.tokens"] = np.array(tokens, "<f4")
            tensors[f"{role}.{number}.logits"] = logits
    with path.open("wb") as file:
        file.write(header_of({name: one.shape for name, one in tensors.items()}))
        for one in tensors.values():
            file.write(np.ascontiguousarray(one, "<f4").data)


def read_stored(path: str, vocab: int) -> StoredReference:
    """Read a file that `write_stored` made.

    Raises:
        CheckpointError: It is no safetensors file, or damaged.
        ConfigError: reason ``reference`` where it holds something else.
    """
    placed = parse_header(WeightFile.find(Path(path)))
    reader = SafetensorsReader(placed)

    def ids(name: str) -> tuple[int, ...]:
        if name not in placed:
            raise _refuse(path, f"a tensor {name}", "none")
        read = reader.read(name)
        if read.ndim != 1 or not read.size:
            raise _refuse(path, f"{name} as at least one token id", f"shape {list(read.shape)}")
        # A value that is not a number is in no range.
        for one in read[~((read >= 0) & (read < vocab) & (read == np.floor(read)))][:1]:
            raise _refuse(path, f"{name} as token ids of 0 to {vocab - 1}", f"{one}")
        return tuple(int(one) for one in read)

    def kept(role: str) -> tuple[Kept, ...]:
        found = []
        for number in range(_STREAMS_MAX):
            names = f"{role}.{number}.tokens", f"{role}.{number}.logits"
            if not all(name in placed for name in names):
                break
            tokens = ids(names[0])
            logits = reader.read(names[1])
            if logits.shape != (len(tokens), vocab):
                shapes = f"{len(tokens)} tokens and {list(logits.shape)}"
                raise _refuse(path, f"n tokens and logits [n, {vocab}]", shapes)
            found.append(
                Kept(tokens, logits, ids(f"{role}.{number}.prompt") if role == GREEDY else ())
            )
        return tuple(found)

    prompts = kept(FORCED)
    if _MODEL not in placed or not prompts:
        raise _refuse(path, "a model and at least one prompt", f"{len(prompts)} prompts")
    digest = reader.read(_MODEL).reshape(-1)
    if not ((digest >= 0) & (digest <= 255)).all():
        raise _refuse(path, "bytes as the model's digest", "other values")
    greedy = kept(GREEDY)
    if len(greedy) not in (0, len(prompts)):
        raise _refuse(path, "a continuation of every prompt, or of none", f"{len(greedy)}")
    return StoredReference(digest.astype(np.uint8).tobytes(), prompts, greedy)


def _refuse(path: str, expected: str, got: str) -> ConfigError:
    return ConfigError(
        f"{path} is no reference: expected {expected}, got {got}; make one with "
        "stagelink verify --save-reference",
        reason="reference",
    )
