"""A reference kept in a file: tokens and logits of every replayed stream, as safetensors.

It holds numbers and no code, and is read with the bounds of every checkpoint; nothing is compared.
What is text or bytes, such as the digest of all before it, is held as a number a byte.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stagelink.checkpoint.limits import READ_PIECE_BYTES
from stagelink.checkpoint.safetensors_file import SafetensorsReader, parse_header
from stagelink.checkpoint.safetensors_write import header_of
from stagelink.checkpoint.weight_file import WeightFile
from stagelink.errors import ConfigError
from stagelink.verify import measure
from stagelink.verify.recording import ROW_DTYPES
from stagelink.verify.scenario import FORCED, GREEDY

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from stagelink.checkpoint.safetensors_file import Placed
    from stagelink.verify.recording import Recording

    Floats = npt.NDArray[np.float32]

_MODEL, _MADE, _DIGEST = "model", "made", "digest"
_DIGEST_BYTES = 32
_TEXT_BYTES_MAX = 4096
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
class Made:
    """What computed a stored reference.

    Attributes:
        engine: The backend.
        device: On what, and with which libraries.
        dtype: Of its rows.
    """

    engine: str
    device: str
    dtype: str


@dataclasses.dataclass(frozen=True, slots=True)
class StoredReference:
    """What a file holds.

    Attributes:
        model: SHA-256 of the checkpoint's content.
        prompts: The forced prompts, whose tokens are those of the verification.
        greedy: Drawn tokens of each prompt, where they were recorded.
        made: What computed it.
    """

    model: bytes
    prompts: tuple[Kept, ...]
    greedy: tuple[Kept, ...]
    made: Made


def write_stored(
    path: Path, model: bytes, found: Recording, reference: Mapping[int, Floats], made: Made
) -> None:
    """Keep a recording's tokens and the reference's logits, given by index of the round."""
    told = json.dumps(dataclasses.asdict(made)).encode()[:_TEXT_BYTES_MAX]
    tensors: dict[str, Floats] = {_MODEL: _of_bytes(model), _MADE: _of_bytes(told)}
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
    shapes = {name: one.shape for name, one in tensors.items()}
    digest = hashlib.sha256()
    with path.open("wb") as file:
        header = header_of({**shapes, _DIGEST: (_DIGEST_BYTES,)})
        parts: list[bytes | memoryview] = [header]
        parts += [np.ascontiguousarray(one, "<f4").data for one in tensors.values()]
        for part in parts:
            digest.update(part)
            file.write(part)
        file.write(_of_bytes(digest.digest()).data)


def read_stored(path: str, vocab: int) -> StoredReference:
    """Read a file that `write_stored` made.

    Raises:
        CheckpointError: It is no safetensors file, or damaged.
        ConfigError: reason ``reference`` where it holds something else, or other bytes than were
            written.
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
    model = _bytes_of(path, placed, reader, _MODEL)
    made = _parse_made(path, _bytes_of(path, placed, reader, _MADE))
    greedy = kept(GREEDY)
    if len(greedy) not in (0, len(prompts)):
        raise _refuse(path, "a continuation of every prompt, or of none", f"{len(greedy)}")
    _check_digest(path, placed, _bytes_of(path, placed, reader, _DIGEST))
    return StoredReference(model, prompts, greedy, made)


def _of_bytes(data: bytes) -> Floats:
    return np.frombuffer(data, np.uint8).astype("<f4")


def _bytes_of(
    path: str, placed: Mapping[str, Placed], reader: SafetensorsReader, name: str
) -> bytes:
    """Read what is held as a number a byte."""
    if name not in placed or placed[name].info.nbytes > 4 * _TEXT_BYTES_MAX:
        raise _refuse(path, f"{name} as at most {_TEXT_BYTES_MAX} bytes", "none or more")
    read = reader.read(name).reshape(-1)
    if not ((read >= 0) & (read <= 255) & (read == np.floor(read))).all():
        raise _refuse(path, f"bytes as {name}", "other values")
    return read.astype(np.uint8).tobytes()


def _parse_made(path: str, data: bytes) -> Made:
    """Read what computed the reference; its dtype must be one that has limits."""
    try:
        told = json.loads(data)
        made = Made(**told)
    except (ValueError, TypeError, RecursionError):
        raise _refuse(path, "engine, device and dtype", "something else") from None
    if made.dtype not in ROW_DTYPES or not all(isinstance(one, str) for one in told.values()):
        raise _refuse(path, f"a dtype of {', '.join(ROW_DTYPES)}", repr(made.dtype)[:40])
    return made


def _check_digest(path: str, placed: Mapping[str, Placed], digest: bytes) -> None:
    """Refuse a file whose bytes are not those that were written: it would blame a sound ring."""
    last, before = placed[_DIGEST], hashlib.sha256()
    if last.offset + last.info.nbytes != last.file.size:
        raise _refuse(path, "the digest as the last tensor", "another one behind it")
    with last.file.descriptor() as descriptor:
        for begin in range(0, last.offset, READ_PIECE_BYTES):
            piece = memoryview(bytearray(min(READ_PIECE_BYTES, last.offset - begin)))
            last.file.read_into(descriptor, piece, begin)
            before.update(piece)
    if before.digest() != digest:
        raise _refuse(path, f"the bytes of digest {digest.hex()[:12]}",
                      before.hexdigest()[:12])  # fmt: skip


def _refuse(path: str, expected: str, got: str) -> ConfigError:
    return ConfigError(
        f"{path} is no reference: expected {expected}, got {got}; make one with "
        "stagelink verify --save-reference",
        reason="reference",
    )
