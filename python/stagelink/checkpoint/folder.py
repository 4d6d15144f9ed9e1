"""Opens a folder of safetensors: config, one file or shards with an index, tokenizer, template.

It reads metadata only, and leaves the weight files to ``shards.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.checkpoint import limits, strict_json
from stagelink.checkpoint.opened import Contents
from stagelink.checkpoint.refusal import refuse, shown
from stagelink.checkpoint.safetensors_file import Placed, SafetensorsReader
from stagelink.checkpoint.shards import find_tensors
from stagelink.checkpoint.tokenizer import SpecialTokens, Tokenizer, template_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stagelink.checkpoint.digest import Digests
    from stagelink.errors import CheckpointError

_EMBED, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_AGAIN = "fetch the checkpoint again"


def open_folder(folder: Path, digests: Digests) -> Contents:
    """Read and check a folder's metadata.

    Raises:
        CheckpointError: For a file that is missing, lies about itself, or contradicts another.
    """
    config = strict_json.read_object(folder / "config.json", limits.CONFIG_BYTES_MAX)
    tokenizer_config = _optional(
        folder / "tokenizer_config.json", limits.TOKENIZER_CONFIG_BYTES_MAX
    )
    placed = find_tensors(folder)
    table = tuple((name, one.info.dtype, one.info.shape) for name, one in sorted(placed.items()))
    files = {one.file.path: one.file for one in placed.values()}
    _drop_tied_copy(config, placed, digests)
    return Contents(
        kind="safetensors",
        config=config,
        tensors={name: one.info for name, one in placed.items()},
        source_table=table,
        chat_template=read_template(folder, tokenizer_config),
        reader=SafetensorsReader(placed),
        digest=lambda: digests.of_files(files.values()),
        tokenizer=lambda: load_tokenizer(folder, config, tokenizer_config),
    )


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
            advice="fetch it, or pass token ids",
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


def _drop_tied_copy(config: Mapping[str, Any], placed: dict[str, Placed], digests: Digests) -> None:
    # Some exports store the tied matrix twice. The copy is left out when it is one, else refused:
    # which of two different matrices is meant cannot be known.
    if config.get("tie_word_embeddings") is not True or _HEAD not in placed:
        return
    head, embed = placed[_HEAD], placed.get(_EMBED)
    if embed is None:
        return
    same = (head.info.dtype, head.info.shape) == (embed.info.dtype, embed.info.shape)
    if not same or _range_digest(head, digests) != _range_digest(embed, digests):
        raise _bad(
            head.file.path,
            "tied_head",
            f"{_HEAD} equal to {_EMBED}, since tie_word_embeddings is true",
            "another matrix",
        )
    del placed[_HEAD]


def _range_digest(one: Placed, digests: Digests) -> bytes:
    return digests.of_range(one.file, one.offset, one.offset + one.info.nbytes)


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
