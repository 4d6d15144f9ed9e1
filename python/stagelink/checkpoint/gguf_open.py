"""Opens a GGUF checkpoint: directly, through its cached conversion, or as its own format has it.

It decides which; read directly or through the conversion, values, bytes and fingerprint are the
same. What nothing here reads as floats opens too, for an engine that computes on the stored blocks:
another architecture always, a variant of a known one where nobody will ask for floats.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink.checkpoint import gguf_names
from stagelink.checkpoint.conversion import CONVERTER_VERSION, Conversion, Source
from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.gguf_blocks import BlockReader, read_block_config
from stagelink.checkpoint.gguf_config import read_config
from stagelink.checkpoint.gguf_source import GgufSource, part_files, read_parts
from stagelink.checkpoint.gguf_tensors import GgufReader
from stagelink.checkpoint.gguf_tokenizer import rebuild
from stagelink.checkpoint.gguf_vocabulary import end_ids
from stagelink.checkpoint.limits import TEMPLATE_BYTES_MAX
from stagelink.checkpoint.opened import Contents, TensorInfo
from stagelink.checkpoint.refusal import refuse, shown
from stagelink.checkpoint.tokenizer import Tokenizer, TokenizerIdentity
from stagelink.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from stagelink.checkpoint.digest import Digests
    from stagelink.checkpoint.gguf_source import Part
    from stagelink.checkpoint.gguf_walk import GgufTensor
    from stagelink.checkpoint.weight_file import WeightFile

    Found = Mapping[str, tuple[WeightFile, GgufTensor]]

_EMBED, _HEAD = "token_embd.weight", "output.weight"
_OPERATION = "open checkpoint"
# Refusals of what is not done as floats; a file that is damaged is refused for every engine.
_NOT_DONE = frozenset(("config_field", "rope_scaling", "sliding_window", "tensor_unknown"))


def open_gguf(
    path: Path,
    digests: Digests,
    *,
    cache: bool,
    floats: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> Contents:
    """Read and check a GGUF's metadata, or find what an earlier start made of it.

    ``floats`` is False where only stored blocks will be asked for.

    Raises:
        CheckpointError: For a file that is damaged, or that holds what is not done.
        ConfigError: ``cache_folder``.
    """
    files = part_files(path)
    conversion = None
    digest = functools.partial(digests.of_files, files)
    # The vocabulary lies in the first part.
    remembered = functools.partial(digests.of_made, files[0], f"tokenizer-{CONVERTER_VERSION}")
    if cache:
        known = digest()
        digest = functools.partial(bytes, known)
        conversion = Conversion(path, known, digests, progress)
        found = conversion.find()
        if found is not None:
            return dataclasses.replace(
                found, gguf=lambda: GgufSource(read_parts(path)), tokenizer_digest=remembered
            )
    parts = read_parts(path)
    architecture = parts[0].table.values.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in gguf_names.ARCHITECTURES:
        contents = _open_blocks(path, parts)
    else:
        try:
            source = read_source(path, parts)
        except CheckpointError as error:
            if error.reason not in _NOT_DONE:
                raise
            if floats:
                text = f"{error}, or --engine llamacpp for every stage"
                raise CheckpointError(text, reason=error.reason, operation=_OPERATION) from None
            contents = _open_blocks(path, parts, error)
        else:
            contents = _direct(path, source) if conversion is None else conversion.later(source)
    ends = end_ids(parts[0].table.values)
    return dataclasses.replace(
        contents,
        tokenizer_identity=lambda: TokenizerIdentity.of_made(*rebuild(parts[0].table.values, path)),
        gguf=lambda: GgufSource(parts),
        digest=digest,
        eos_ids=ends,
        release_words=parts[0].table.values.release_words,
        tokenizer_digest=remembered,
    )


def _direct(path: Path, source: Source) -> Contents:
    return Contents(
        kind="gguf",
        config=source.config,
        tensors=source.tensors,
        source_table=source.table,
        chat_template=source.chat_template,
        reader=source.reader,
        digest=bytes,
        tokenizer=lambda: Tokenizer(*source.tokenizer(), path, is_canonical=True),
    )


def _open_blocks(
    path: Path, parts: tuple[Part, ...], refused: CheckpointError | None = None
) -> Contents:
    values, found = parts[0].table.values, _found(parts)
    embed = found.get(_EMBED)
    config = read_block_config(
        values,
        path,
        vocab=embed[1].shape[0] if embed is not None else 0,
        tied=_HEAD not in found,
    )
    infos = {
        name: TensorInfo(name, one.type_name, one.shape, one.nbytes)
        for name, (_, one) in found.items()
    }
    return Contents(
        kind="gguf",
        config=config,
        tensors=infos,
        source_table=tuple((name, one.dtype, one.shape) for name, one in sorted(infos.items())),
        chat_template=_template(values, path),
        reader=BlockReader(path, config["model_type"], refused),
        digest=bytes,
        tokenizer=lambda: Tokenizer(*rebuild(values, path), path, is_canonical=True),
        floats_refused=None if refused is None else str(refused),
    )


def read_source(path: Path, parts: tuple[Part, ...]) -> Source:
    """Turn all of a walked GGUF but its tensor data into what a folder would hold."""
    values, found = parts[0].table.values, _found(parts)
    config = _config(path, values, found)
    heads = config["num_attention_heads"], config["num_key_value_heads"]
    stored = gguf_names.locate(found, values["general.architecture"], heads, path)
    infos = {
        name: TensorInfo(name, one.type_name, one.shape, one.nbytes) for name, one in stored.items()
    }
    read_family(config, str(path), infos).check_tensors(infos, str(path))
    table = {
        at: tensor
        for name, one in stored.items()
        for at, tensor in gguf_names.source_tensors(name, one).items()
    }
    return Source(
        config=config,
        tensors=infos,
        table=tuple((name, one.type_name, one.shape) for name, one in sorted(table.items())),
        chat_template=_template(values, path),
        tokenizer=lambda: rebuild(values, path),
        reader=GgufReader(stored),
        eos_ids=end_ids(values),
    )


def _found(parts: tuple[Part, ...]) -> dict[str, tuple[WeightFile, GgufTensor]]:
    return {name: (part.file, one) for part in parts for name, one in part.table.tensors.items()}


def _config(path: Path, values: Mapping[str, Any], found: Found) -> dict[str, Any]:
    embed = found.get(_EMBED)
    rows = embed[1].shape[0] if embed is not None else 0
    tokens = values.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, list) else 0
    if rows != count:
        raise refuse(
            "tensor_shape",
            f"{path}: {_EMBED}",
            expected=f"a row for each of {count} tokens",
            got=f"{rows} rows",
            advice="fetch the file again",
        )
    return read_config(
        values,
        path,
        vocab=rows,
        tied=_HEAD not in found,
        rope_factors=_rope_factors(found.get(gguf_names.ROPE_FACTORS)),
    )


def _rope_factors(found: tuple[WeightFile, GgufTensor] | None) -> np.ndarray | None:
    if found is None:
        return None
    file, tensor = found
    if tensor.type_name != "F32" or len(tensor.shape) != 1 or tensor.nbytes > 1 << 16:
        raise refuse(
            "rope_scaling",
            f"{file.path}: {gguf_names.ROPE_FACTORS}",
            expected="a short list of float32",
            got=f"{tensor.type_name} {list(tensor.shape)}",
            advice="fetch the file again",
        )
    factors = np.empty(tensor.shape, np.dtype("<f4"))
    with file.descriptor() as descriptor:
        file.read_into(descriptor, factors.view(np.uint8).data, tensor.offset)
    return factors


def _template(values: Mapping[str, Any], where: Path) -> str | None:
    text = values.get("tokenizer.chat_template")
    if text is None:
        return None
    if not isinstance(text, str) or len(text.encode()) > TEMPLATE_BYTES_MAX:
        raise refuse(
            "template",
            f"{where}: tokenizer.chat_template",
            expected=f"a text of at most {TEMPLATE_BYTES_MAX} bytes",
            got=shown(text),
            advice="fetch the file again",
        )
    return text
