"""An opened checkpoint: its metadata in memory, its tensors read one by one on request.

It parses no file format; a ``TensorReader`` of ``safetensors_file.py`` or ``gguf_tensors.py`` does.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np

    from stagelink.checkpoint.digest import Digests
    from stagelink.checkpoint.gguf_source import GgufSource
    from stagelink.checkpoint.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as it stands in the file.

    Attributes:
        name: Name in the Hugging Face scheme.
        dtype: ``"F32"``, ``"F16"``, ``"BF16"`` or a GGUF type such as ``"Q4_1"``.
        shape: Dimensions in Hugging Face order, rows first.
        nbytes: Bytes in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class TensorReader(Protocol):
    """Reads single tensors of one format; counts the bytes that it took from the disk."""

    @property
    def bytes_read(self) -> int:
        """Tensor bytes read so far."""
        ...

    def read(self, name: str) -> np.ndarray:
        """Return the tensor as float32 in fresh memory aligned to 64 bytes."""
        ...

    def read_stored(self, name: str) -> np.ndarray:
        """Return the tensor's own bits in fresh aligned memory: see ``Checkpoint.read``."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """What a format's opener hands over; the fields are those of ``Checkpoint``."""

    kind: str
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    source_table: tuple[tuple[str, str, tuple[int, ...]], ...]
    chat_template: str | None
    reader: TensorReader
    digest: Callable[[], bytes]
    tokenizer: Callable[[], Tokenizer]
    converted: bool = False


class Checkpoint:
    """A checkpoint whose metadata was checked; no tensor is read until ``read``.

    Attributes:
        path: Folder or file as it was given, resolved only for ``"smollm2"``.
        kind: ``"safetensors"`` or ``"gguf"``.
        config: The model's config, keys as config.json names them; built from a GGUF's metadata.
        tensors: Every tensor by its Hugging Face name.
        source_table: (name, dtype, shape) of every tensor as the source holds it, by name; the same
            whether a GGUF is read directly or through its cached conversion.
        chat_template: Text of the chat template, or ``None``.
        converted: Whether tensors come from the cached conversion of a GGUF.
    """

    def __init__(self, path: Path, contents: Contents, digests: Digests) -> None:
        """Take over what the opener of the format found."""
        self.path = path
        self.kind = contents.kind
        self.config: Mapping[str, Any] = MappingProxyType(dict(contents.config))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(dict(contents.tensors))
        self.source_table = contents.source_table
        self.chat_template = contents.chat_template
        self.converted = contents.converted
        self._digests = digests
        self._reader = contents.reader
        self._make_digest = contents.digest
        self._make_tokenizer = contents.tokenizer
        self._digest: bytes | None = None
        self._tokenizer: Tokenizer | None = None
        self._gguf: GgufSource | None = None

    @property
    def bytes_read(self) -> int:
        """Tensor bytes read so far, as stored; headers, metadata and hashing are not in it."""
        stored = 0 if self._gguf is None else self._gguf.bytes_read
        return self._reader.bytes_read + stored

    @property
    def gguf(self) -> GgufSource | None:
        """The GGUF's own metadata and stored bytes; ``None`` for a folder. Walked when first asked.

        Raises:
            CheckpointError: The file, or another part of it, is damaged.
        """
        if self._gguf is None and self.kind == "gguf":
            # Imported here, since a folder of safetensors needs none of it.
            from stagelink.checkpoint.gguf_source import read_source  # noqa: PLC0415

            self._gguf = read_source(self.path)
        return self._gguf

    @property
    def hashed_bytes(self) -> int:
        """Bytes hashed so far: 0 where every digest that was needed was remembered."""
        return self._digests.hashed_bytes

    def read(self, name: str, dtype: str = "float32") -> np.ndarray:
        """Read one tensor, and nothing else, into fresh memory aligned to 64 bytes.

        The peak is the array and a few MiB. F16 and BF16 become float32 exactly; GGUF types by the
        formulas of the ``gguf`` package.

        Args:
            name: Hugging Face name, one of ``tensors``.
            dtype: ``"float32"``, or ``"stored"`` for the bits as they lie in the file: float32,
                float16, uint16 for BF16, and uint8 ``[rows, bytes of a row]`` for a GGUF type.

        Raises:
            CheckpointError: ``truncated``, ``file_changed`` or ``read_failed``.
            ConfigError: No such tensor or dtype.
        """
        if name not in self.tensors:
            message = f"expected a tensor of {self.path}, got {name!r}; see its table"
            raise ConfigError(message, reason="tensor_missing")
        if dtype == "float32":
            return self._reader.read(name)
        if dtype == "stored":
            return self._reader.read_stored(name)
        message = f"expected dtype float32 or stored, got {dtype!r}; convert what was read"
        raise ConfigError(message, reason="dtype")

    def content_digest(self) -> bytes:
        """Return 32 bytes that stand for the source's content; a remembered digest is used.

        One file: the SHA-256 of its bytes. Several shards: SHA-256 over the canonical JSON of
        ``[[shard name, hex digest], ...]`` in order of name.
        """
        if self._digest is None:
            self._digest = self._make_digest()
        return self._digest

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer; it is loaded at the first call.

        Raises:
            CheckpointError: ``tokenizer_missing``, ``pre_tokenizer`` or ``tokenizer``.
        """
        if self._tokenizer is None:
            self._tokenizer = self._make_tokenizer()
        return self._tokenizer
