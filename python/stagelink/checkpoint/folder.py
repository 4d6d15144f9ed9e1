"""Opens a folder of safetensors: config, one file or shards with an index, tokenizer, template.

It reads metadata only, and leaves the weight files to ``shards.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.checkpoint import limits, strict_json
from stagelink.checkpoint.affine import Affine
from stagelink.checkpoint.forms import logical_forms
from stagelink.checkpoint.opened import Contents
from stagelink.checkpoint.refusal import refuse, shown
from stagelink.checkpoint.safetensors_file import SafetensorsReader
from stagelink.checkpoint.shards import find_tensors
from stagelink.checkpoint.tied_copy import drop_tied_copy
from stagelink.checkpoint.tokenizer import SpecialTokens, Tokenizer, template_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stagelink.checkpoint.digest import Digests
    from stagelink.errors import CheckpointError

_AGAIN = "fetch the checkpoint again"


def open_folder(folder: Path, digests: Digests) -> Contents:
    """Read and check a folder's metadata.

    Raises:
        CheckpointError: For a file that is missing, lies about itself, or contradicts another.
    """
    if not (folder / "config.json").exists():
        raise _no_config(folder)
    config = strict_json.read_config(folder / "config.json", limits.CONFIG_BYTES_MAX)
    tokenizer_config = _optional(
        folder / "tokenizer_config.json", limits.TOKENIZER_CONFIG_BYTES_MAX
    )
    generation = _optional(folder / "generation_config.json", limits.CONFIG_BYTES_MAX)
    ends = _ids(generation, "eos_token_id", folder / "generation_config.json")
    placed = find_tensors(folder)
    table = tuple((name, one.info.dtype, one.info.shape) for name, one in sorted(placed.items()))
    files = {one.file.path: one.file for one in placed.values()}
    settled, forms = logical_forms(config, placed, folder)
    settled = drop_tied_copy(settled, forms, digests)
    reader = SafetensorsReader(forms)
    return Contents(
        kind="safetensors",
        config=settled,
        tensors={name: one.info for name, one in forms.items()},
        source_table=table,
        chat_template=read_template(folder, tokenizer_config),
        reader=reader,
        affine={
            name: (one.bits, one.group) for name, one in forms.items() if isinstance(one, Affine)
        },
        read_parts=reader.read_parts,
        read_rounded=reader.read_rounded,
        digest=lambda: digests.of_files(files.values()),
        tokenizer=lambda: load_tokenizer(folder, config, tokenizer_config),
        # Known without a tokenizer too: who gives token ids gets an answer that ends.
        eos_ids=tuple(ends),
    )


def _no_config(folder: Path) -> CheckpointError:
    """Say which path was meant, where the folder shows it."""
    advice = "name the folder that holds it"
    if any(folder.glob("*.gguf")):
        advice = "name a .gguf file itself"
    elif (folder / "snapshots").is_dir():
        advice = "name one of the folders in its folder snapshots"
    return refuse("file_missing", folder, expected="a config.json", got="none", advice=advice)


def load_tokenizer(
    folder: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]
) -> Tokenizer:
    """Load a folder's tokenizer.json with what the files beside it say of special tokens."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise refuse(
            "tokenizer_missing",
            path,
            expected="a tokenizer.json",
            got="none",
            advice="fetch it, or give token ids with --prompt-ids",
        )
    data = strict_json.read_bounded(path, limits.TOKENIZER_BYTES_MAX)
    generation = _optional(folder / "generation_config.json", limits.CONFIG_BYTES_MAX)
    where = folder / "tokenizer_config.json"
    known = _added_tokens(tokenizer_config, where)
    names = template_names(tokenizer_config)
    bos = _ids(config, "bos_token_id", folder / "config.json")
    adds = tokenizer_config.get("add_bos_token")
    ids = {content: token_id for token_id, content in known.items()}
    bos_id = ids.get(names.get("bos_token", ""), bos[0] if bos else None)
    special = SpecialTokens(
        eos_ids=tuple(
            _ids(config, "eos_token_id", folder / "config.json")
            + _ids(generation, "eos_token_id", folder / "generation_config.json")
        ),
        bos_id=bos_id,
        names=names,
        adds_bos=adds if isinstance(adds, bool) and bos_id is not None else None,
        known=known,
    )
    return Tokenizer(data, special, path)


def read_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """Return the chat template: its own file, else the one of tokenizer_config.json.

    Raises:
        CheckpointError: ``template`` when it is neither a text nor a list with one named default.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        data = strict_json.read_bounded(path, limits.TEMPLATE_BYTES_MAX)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise refuse(
                "template", path, expected="UTF-8 text", got="other bytes", advice=_AGAIN
            ) from None
    value = tokenizer_config.get("chat_template")
    if isinstance(value, list):
        named = [one for one in value if isinstance(one, dict) and one.get("name") == "default"]
        value = named[0].get("template") if len(named) == 1 else value
    if value is None or isinstance(value, str):
        return value
    where = folder / "tokenizer_config.json"
    raise refuse(
        "template", where, expected="a chat template as text", got=shown(value), advice=_AGAIN
    )


def _optional(path: Path, bytes_max: int) -> dict[str, Any]:
    return strict_json.read_object(path, bytes_max) if path.is_file() else {}


def _ids(values: Mapping[str, Any], key: str, where: Path) -> list[int]:
    value = values.get(key)
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(one) is not int for one in listed):
        raise _bad(where, "config_field", f"{key} as token ids", shown(value))
    return [one for one in listed if one >= 0]


def _added_tokens(tokenizer_config: Mapping[str, Any], where: Path) -> dict[int, str]:
    # transformers adds these to the tokenizer; we only accept a tokenizer that has them already.
    value = tokenizer_config.get("added_tokens_decoder", {})
    try:
        return {int(key): str(entry["content"]) for key, entry in value.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        got = shown(value)
        raise _bad(where, "tokenizer", "added_tokens_decoder of ids to tokens", got) from None


def _bad(where: Path, reason: str, expected: str, got: str) -> CheckpointError:
    return refuse(reason, where, expected=expected, got=got, advice=_AGAIN)
