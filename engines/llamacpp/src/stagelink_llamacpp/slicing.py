"""What a stage takes of a GGUF checkpoint: its range by the architecture's rule, and the head.

It reads the table only; `stage_file.cached` copies what is laid out here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from stagelink.engine import CheckpointError, ConfigError
from stagelink_llamacpp.metadata import refused
from stagelink_llamacpp.refusal import named
from stagelink_llamacpp.rules import rule_of
from stagelink_llamacpp.stage_file import (
    EMBED,
    HEAD,
    NORM,
    embed_file,
    head_file,
    range_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stagelink.engine import Checkpoint, GgufSource, GgufTensor
    from stagelink_llamacpp.head_rules import HeadFile
    from stagelink_llamacpp.rules import Rule
    from stagelink_llamacpp.stage_file import StageFile


_BIAS = "output.bias"
_LAYER = "blk."
_NAME_CHARS_MAX = 80


@dataclasses.dataclass(frozen=True, slots=True)
class Ends:
    """What the lead has beside its layers.

    Attributes:
        rule: What the head's file must hold.
        head: Final norm and vocabulary.
        embed: The file with the embedding: the head's own where the two are tied.
    """

    rule: HeadFile
    head: StageFile
    embed: StageFile


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """A stage's files, laid out.

    Attributes:
        path: The checkpoint's, as its user gave it.
        source: The checkpoint's table and bytes.
        rule: The architecture's.
        first: First layer.
        end: Layer after the last.
        layers: The layers' file.
        ends: The lead's only.
        embed: The embedding's entry in the source.
    """

    path: Path
    source: GgufSource
    rule: Rule
    first: int
    end: int
    layers: StageFile
    ends: Ends | None
    embed: GgufTensor

    @property
    def files(self) -> dict[str, StageFile]:
        """Return the files by the part of their cached name that tells them apart."""
        found = {f"{self.first}-{self.end}": self.layers}
        if self.ends is not None:
            found["head"] = self.ends.head
            if self.ends.embed is not self.ends.head:
                found["embed"] = self.ends.embed
        return found

    @property
    def own_bytes(self) -> int:
        """Stored bytes of the own tensors, those that every stage has included."""
        return sum(file.source_bytes for file in self.files.values())

    @property
    def width(self) -> int:
        """Values of a row."""
        return self.embed.shape[-1]

    @property
    def vocab(self) -> int:
        """Tokens."""
        return self.embed.shape[0]


def read_slice(checkpoint: Checkpoint, first: int, end: int, *, lead: bool) -> Slice:
    """Lay out the files of layers ``first..end``.

    Raises:
        ConfigError: ``engine_checkpoint`` for what is no GGUF file, ``engine_family`` for an
            architecture without a rule, ``engine_cut`` for a cut that the rule forbids,
            ``gguf_metadata`` for metadata that no such file has.
        CheckpointError: ``tensor_missing``, ``tensor_shape`` or ``gguf_metadata``.
    """
    rule = read_rule(checkpoint)
    source = _source(checkpoint)
    _check_tables(checkpoint, source, rule)
    why = rule.range_refused(first, end)
    if why is not None:
        raise ConfigError(f"llamacpp engine: {why}; change --layers", reason="engine_cut")
    with _metadata_of(checkpoint):
        return Slice(
            path=checkpoint.path,
            source=source,
            rule=rule,
            first=first,
            end=end,
            layers=range_file(source, rule, first, end),
            ends=_ends(source, rule) if lead else None,
            embed=source.tensors[EMBED],
        )


def read_rule(checkpoint: Checkpoint) -> Rule:
    """Return how a checkpoint can be cut.

    Raises:
        ConfigError: ``engine_checkpoint`` for what is no GGUF file, ``engine_family`` for an
            architecture without a rule, ``gguf_metadata`` for metadata that no such file has.
    """
    source = _source(checkpoint)
    architecture = source.values.get("general.architecture")
    with _metadata_of(checkpoint):
        return rule_of(str(architecture)[:_NAME_CHARS_MAX], source.values)


@contextlib.contextmanager
def _metadata_of(checkpoint: Checkpoint) -> Iterator[None]:
    """Name the file in an error about its metadata; others are about this engine."""
    try:
        yield
    except (CheckpointError, ConfigError) as error:
        if error.reason != "gguf_metadata":
            raise
        raise named(error, checkpoint.path) from None


def _source(checkpoint: Checkpoint) -> GgufSource:
    source = checkpoint.gguf
    if source is None:
        raise ConfigError(
            f"llamacpp engine: expected a .gguf file, got {checkpoint.path}; use another engine, "
            "or convert the checkpoint with llama.cpp's convert_hf_to_gguf.py",
            reason="engine_checkpoint",
        )
    return source


def _ends(source: GgufSource, rule: Rule) -> Ends:
    untied = HEAD in source.tensors
    ruled = rule.head_file(output=untied, output_bias=_BIAS in source.tensors)
    head = head_file(source, ruled)
    return Ends(ruled, head, embed_file(source) if untied else head)


def _check_tables(checkpoint: Checkpoint, source: GgufSource, rule: Rule) -> None:
    """Refuse a file without the tables that everything is built on, or with more than is known."""
    width = rule.values["embedding_length"]
    for name, shape in ((EMBED, (rule.vocab, width)), (NORM, (width,))):
        tensor = source.tensors.get(name)
        if tensor is None or tensor.shape != shape:
            got = "none" if tensor is None else f"{list(tensor.shape)}"
            raise CheckpointError(
                f"{checkpoint.path}: expected {name} of shape {list(shape)}, got {got}; "
                "fetch the file again",
                reason="tensor_missing" if tensor is None else "tensor_shape",
                operation="open checkpoint",
            )
    known = {EMBED, NORM, HEAD, _BIAS, *rule.keep_global}
    others = sorted(name for name in source.tensors.keys() - known if not name.startswith(_LAYER))
    if others:
        got = f"{others[0][:_NAME_CHARS_MAX]!r} of {len(others)}"
        raise refused(f"expected no tensor outside the layers without a rule, got {got}")
