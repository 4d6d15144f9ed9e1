"""Keeps a GGUF file's cached conversion: a folder of float32 safetensors, made once.

It is found by the file's SHA-256. It appears under its name complete or not at all, however many
processes make it at once; a folder that is not what its manifest says is made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from stagelink.checkpoint import limits, strict_json
from stagelink.checkpoint.folder import open_folder
from stagelink.checkpoint.opened import Contents, TensorInfo
from stagelink.checkpoint.refusal import refuse
from stagelink.checkpoint.safetensors_write import header_of
from stagelink.checkpoint.shards import SINGLE
from stagelink.checkpoint.tokenizer import Tokenizer
from stagelink.checkpoint.user_cache import locked, private_folder, sync_folder
from stagelink.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from stagelink.checkpoint.digest import Digests
    from stagelink.checkpoint.gguf_tensors import GgufReader
    from stagelink.checkpoint.opened import TensorReader
    from stagelink.checkpoint.tokenizer import SpecialTokens

# Goes up when a conversion of the same file would hold other bytes.
CONVERTER_VERSION = 3
_MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A GGUF file's metadata in the form that a folder of safetensors has.

    Attributes:
        config: Keys as config.json names them.
        tensors: By Hugging Face name, as stored in the GGUF.
        table: ``Checkpoint.source_table``.
        chat_template: Its text, or ``None``.
        tokenizer: Rebuilds the tokenizer: canonical bytes of its JSON and what goes with it.
        reader: Reads the tensors.
        eos_ids: Ends of text, where the tokenizer is not done too.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    table: tuple[tuple[str, str, tuple[int, ...]], ...]
    chat_template: str | None
    tokenizer: Callable[[], tuple[bytes, SpecialTokens]]
    reader: GgufReader
    eos_ids: tuple[int, ...] = ()


class Conversion:
    """The cached conversion of one GGUF, whether it exists yet or not."""

    def __init__(
        self,
        path: Path,
        digest: bytes,
        digests: Digests,
        progress: Callable[[str, int, int], None] | None,
    ) -> None:
        """Say which file, by its path and content digest; nothing is read.

        Raises:
            ConfigError: ``cache_folder``.
        """
        self._path = path
        self._digest = digest
        self._digests = digests
        self._progress = progress
        self._home = private_folder("conversions")
        self._key = f"{digest.hex()}-{CONVERTER_VERSION}"
        self.folder = self._home / self._key

    def find(self) -> Contents | None:
        """Open the conversion, or return ``None`` when there is none that is whole."""
        try:
            manifest = strict_json.read_object(self.folder / _MANIFEST, limits.MANIFEST_BYTES_MAX)
            if not self._is_whole(manifest):
                return None
            table = tuple((name, kind, tuple(shape)) for name, kind, shape in manifest["table"])
            contents = open_folder(self.folder, self._digests)
            refused = manifest.get("tokenizer_refused")
        except (CheckpointError, OSError, KeyError, TypeError, ValueError):
            # Whatever is wrong with a cache, making it again is the answer.
            return None
        return dataclasses.replace(
            contents,
            kind="gguf",
            source_table=table,
            digest=lambda: self._digest,
            is_converted=lambda: True,
            tokenizer=contents.tokenizer if refused is None else lambda: _raise(refused),
        )

    def later(self, source: Source) -> Contents:
        """Return what `find` would, but make the conversion only when a tensor is asked for."""
        reader = _MadeWhenRead(self, source)
        shapes = {name: one.shape for name, one in source.tensors.items()}
        return Contents(
            kind="gguf",
            config=source.config,
            tensors={
                name: TensorInfo(name, "F32", shape, 4 * math.prod(shape))
                for name, shape in shapes.items()
            },
            source_table=source.table,
            chat_template=source.chat_template,
            reader=reader,
            digest=lambda: self._digest,
            tokenizer=lambda: Tokenizer(*source.tokenizer(), self._path, is_canonical=True),
            prepare=reader.prepare,
            is_converted=reader.is_made,
        )

    def make(self, source: Source) -> Contents:
        """Make the conversion, or wait for the process that is making it; then open it.

        Raises:
            CheckpointError: ``disk_room``, or what reading the source raises.
            DeadlineError: ``lock_deadline``.
        """
        lock = self._home / f"{self._key}.lock"
        with locked(lock, limits.CONVERSION_LOCK_SECONDS, lambda: self._tell("wait for", 0, 0)):
            # Who holds the lock is the only one that writes for this key: others are dead.
            for stale in self._home.glob(f"{self._key}.tmp-*"):
                shutil.rmtree(stale, ignore_errors=True)
            found = self.find()
            if found is not None:
                return found
            self._write(source)
            found = self.find()
        if found is None:
            raise refuse(
                "cache",
                self.folder,
                expected="the conversion that was just written",
                got="something else",
                advice="check the disk, or use --no-cache",
            )
        return found

    def _is_whole(self, manifest: Mapping[str, Any]) -> bool:
        if manifest["converter"] != CONVERTER_VERSION or manifest["source"] != self._digest.hex():
            return False
        for name, facts in manifest["files"].items():
            path = self.folder / Path(name).name
            if path.stat().st_size != facts["bytes"]:
                return False
            # The weights are large; their size and their header are checked, not their digest.
            if name != SINGLE:
                data = strict_json.read_bounded(path, limits.TOKENIZER_BYTES_MAX)
                if hashlib.sha256(data).hexdigest() != facts["sha256"]:
                    return False
        return True

    def _write(self, source: Source) -> None:
        header = header_of({name: one.shape for name, one in source.tensors.items()})
        total = sum(4 * math.prod(one.shape) for one in source.tensors.values())
        small, refused = _small(source)
        self._check_room(total + len(header) + sum(len(data) for _, data in small))
        temporary = Path(tempfile.mkdtemp(prefix=f"{self._key}.tmp-", dir=self._home))
        try:
            files = {name: _write_file(temporary / name, data) for name, data in small}
            files[SINGLE] = self._write_weights(temporary / SINGLE, header, source, total)
            manifest: dict[str, Any] = {
                "converter": CONVERTER_VERSION,
                "source": self._digest.hex(),
                "source_name": self._path.name,
                "table": source.table,
                "files": files,
            }
            if refused is not None:
                manifest["tokenizer_refused"] = refused
            _write_file(temporary / _MANIFEST, strict_json.canonical(manifest))
            sync_folder(temporary)
            self._put(temporary)
        except OSError as error:
            raise refuse(
                "disk_room",
                self._home,
                expected=f"to write {total} bytes",
                got=error.strerror or str(error),
                advice="free some room, set STAGELINK_CACHE, or use --no-cache",
            ) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _write_weights(
        self, path: Path, header: bytes, source: Source, total: int
    ) -> dict[str, Any]:
        hasher = hashlib.sha256(header)
        done = 0
        with path.open("xb") as out:
            out.write(header)
            for name in source.tensors:
                for piece in source.reader.pieces(name):
                    view = piece.astype("<f4", copy=False).data.cast("B")
                    out.write(view)
                    hasher.update(view)
                    done += view.nbytes
                    self._tell("convert", done, total)
            out.flush()
            os.fsync(out.fileno())
        return {"bytes": len(header) + done, "sha256": hasher.hexdigest()}

    def _put(self, temporary: Path) -> None:
        if self.folder.exists():
            # A folder cannot be replaced in one step; what is there is damaged, so nobody uses it.
            grave = Path(tempfile.mkdtemp(prefix=f"{self._key}.tmp-", dir=self._home))
            with contextlib.suppress(OSError):
                self.folder.rename(grave / "damaged")
            shutil.rmtree(grave, ignore_errors=True)
        temporary.rename(self.folder)
        sync_folder(self._home)

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self._home).free
        if free < needed + limits.DISK_SPARE_BYTES:
            raise refuse(
                "disk_room",
                self._home,
                expected=f"{needed + limits.DISK_SPARE_BYTES} bytes free for the conversion",
                got=f"{free}",
                advice="free some room, set STAGELINK_CACHE, or use --no-cache",
            )

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(f"{what} {self._path.name}", done, total)


class _MadeWhenRead:
    """Reads tensors of a conversion that is made when the first of them is asked for."""

    def __init__(self, conversion: Conversion, source: Source) -> None:
        self._conversion = conversion
        self._source = source
        self._reader: TensorReader | None = None

    @property
    def bytes_read(self) -> int:
        return 0 if self._reader is None else self._reader.bytes_read

    def is_made(self) -> bool:
        return self._reader is not None

    def prepare(self) -> None:
        self._made()

    def read(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
        return self._made().read(name, rows)

    def read_stored(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
        return self._made().read_stored(name, rows)

    def _made(self) -> TensorReader:
        if self._reader is None:
            self._reader = self._conversion.make(self._source).reader
        return self._reader


def _small(source: Source) -> tuple[list[tuple[str, bytes]], list[str] | None]:
    """Return the small files, and why there is no tokenizer among them if there is none."""
    tokenizer_config: dict[str, Any] = {}
    generation = {"eos_token_id": list(source.eos_ids)}
    files: list[tuple[str, bytes]] = []
    refused: list[str] | None = None
    try:
        tokenizer_json, special = source.tokenizer()
    except CheckpointError as error:
        # Token ids can be served all the same; who asks for the tokenizer is told this.
        refused = [error.reason, str(error)]
    else:
        files.append(("tokenizer.json", tokenizer_json))
        tokenizer_config |= special.names
    if source.chat_template is not None:
        tokenizer_config["chat_template"] = source.chat_template
    values = {
        "config.json": dict(source.config),
        "generation_config.json": generation,
        "tokenizer_config.json": tokenizer_config,
    }
    files += [(name, strict_json.canonical(value)) for name, value in values.items()]
    return files, refused


def _raise(refused: list[str]) -> NoReturn:
    reason, text = refused
    raise CheckpointError(text, reason=reason, operation="open checkpoint")


def _write_file(path: Path, data: bytes) -> dict[str, Any]:
    with path.open("xb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
