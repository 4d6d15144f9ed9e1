"""Finds the family of a config by its ``model_type`` and has it read.

It reads no field but those that say which family it is; a type outside the table is a wide one.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from stagelink.checkpoint import config_fields
from stagelink.checkpoint.families.config_reading import Source
from stagelink.checkpoint.families.deepseek_v2 import read_deepseek_v2
from stagelink.checkpoint.families.deepseek_v3 import read_deepseek_v3
from stagelink.checkpoint.families.described import DESCRIBED, read_described
from stagelink.checkpoint.families.gemma3 import read_gemma3
from stagelink.checkpoint.families.gguf_family import read_gguf_family
from stagelink.checkpoint.families.gpt_oss import read_gpt_oss
from stagelink.checkpoint.families.granite import read_granite
from stagelink.checkpoint.families.llama import read_llama
from stagelink.checkpoint.families.mixtral import read_mixtral
from stagelink.checkpoint.families.olmo2 import read_olmo2
from stagelink.checkpoint.families.qwen3_5 import read_qwen3_5, read_qwen3_5_moe
from stagelink.checkpoint.families.qwen3_moe import read_qwen3_moe
from stagelink.checkpoint.families.qwen3_next import read_qwen3_next
from stagelink.checkpoint.families.smollm3 import read_smollm3
from stagelink.checkpoint.families.wide import read_wide
from stagelink.checkpoint.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stagelink.checkpoint.families.base import Family
    from stagelink.checkpoint.opened import TensorInfo

    Reader = Callable[[Source, str], Family]

_NO_TENSORS: Final[Mapping[str, Any]] = MappingProxyType({})

_READERS: Final[dict[str, Reader]] = {
    "deepseek_v2": read_deepseek_v2,
    "deepseek_v3": read_deepseek_v3,
    "gemma3_text": read_gemma3,
    "gpt_oss": read_gpt_oss,
    "granite": read_granite,
    "llama": read_llama,
    "mixtral": read_mixtral,
    "olmo2": read_olmo2,
    "qwen2": read_llama,
    "qwen3": read_llama,
    "qwen3_5_moe_text": read_qwen3_5_moe,
    "qwen3_5_text": read_qwen3_5,
    "qwen3_moe": read_qwen3_moe,
    "qwen3_next": read_qwen3_next,
    "smollm3": read_smollm3,
}
# Composite types whose text config says the type of another family: of an older one, or of one
# whose matrices are not rotated.
_WHOLES: Final = frozenset(("kimi_k3", "prism_hadamard_qwen35"))
# Composite types whose text config need not say its own type.
_COMPOSITES: Final = {
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "qwen4_exp": "qwen4_exp_text",
    "gemma3": "gemma3_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
FAMILIES: Final = tuple(_READERS)

# What `gguf_blocks` calls an architecture that is not read as floats.
GGUF_PREFIX: Final = "gguf:"
# A composite config's own fields that a text model has a use for.
_SHARED = ("tie_word_embeddings", "eos_token_id", "bos_token_id", *config_fields.QUANTIZATION)
_COMPOSITE_PREFIX = "model.language_model."


def read_family(
    config: Mapping[str, Any],
    where: str = "config.json",
    tensors: Mapping[str, TensorInfo] = _NO_TENSORS,
) -> Family:
    """Read the config of a checkpoint, keys as config.json names them.

    Args:
        config: The config, with a ``text_config`` inside where the model also reads pictures.
        where: The file, for errors.
        tensors: The checkpoint's table. It decides between two forms in which a family's files come
            (experts stacked or single), and a family outside the table knows its tensors by it.

    Raises:
        CheckpointError: ``architecture``, ``config_field``, ``activation``, ``rope_scaling``,
            ``sliding_window``, ``layer_types`` or ``quantization``, naming the field.
    """
    outer = Fields(config, where)
    model_type = outer.raw("model_type")
    if not isinstance(model_type, str) or not model_type:
        wanted = "the name of a model family"
        raise outer.refusal("model_type", wanted, model_type, reason="architecture")
    architectures = outer.raw("architectures")
    text, prefix = _text_config(config, outer), "model."
    if text is not None:
        prefix = _COMPOSITE_PREFIX
        inner = text.get("model_type")
        if isinstance(inner, str) and inner and model_type not in _WHOLES:
            model_type = inner
    # Some text-only files say the composite's type; their fields are the text config's.
    model_type = _COMPOSITES.get(model_type, model_type)
    model_type = config_fields.SAME_AS.get(model_type, model_type)
    prefix = _prefix(frozenset(tensors), prefix)
    values = dict(config if text is None else text)
    values.pop("model_type", None)
    values.pop("architectures", None)
    source = Source(Fields(values, where), prefix, frozenset(tensors))
    if model_type.startswith(GGUF_PREFIX):
        return read_gguf_family(source, model_type, tensors)
    if model_type not in _READERS:
        values |= {"architectures": architectures}
        plain = Source(Fields(values, where), prefix, source.names)
        read = read_described if model_type in DESCRIBED else read_wide
        return read(plain, model_type, tensors)
    allowed = config_fields.ARCHITECTURES[model_type]
    named = [] if architectures is None else architectures
    # What reads pictures too may be of any name; its text is of the family that it says.
    whole = "ForConditionalGeneration" if text is not None else None
    if not isinstance(named, list) or not all(
        name in allowed or (whole and isinstance(name, str) and name.endswith(whole))
        for name in named
    ):
        raise outer.refusal("architectures", allowed[0], named, reason="architecture")
    return _READERS[model_type](source, model_type)


def _prefix(names: frozenset[str], usual: str) -> str:
    """Return where the body's tensors are, where the table says so: text-only files differ."""
    for prefix in (usual, "model.", _COMPOSITE_PREFIX):
        if f"{prefix}embed_tokens.weight" in names:
            return prefix
    return usual


def _text_config(config: Mapping[str, Any], outer: Fields) -> dict[str, Any] | None:
    """Return the language model's part of a composite config, or ``None`` for a plain one."""
    text = config.get("text_config")
    if text is None:
        return None
    if not isinstance(text, dict):
        raise outer.refusal("text_config", "an object", text)
    said = {key: config[key] for key in _SHARED if config.get(key) is not None}
    return text | said
