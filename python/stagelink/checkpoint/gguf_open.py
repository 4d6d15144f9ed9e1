"""Opens a GGUF file, either directly or through its cached conversion.

It decides between the two; both give the same values, the same bytes and the same fingerprint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink.checkpoint import gguf_names
from stagelink.checkpoint.conversion import Conversion, Source
from stagelink.checkpoint.families.base import HEAD
from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.gguf_config import read_config
from stagelink.checkpoint.gguf_tensors import GgufReader, Stored
from stagelink.checkpoint.gguf_tokenizer import rebuild
from stagelink.checkpoint.gguf_walk import GgufTable, GgufTensor, walk
from stagelink.checkpoint.limits import TEMPLATE_BYTES_MAX
from stagelink.checkpoint.opened import Contents, TensorInfo
from stagelink.checkpoint.refusal import refuse, shown
from stagelink.checkpoint.tokenizer import Tokenizer
from stagelink.checkpoint.weight_file import WeightFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from stagelink.checkpoint.digest import Digests

_EMBED = "model.embed_tokens.weight"


def open_gguf(
    path: Path,
    digests: Digests,
    *,
    cache: bool,
    progress: Callable[[str, int, int], None] | None = None,
) -> Contents:
    """Read and check a GGUF file's metadata, or find what an earlier start made of it.

    Raises:
        CheckpointError: For a file that is damaged, or that holds what is not done.
        ConfigError: ``cache_folder``.
        DeadlineError: ``lock_deadline``.
    """
    file = WeightFile.find(path)
    if not cache:
        source = read_source(file)
        return Contents(
            kind="gguf",
            config=source.config,
            tensors=source.tensors,
            source_table=source.table,
            chat_template=source.chat_template,
            reader=source.reader,
            digest=lambda: digests.of_file(file),
            tokenizer=lambda: Tokenizer(source.tokenizer_json, source.special, path),
        )
    digest = digests.of_file(file)
    conversion = Conversion(file, digest, digests, progress)
    return conversion.find() or conversion.make(read_source(file))


def read_source(file: WeightFile) -> Source:
    """Walk a GGUF file and turn all but its tensor data into what a folder would hold."""
    where = file.path
    table = walk(file)
    tensors = gguf_names.rename(table.tensors, where)
    config = _config(file, table, tensors)
    family = read_family(config, str(where))
    infos = {
        name: TensorInfo(name, one.type_name, one.shape, one.nbytes)
        for name, one in tensors.items()
    }
    family.check_tensors(infos, str(where))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    stored = {
        name: Stored(
            one,
            gguf_names.interleaved_heads(name, family.model_type, heads, kv_heads),
        )
        for name, one in tensors.items()
    }
    tokenizer_json, special = rebuild(table.values, where)
    return Source(
        config=config,
        tensors=infos,
        table=tuple((name, one.type_name, one.shape) for name, one in sorted(tensors.items())),
        chat_template=_template(table.values, where),
        tokenizer_json=tokenizer_json,
        special=special,
        reader=GgufReader(file, stored),
    )


def _config(
    file: WeightFile, table: GgufTable, tensors: Mapping[str, GgufTensor]
) -> dict[str, Any]:
    embed = tensors.get(_EMBED)
    rows = embed.shape[0] if embed is not None else 0
    tokens = table.values.get("tokenizer.ggml.tokens")
    count = len(tokens) if isinstance(tokens, list) else 0
    if rows != count:
        raise refuse(
            "tensor_shape",
            f"{file.path}: token_embd.weight",
            expected=f"a row for each of {count} tokens",
            got=f"{rows} rows",
            advice="fetch the file again",
        )
    return read_config(
        table.values,
        file.path,
        vocab=rows,
        tied=HEAD not in tensors,
        rope_factors=_rope_factors(file, table.tensors.get(gguf_names.ROPE_FACTORS)),
    )


def _rope_factors(file: WeightFile, tensor: GgufTensor | None) -> np.ndarray | None:
    if tensor is None:
        return None
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
