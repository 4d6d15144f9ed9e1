"""Builds the library's whole model without memory, and takes out of it what a range has no use for.

It runs nothing; what is left is a range of model.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from stagelink_transformers.refusal import refuse_config

if TYPE_CHECKING:
    from stagelink.engine import Family

# Of a config: what would name code outside the library, and what says how weights are stored.
_LEFT_OUT: Final = ("auto_map", "quantization_config", "transformers_version", "_name_or_path")
_SPECIAL: Final = ("pad_token_id", "bos_token_id", "eos_token_id")
_HEAD: Final = "lm_head.weight"
_FLOATS: Final = ("Infinity", "-Infinity", "NaN")
# Lists of the config that the library reads by a layer's number while it runs.
_BY_LAYER: Final = ("layer_types", "mlp_layer_types", "layers_block_type", "kv_sharing_modes")


def build_whole(family: Family, dtype: torch.dtype) -> Any:
    """Build the whole causal model on the meta device, from the library's code only."""
    if family.model_type.startswith("gguf:"):
        expected = "a model with the library's own config"
        raise refuse_config("engine_family", expected, family.model_type, family.engine_advice)
    plain = json.dumps(dict(family.config))
    fields: dict[str, Any] = json.loads(plain, object_hook=_special_float)
    model_type = fields.pop("model_type", family.model_type)
    for name in _LEFT_OUT:
        fields.pop(name, None)
    if not family.tied and _HEAD in family.all_tensors():
        # A head of its own: some classes of the library would put the embedding in its place.
        fields["tie_word_embeddings"] = False
    from_config: Any = AutoModelForCausalLM.from_config
    try:
        # The library's defaults for these may lie outside a vocabulary that names none.
        fields = dict.fromkeys(_SPECIAL) | _with_integers(model_type, fields)
        config = AutoConfig.for_model(model_type, **fields)
        with torch.device("meta"):
            model = from_config(config, dtype=dtype, trust_remote_code=False)
    except Exception as error:  # whatever a config can break in the library
        why = " ".join(str(error).split())[:200]
        raise refuse_config(
            "engine_family",
            "a decoder that transformers has",
            f"{model_type} ({why})",
            "install a version of transformers that has it, or use another model",
        ) from error
    return model.eval()


def find_layers(model: nn.Module, family: Family) -> tuple[str, str]:
    """Return the path of the decoder inside the model, and the name of its list of layers."""
    for path, module in model.named_modules():
        for name, child in module.named_children():
            if path and isinstance(child, nn.ModuleList) and len(child) == family.layers:
                return path, name
    raise refuse_config(
        "engine_family",
        f"a decoder with a list of {family.layers} layers",
        f"{type(model).__name__} without one",
        "use another engine or another model",
    )


def renumber(layers: nn.ModuleList, config: Any, first: int, end: int) -> None:
    """Count the own layers from 0.

    What depends on a layer's absolute number was decided when it was made. Caches and masks go by
    the number in the range: the library sizes every mask by the first layers of the cache.
    """
    for module in layers.modules():
        if isinstance(getattr(module, "layer_idx", None), int):
            module.layer_idx -= first  # type: ignore[operator,assignment]
    # All before any: two of the names may be one list, which is cut once.
    said = {name: getattr(config, name, None) for name in _BY_LAYER}
    for name, kinds in said.items():
        if isinstance(kinds, list):
            _say(config, name, kinds[first:end])
    spec = vars(config).get("_heterogeneity_spec")
    if spec is not None:
        own = {n - first: one for n, one in spec.per_layer_overrides.items() if first <= n < end}
        spec.per_layer_overrides = own
    config.num_hidden_layers = end - first


def drop_ends(model: nn.Module, body: nn.Module, layers_name: str) -> None:
    """Take away every module with weights that is no layer: they are the lead's."""
    for parent in (model, body):
        for name, child in list(parent.named_children()):
            own = child is not body and not (parent is body and name == layers_name)
            holds_body = any(one is body for one in child.modules())
            if not own or holds_body or not any(True for _ in child.parameters()):
                continue
            width = child.embedding_dim if isinstance(child, nn.Embedding) else 0
            setattr(parent, name, _NoEmbedding(width) if width else nn.Identity())


def _special_float(value: dict[str, Any]) -> Any:
    """Return the number that the library writes as an object, since JSON has no infinity."""
    if value.keys() == {"__float__"} and value["__float__"] in _FLOATS:
        return float(value["__float__"])
    return value


def _with_integers(model_type: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return whole numbers as integers where the library's config takes nothing else."""
    declared = CONFIG_MAPPING[model_type].__dataclass_fields__
    whole = {
        name: int(value)
        for name, value in fields.items()
        if isinstance(value, float) and value.is_integer() and name in declared
        if "int" in str(declared[name].type) and "float" not in str(declared[name].type)
    }
    return fields | whole


def _say(config: Any, name: str, value: list[Any]) -> None:
    """Set a list of the config, also one that the config computes from other fields."""
    try:
        setattr(config, name, value)
    except AttributeError:
        kind = type(config)
        own = kind.attribute_map.get(name, name)
        config.__class__ = type(kind.__name__, (kind,), {own: value})


class _NoEmbedding(nn.Module):
    """Stands where an embedding of the lead stands: zeros, which nothing reads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def forward(
        self, ids: torch.Tensor, *_: object, position_ids: torch.Tensor | None = None, **__: object
    ) -> torch.Tensor:
        # Some decoders hand over a mask of all positions, and beside it those of the rows.
        like = ids if position_ids is None else position_ids
        return torch.zeros(*like.shape, self._width, device=ids.device)
