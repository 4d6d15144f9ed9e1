"""Makes a stage's files and loads them: contexts, streams, and the lead's two ends.

It decides nothing; slicing.py laid out what is in the files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING

from stagelink.engine import CheckpointError, EngineError, give_back, resident_bytes
from stagelink_llamacpp.calls import lean_rows
from stagelink_llamacpp.context import Context, Nodes, Shape
from stagelink_llamacpp.head import Embedding, Head, Table
from stagelink_llamacpp.pages import return_large_blocks
from stagelink_llamacpp.refusal import named
from stagelink_llamacpp.stage_file import EMBED, cached, remove
from stagelink_llamacpp.streams import Streams
from stagelink_llamacpp.sums import Comparison
from stagelink_llamacpp.trial import tried

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagelink.engine import Checkpoint, EngineSettings
    from stagelink_llamacpp.library import Library
    from stagelink_llamacpp.setup import Setup
    from stagelink_llamacpp.slicing import Slice

_LOG = logging.getLogger("stagelink.llamacpp")
# A file of the cache that is damaged is made again once.
_CUTS_MAX = 2
# Other processes may replace files of the cache while they are loaded.
_TURNS_MAX = 5


@dataclasses.dataclass(slots=True)
class Loaded:
    """What a loaded stage has.

    Attributes:
        context: The own layers and their KV.
        streams: The open streams.
        embedding: Token ids to rows; the lead's only.
        head: Rows to logits; the lead's only.
    """

    context: Context
    streams: Streams
    embedding: Embedding | None
    head: Head | None

    def close(self) -> None:
        """Free everything."""
        if self.embedding is not None:
            self.embedding.close()
        if self.head is not None:
            self.head.close()
        self.context.close()


def load_stage(
    library: Library,
    checkpoint: Checkpoint,
    own: Slice,
    asked: tuple[Setup, EngineSettings],
    progress: Callable[[int, int], None] | None,
) -> Loaded:
    """Slice what is not in the cache yet, and load it.

    What is in the cache is compared with its checksums meanwhile; a file that holds other bytes is
    deleted, and sliced and loaded again. One that was replaced meanwhile is loaded again.

    Raises:
        CheckpointError: Reading the source, no room for the slice, a slice that fails its trial, or
            ``slice_damaged`` where the new one holds other bytes too; ``slice_check`` where a file
            could not be compared, or was replaced again and again.
        EngineError: ``load`` with what llama.cpp said; behind the path of the source, as is what a
            trial says.
    """

    def alive(_: float = 1.0) -> None:
        if progress is not None:
            progress(own.own_bytes, own.own_bytes)

    bad: list[Path] = []
    cuts = 0
    for _ in range(_TURNS_MAX):
        paths = _files(checkpoint, own, progress)
        # The files are laid out: what the words are nobody asks here again.
        own.source.release_words()
        return_large_blocks()
        give_back()
        loaded, damaged = _compared(library, own, paths, asked, alive)
        if loaded is not None:
            return loaded
        bad, cuts = damaged or bad, cuts + bool(damaged)
        if cuts == _CUTS_MAX:
            raise CheckpointError(
                f"{bad[0]}: expected the bytes that were written there, got others, twice; look "
                "for a disk that fails, or set STAGELINK_CACHE to a folder on another one",
                reason="slice_damaged",
                operation="check stage file",
            )
    raise CheckpointError(
        f"{next(iter(paths.values())).parent}: expected the stage's files to stay while they are "
        f"loaded, got others in their place {_TURNS_MAX} times; look for what deletes or changes "
        "them, or set STAGELINK_CACHE to another folder",
        reason="slice_check",
        operation="check stage file",
    )


def _compared(
    library: Library,
    own: Slice,
    paths: dict[str, Path],
    asked: tuple[Setup, EngineSettings],
    alive: Callable[..., None],
) -> tuple[Loaded | None, list[Path]]:
    """Load the files, and compare what was loaded with its checksums.

    Returns:
        The stage; or ``None`` and the files that held other bytes, which are deleted now. Where
        another process has replaced a file meanwhile, neither.
    """
    with contextlib.ExitStack() as made:
        try:
            # The layers come first there, and are loaded last: the head's pages leave memory.
            keys = reversed(paths)
            comparison = Comparison({paths[key]: own.files[key].spans for key in keys})
        except FileNotFoundError:
            return None, []
        made.callback(comparison.close)
        loaded: Loaded | None = None
        failed: Exception | None = None
        try:
            loaded = _loaded(library, own, paths, asked, alive)
            made.callback(loaded.close)
        except (CheckpointError, EngineError, OSError) as error:
            # Raised below, where the files are not to blame: of the file that a user knows.
            failed = error if isinstance(error, OSError) else named(error, own.path)
        # What another process puts there from now on was not loaded.
        replaced = comparison.replaced()
        damaged = comparison.damaged(alive)
        for path in damaged:
            # `stagelink up` shows a person the lines of its stages that begin so.
            _LOG.warning(
                "warning: %s: expected the bytes that were written there, got others; it is made "
                "again; look for a disk that fails",
                path,
            )
            remove(path, comparison.identity_of(path), lambda _: alive())
        if damaged:
            return None, damaged
        # A file that llama.cpp ended its process over was deleted by its trial.
        if failed is not None and (not replaced or _is_abort(failed)):
            raise failed
        if replaced:
            return None, []
        made.pop_all()
        comparison.close()
    return loaded, []


def _is_abort(error: Exception) -> bool:
    return getattr(error, "reason", None) == "native_abort"


def _loaded(
    library: Library,
    own: Slice,
    paths: dict[str, Path],
    asked: tuple[Setup, EngineSettings],
    alive: Callable[..., None],
) -> Loaded:
    """Load the files, each tried before."""
    setup, settings = asked
    shape = Shape(
        settings.context,
        settings.streams_max,
        settings.rows_max,
        setup.kv,
        setup.threads,
        lean_rows(own.rule.values),
    )
    device = setup.device.kind if settings.device == "auto" else settings.device
    _LOG.info("layers %d-%d: %s as stored", own.first, own.end, _mib(own.own_bytes))
    before = resident_bytes() or 0
    with contextlib.ExitStack() as made:
        # First: while llama.cpp reorders the vocabulary it needs more than what stays.
        embedding, head = _ends(library, own, paths, (setup, device, alive), made)
        last = own.end - own.first - 1
        rule = own.rule
        nodes = Nodes(
            f"l_out-{last}",
            rule.rows_node,
            rule.positions_per_row,
            rule.query_scale(own.first, own.end),
        )
        path = paths[f"{own.first}-{own.end}"]
        tried(path, nodes, library.versions, alive, kv=setup.kv, device=device)
        context = Context(library, path, setup.device, shape, nodes, alive=alive)
        made.callback(context.close)
        made.pop_all()
    after = resident_bytes() or 0
    told = own.first, own.end, _mib(after - before), _mib(after)
    _LOG.info("layers %d-%d: %s more held after loading, %s in all", *told)
    streams = Streams(
        context, settings.streams_max, settings.rows_max, recurrent=own.rule.recurrent
    )
    return Loaded(context, streams, embedding, head)


def _ends(
    library: Library,
    own: Slice,
    paths: dict[str, Path],
    asked: tuple[Setup, str, Callable[[], None]],
    made: contextlib.ExitStack,
) -> tuple[Embedding | None, Head | None]:
    """Load the lead's two ends; ``made`` closes them. A follower has none."""
    if own.ends is None:
        return None, None
    setup, device, alive = asked
    begin = own.ends.embed.offset(EMBED)
    path = paths["embed" if "embed" in paths else "head"]
    embedding = Embedding(library, path, begin, own.embed, own.rule.embedding_scale)
    made.callback(embedding.close)
    nodes = Nodes(None, own.ends.rule.rows_node)
    reordered = tried(paths["head"], nodes, library.versions, alive, device=device)
    span = None if reordered is False else own.ends.head.span(EMBED)
    table = Table(own.vocab, span, own.layers.source_bytes)
    head = Head(library, paths["head"], setup, nodes, table)
    made.callback(head.close)
    return embedding, head


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"


def _files(
    checkpoint: Checkpoint, own: Slice, progress: Callable[[int, int], None] | None
) -> dict[str, Path]:
    """Return the paths of the stage's files, made where they are not in the cache."""
    digest = checkpoint.content_digest().hex()
    total, before = own.own_bytes, 0
    paths: dict[str, Path] = {}

    def tell(done: int) -> None:
        if progress is not None:
            progress(before + done, total)

    for key, file in own.files.items():
        paths[key] = cached(file, own.source, f"{digest}-{key}", tell)
        before += file.source_bytes
    tell(0)
    return paths
