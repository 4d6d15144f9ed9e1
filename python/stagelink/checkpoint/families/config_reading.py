"""Takes what all families say in the same words out of a config, and builds the understood one.

It knows no family: which fields there are, and their defaults, is in each family's own file.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from stagelink.checkpoint import config_fields
from stagelink.checkpoint.limits import CONTEXT_MAX, EXPERTS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX
from stagelink.checkpoint.rope import WITH_YARN, take_rope_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.checkpoint.fields import Fields

_NOTHING: Final[Mapping[str, tuple[object, ...]]] = MappingProxyType({})

ATTENTION_KINDS: Final = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "linear_attention": "linear",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A config about to be read by a family.

    Attributes:
        fields: The text config.
        prefix: Where the body's tensors live.
        names: Names of the tensors that the checkpoint has, or empty where they are not known.
    """

    fields: Fields
    prefix: str = "model."
    names: frozenset[str] = frozenset()

    def has_tensor(self, part: str) -> bool:
        """Say whether the checkpoint is known to have a tensor whose name contains ``part``."""
        return any(part in name for name in self.names)


def take_sizes(
    fields: Fields, model_type: str, *, activation: str = "silu", tied: bool = False
) -> dict[str, Any]:
    """Take the fields that every decoder has, as the understood config holds them.

    Args:
        fields: The config.
        model_type: What stands in the understood config.
        activation: The one that the family's formulas have.
        tied: Whether the head is the embedding where the config does not say.

    Raises:
        CheckpointError: ``config_field``, ``activation``.
    """
    fields.only("hidden_act", activation, reason="activation")
    fields.only("hidden_activation", activation, reason="activation")
    return {
        "model_type": model_type,
        "hidden_act": activation,
        "num_hidden_layers": fields.count("num_hidden_layers", LAYERS_MAX),
        "hidden_size": fields.count("hidden_size", WIDTH_MAX),
        "vocab_size": fields.count("vocab_size", VOCAB_MAX),
        "max_position_embeddings": fields.count("max_position_embeddings", CONTEXT_MAX),
        "rms_norm_eps": fields.number("rms_norm_eps"),
        "tie_word_embeddings": fields.flag("tie_word_embeddings", default=tied),
    }


def take_heads(
    fields: Fields, config: dict[str, Any], *, kv_heads: int | None = None, default: int = 0
) -> None:
    """Take heads, key/value heads and head width into ``config``.

    Args:
        fields: The config.
        config: The understood one, with its sizes.
        kv_heads: What is meant where ``num_key_value_heads`` is not said: a number, 0 for as many
            as there are heads, ``None`` for a refusal.
        default: Head width where ``head_dim`` is not said; 0 for the width's even share.
    """
    heads = fields.count("num_attention_heads", WIDTH_MAX)
    meant = heads if kv_heads == 0 else kv_heads
    shared = fields.count("num_key_value_heads", heads, meant)
    said = fields.has("head_dim") or default > 0
    width = config["hidden_size"]
    head_width = fields.count("head_dim", WIDTH_MAX, default or width // heads)
    if heads % shared:
        raise fields.refusal("num_key_value_heads", f"a divisor of {heads} heads", shared)
    if head_width % 2 or (not said and width % heads):
        raise fields.refusal("head_dim", f"an even share of {width} by {heads} heads", head_width)
    config |= {
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "head_dim": head_width,
    }


def take_expert_counts(fields: Fields, config: dict[str, Any], key: str) -> None:
    """Take the routed experts and how many of them a row uses; ``key`` is the family's name.

    transformers 5 writes ``num_local_experts`` where older files say ``num_experts``.
    """
    said = [name for name in (key, "num_experts", "num_local_experts") if fields.has(name)]
    counts = {name: fields.count(name, EXPERTS_MAX) for name in dict.fromkeys(said)}
    if not counts or len(set(counts.values())) > 1:
        raise fields.refusal(key, "a number of experts, the same in each field", counts or None)
    config[key] = next(iter(counts.values()))
    config["num_experts_per_tok"] = fields.count("num_experts_per_tok", config[key])


def take_sparse_layers(fields: Fields, config: dict[str, Any]) -> None:
    """Take which layers have no experts, by absolute number: the Qwen families' two fields."""
    layers = config["num_hidden_layers"]
    dense = fields.raw("mlp_only_layers", [])
    if not isinstance(dense, list) or any(type(n) is not int or n < 0 for n in dense):
        raise fields.refusal("mlp_only_layers", "a list of layers", dense)
    config["mlp_only_layers"] = sorted(set(dense))
    config["decoder_sparse_step"] = fields.count("decoder_sparse_step", layers, 1)


def has_experts(config: Mapping[str, Any], n: int) -> bool:
    """Say whether layer ``n`` of an understood Qwen config routes to experts."""
    return n not in config["mlp_only_layers"] and (n + 1) % config["decoder_sparse_step"] == 0


def take_rotation(
    fields: Fields,
    config: dict[str, Any],
    default_theta: float | None,
    kinds: tuple[str, ...] = WITH_YARN,
) -> dict[str, Any]:
    """Put ``rope_parameters`` into a config that has its sizes, and return them.

    The arguments are those of `take_rope_parameters`.

    Raises:
        CheckpointError: ``rope_scaling`` or ``config_field``.
    """
    context = config["max_position_embeddings"]
    found = take_rope_parameters(fields, default_theta, kinds, context=context)
    config["rope_parameters"] = found
    return found


def take_layer_types(
    fields: Fields, layers: int, allowed: tuple[str, ...], default: list[str]
) -> list[str]:
    """Take ``layer_types``, one name a layer, all of them among ``allowed``.

    Raises:
        CheckpointError: ``layer_types``; ``sliding_window`` where sliding layers are not done.
    """
    kinds = fields.raw("layer_types", default)
    if not isinstance(kinds, list) or any(kind not in allowed for kind in kinds):
        reason = "layer_types" if "sliding_attention" in allowed else "sliding_window"
        wanted = f"{' or '.join(allowed)} for each of {layers} layers"
        raise fields.refusal("layer_types", wanted, kinds, reason=reason)
    if len(kinds) != layers:
        # The kinds themselves are all right, and a shortened list would not show what is not.
        wanted = f"one kind for each of {layers} layers"
        raise fields.refusal("layer_types", wanted, len(kinds), reason="layer_types")
    return list(kinds)


def finish(fields: Fields, fixed: Mapping[str, tuple[object, ...]] = _NOTHING) -> None:
    """Refuse a quantization, another value of a fixed field, and every field that nobody took.

    Args:
        fields: What is left of the config.
        fixed: The family's own fixed fields, beside and before those of all families.
    """
    for key in config_fields.QUANTIZATION:
        fields.only(key, reason="quantization")
    for key, allowed in (*fixed.items(), *config_fields.FIXED.items()):
        fields.only(key, *allowed)
    fields.drop(config_fields.HARMLESS)
    fields.finish()


def common_arguments(config: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return the arguments of ``Family`` that an understood config answers."""
    fields = source.fields
    bos_ids = fields.ids("bos_token_id")
    kinds = config.get("layer_types", ["full_attention"] * config["num_hidden_layers"])
    return {
        "model_type": config["model_type"],
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "vocab": config["vocab_size"],
        "context": _context(config),
        "tied": config["tie_word_embeddings"],
        "eos_ids": fields.ids("eos_token_id"),
        "bos_id": bos_ids[0] if bos_ids else None,
        "norm_epsilon": config["rms_norm_eps"],
        "config": config,
        "prefix": source.prefix,
        "layer_kinds": tuple(ATTENTION_KINDS[kind] for kind in kinds),
    }


def _context(config: Mapping[str, Any]) -> int:
    """Return the most positions of an understood config.

    Model cards have YaRN added and ``max_position_embeddings`` left as it was: transformers then
    turns any position, and what is stretched reaches ``factor`` times the original context.
    """
    plain: int = config["max_position_embeddings"]
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") != "yarn":
        return plain
    stretched = int(rope["factor"] * rope["original_max_position_embeddings"])
    return min(max(plain, stretched), CONTEXT_MAX)
