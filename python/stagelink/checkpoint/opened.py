"""An opened checkpoint: its metadata in memory, its tensors read one by one on request.

It parses no file format; a ``TensorReader`` of ``safetensors_file.py`` or ``gguf_tensors.py`` does.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stagelink.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np

    from stagelink.checkpoint.digest import Digests
    from stagelink.checkpoint.gguf_source import GgufSource
    from stagelink.checkpoint.tokenizer import Tokenizer, TokenizerIdentity


T = TypeVar("T")

_NO_TOKENIZER = ("tokenizer_missing", "tokenizer_model", "pre_tokenizer")


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

    def read(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
        """Return the tensor, or rows of it, as float32 in fresh memory aligned to 64 bytes."""
        ...

    def read_stored(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
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
    gguf: Callable[[], GgufSource] | None = None
    affine: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    read_parts: Callable[[str], dict[str, np.ndarray]] | None = None
    read_rounded: Callable[[str, tuple[int, int] | None], np.ndarray] | None = None
    prepare: Callable[[], None] = lambda: None
    release_words: Callable[[], None] = lambda: None
    is_converted: Callable[[], bool] = lambda: False
    floats_refused: str | None = None
    eos_ids: tuple[int, ...] = ()
    tokenizer_identity: Callable[[], TokenizerIdentity] | None = None
    tokenizer_digest: Callable[[Callable[[], bytes]], bytes] = lambda make: make()


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
        floats_refused: Why a GGUF of a known architecture is not read as floats; else ``None``.
        eos_ids: Ends of text that the files name outside the tokenizer; it may know more.
    """

    def __init__(self, path: Path, contents: Contents, digests: Digests) -> None:
        """Take over what the opener of the format found."""
        self.path = path
        self.kind = contents.kind
        self.config: Mapping[str, Any] = MappingProxyType(dict(contents.config))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(dict(contents.tensors))
        self.source_table = contents.source_table
        self.chat_template = contents.chat_template
        self.floats_refused = contents.floats_refused
        self.eos_ids = contents.eos_ids
        self._digests = digests
        self._reader = contents.reader
        self._make_digest = contents.digest
        self._make_tokenizer = contents.tokenizer
        self._digest: bytes | None = None
        self._tokenizer: Tokenizer | None = None
        self._open_gguf = contents.gguf
        self._gguf: GgufSource | None = None
        self._affine = contents.affine
        self._read_parts = contents.read_parts
        self._read_rounded = contents.read_rounded
        self._prepare = contents.prepare
        self._release_words = contents.release_words
        self._identify_tokenizer = contents.tokenizer_identity
        self._tokenizer_digest = contents.tokenizer_digest
        self._is_converted = contents.is_converted

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
        if self._gguf is None and self._open_gguf is not None:
            self._gguf = self._open_gguf()
        return self._gguf

    @property
    def converted(self) -> bool:
        """Whether tensors come from the cached conversion of a GGUF, and it is there."""
        return self._is_converted()

    def prepare(self) -> None:
        """Make what the first `read` would make: a GGUF's conversion into floats, if it is cached.

        For who knows that floats will be read and wants to wait for that now.

        Raises:
            CheckpointError: ``disk_room``, or what reading the source raises.
            DeadlineError: ``lock_deadline``.
        """
        self._prepare()

    @property
    def hashed_bytes(self) -> int:
        """Bytes hashed so far: 0 where every digest that was needed was remembered."""
        return self._digests.hashed_bytes

    def read(
        self, name: str, dtype: str = "float32", *, rows: tuple[int, int] | None = None
    ) -> np.ndarray:
        """Read one tensor, and nothing else, into fresh memory aligned to 64 bytes.

        The peak is the array and a few MiB. F16 and BF16 become float32 exactly; GGUF types by the
        formulas of the ``gguf`` package.

        Args:
            name: Hugging Face name, one of ``tensors``.
            dtype: ``"float32"``; ``"rounded"``, the same for what will be held in 16 bits: MLX's
                affine values are rounded to their scales' dtype twice, as ``mx.dequantize`` does;
                or ``"stored"`` for the bits as they lie in the file: float32, float16, uint16 for
                BF16, and uint8 ``[rows, bytes of a row]`` for a GGUF type.
            rows: Half-open range of the first axis, of a tensor with at least two; only its bytes
                are read (whole heads of a GGUF's q and k).

        Raises:
            CheckpointError: ``truncated``, ``file_changed`` or ``read_failed``.
            ConfigError: No such tensor, rows or dtype.
        """
        self._check_name(name)
        self._check_rows(name, rows)
        if dtype == "rounded" and self._read_rounded is not None:
            return self._read_rounded(name, rows)
        if dtype in ("float32", "rounded"):
            return self._reader.read(name, rows)
        if dtype == "stored":
            return self._reader.read_stored(name, rows)
        message = f"expected dtype float32, rounded or stored, got {dtype!r}; convert what was read"
        raise ConfigError(message, reason="dtype")

    def _check_rows(self, name: str, rows: tuple[int, int] | None) -> None:
        shape = self.tensors[name].shape
        if rows is not None and (len(shape) < 2 or not 0 <= rows[0] <= rows[1] <= shape[0]):
            message = f"expected rows inside {name} {list(shape)}, got {rows}; see its shape"
            raise ConfigError(message, reason="tensor_rows")

    def quantization(self, name: str) -> tuple[int, int] | None:
        """Return bits and group size of a matrix stored by MLX's affine rule, else ``None``.

        Raises:
            ConfigError: No such tensor.
        """
        self._check_name(name)
        return self._affine.get(name)

    def read_parts(self, name: str) -> dict[str, np.ndarray]:
        """Return an affine matrix as stored.

        ``weight`` is uint32, ``scales`` and ``biases`` are float32, float16, or uint16 for BF16.

        Raises:
            CheckpointError: ``truncated``, ``file_changed`` or ``read_failed``.
            ConfigError: No such tensor, or it is not affine.
        """
        if self.quantization(name) is None or self._read_parts is None:
            message = f"expected a tensor in MLX affine form, got {name!r}; read it as floats"
            raise ConfigError(message, reason="dtype")
        return self._read_parts(name)

    def _check_name(self, name: str) -> None:
        if name not in self.tensors:
            message = f"expected a tensor of {self.path}, got {name!r}; see its table"
            raise ConfigError(message, reason="tensor_missing")

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

    def tokenizer_digest(self, make: Callable[[], bytes]) -> bytes:
        """Return the digest that ``make`` computes of the tokenizer; of a GGUF it is remembered.

        A stage that serves no text then makes no tokenizer: with 262144 words that is 2 s of its
        start, and more memory than its layers may need.
        """
        return self._tokenizer_digest(make)

    def release_tokenizer(self) -> None:
        """Let go of the tokenizer and of a GGUF's lists of words, for who needs no more text.

        They are the largest things here: 44 MiB for 128256 words. Asked for again, they are read
        again.
        """
        self._tokenizer = None
        self.release_words()

    def release_encoder(self) -> None:
        """Let go of what only encoding needs of a tokenizer, for who encodes no more text.

        Ids become text as before. Asked to encode again, the tokenizer is loaded again. One that
        was not loaded yet is loaded now, and not beside weights later.
        """
        tokenizer = self.usable_tokenizer()
        if tokenizer is not None:
            tokenizer.release_encoder(self._make_tokenizer)
            # Made again, it read a GGUF's lists.
            self.release_words()

    def release_words(self) -> None:
        """Let go of a GGUF's lists of words: the tokenizer that was made of them has its own.

        Asked for again, they are read again.
        """
        self._release_words()
        if self._gguf is not None:
            self._gguf.release_words()

    def usable_tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer, or ``None`` where the checkpoint has none, or one that is not done.

        Such a checkpoint serves token ids; who asks for text is told why by `tokenizer`.

        Raises:
            CheckpointError: ``tokenizer`` for one that is damaged.
        """
        return _unless_without(self.tokenizer)

    def tokenizer_identity(self) -> TokenizerIdentity | None:
        """Return what the fingerprint says of the tokenizer; ``None`` as for `usable_tokenizer`.

        A GGUF's is computed of its rebuilt tokenizer.json: to load that takes three times the
        memory, and the library.

        Raises:
            CheckpointError: ``tokenizer`` for one that is damaged.
        """
        if self._tokenizer is None and self._identify_tokenizer is not None:
            return _unless_without(self._identify_tokenizer)
        return _unless_without(lambda: self.tokenizer().identity())


def _unless_without(make: Callable[[], T]) -> T | None:
    try:
        return make()
    except CheckpointError as error:
        if error.reason in _NO_TOKENIZER:
            return None
        raise
