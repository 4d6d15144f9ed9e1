"""Holds the MLX engine's rows against mlx_lm's own whole model, for families that have no other.

It knows no family: who calls says the config. The whole model is loaded as mlx_lm loads it.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.engines.mlx.rig import in_chunks, logits_of, make_engine, make_pipeline

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import ConfigError, read_family
from stagelink_numpy.tiny import END_OF_TEXT, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    Rows = npt.NDArray[np.float32]

__all__ = ["WholeVariant", "hold_whole", "quantized_whole", "refuse_whole", "write_whole"]

_ROWS = 232
_CHUNKS = (70, 1, 1, 30, 90, 40)
_SPREAD = 0.12
_NOISE = 0.25
_NORMS = ("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight", "_g")
_SHARED: dict[str, Any] = {
    "architectures": ["TinyForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": END_OF_TEXT,
}


@dataclasses.dataclass(frozen=True)
class WholeVariant:
    """One config of a family that mlx_lm alone defines.

    Attributes:
        module: In ``mlx_lm.models``.
        fields: Of config.json beside those that all have; ``None`` takes a field out.
        refused: The reason of the refusal; empty where the model is to be run.
        field: What the refusal has to name.
        names: Parts of mlx_lm's names of tensors, with what the family's own files call them.
        file: Fields that config.json alone has.
        is_stacked: Whether experts lie in one tensor, as in MLX's files.
        blocks: What stacks of experts, with their biases, are numbered under, if not as usual.
        bits: Of the weights, where mlx_lm's own tools quantize the folder.
        group: Values that share a scale there.
        tolerance: Largest difference of a logit; MLX's own RoPE has other digits, which a small
            theta shows.
        latent_epsilon: What the norms of latents add, where mlx_lm's add another number; else 0.
        is_stepped: Whether mlx_lm's model is right about one row at a time alone.
        seed: Draws the weights and the token ids.
    """

    module: str
    fields: dict[str, Any]
    refused: str = ""
    field: str = ""
    names: tuple[tuple[str, str], ...] = ()
    file: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_stacked: bool = False
    blocks: str = ""
    bits: int = 0
    group: int = 32
    tolerance: float = 2e-5
    latent_epsilon: float = 0.0
    is_stepped: bool = False
    seed: int = 4


def hold_whole(folder: Path, variant: WholeVariant) -> None:
    """Make the variant in ``folder``; hold its rows, split and whole, against mlx_lm's."""
    from mlx_lm.utils import load_model

    write_whole(folder, variant)
    if variant.bits:
        folder = quantized_whole(folder, variant.bits, variant.group)
    rng = np.random.default_rng(variant.seed)
    ids = [int(one) for one in rng.integers(0, 250, _ROWS)]
    model, _ = load_model(folder)
    if variant.latent_epsilon:
        _correct_latents(model, variant.latent_epsilon)
    layers = len(model.layers)
    logits = np.concatenate(_logits(model, ids, variant))
    # What is never drawn has the lowest logit here, and no number there.
    expected = np.maximum(logits, np.finfo(np.float32).min)
    whole = _rows(folder, ids, (), layers)
    cuts = _cuts(folder)
    assert whole.tobytes() == _rows(folder, ids, cuts, layers).tobytes()
    assert np.abs(whole - expected).max() <= variant.tolerance
    assert np.array_equal(whole.argmax(axis=1), expected.argmax(axis=1))
    # A model whose logits are flat would be held by anything.
    assert expected.astype(np.float64).std() > _NOISE


def _cuts(folder: Path) -> list[int]:
    """Return the usual cuts, or all that the model allows where it does not allow those."""
    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    allowed = family.allowed_cuts()
    usual = [at for at in (1, 2, 5) if at < family.layers]
    return usual if set(usual) <= set(allowed) else list(allowed)


def _correct_latents(model: Any, epsilon: float) -> None:
    for path, module in model.named_modules():
        if path.endswith(("q_a_layernorm", "kv_a_layernorm")):
            module.eps = epsilon


def _logits(model: Any, ids: Sequence[int], variant: WholeVariant) -> list[Rows]:
    """Return the logits of mlx_lm's model, of all rows or of each."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    if not variant.is_stepped:
        return [np.array(model(mx.array([ids]))[0].astype(mx.float32))]
    cache = make_prompt_cache(model)
    return [np.array(model(mx.array([[one]]), cache=cache)[0].astype(mx.float32)) for one in ids]


def refuse_whole(folder: Path, variant: WholeVariant) -> None:
    """Make the variant in ``folder``; it is refused by its field before a byte is read."""
    write_whole(folder, variant)
    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    with pytest.raises(ConfigError, match=variant.field) as caught:
        make_engine(checkpoint, 0, next(iter(family.allowed_cuts()), family.layers))
    assert (caught.value.reason, checkpoint.bytes_read) == (variant.refused, 0)


def write_whole(folder: Path, variant: WholeVariant) -> dict[str, Any]:
    """Write the variant's checkpoint, as the family's own files are; return its config."""
    from mlx_lm.utils import _get_classes
    from safetensors.numpy import save_file

    said = {**_SHARED, "model_type": variant.module, **variant.fields}
    config = {key: value for key, value in said.items() if value is not None}
    model_class, arguments_class = _get_classes(config)
    model = model_class(arguments_class.from_dict(config))
    save_file(_tensors(model, variant), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | variant.file), encoding="utf-8")
    write_tokenizer(folder)
    return config


def quantized_whole(folder: Path, bits: int, group: int = 32) -> Path:
    """Quantize a folder as mlx_lm does; return the new one."""
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    model, config = load_model(folder)
    model, config = quantize_model(model, config, group_size=group, bits=bits)
    made = folder / "quantized"
    save_model(made, model)
    save_config(config, made / "config.json")
    write_tokenizer(made)
    return made


def _tensors(model: Any, variant: WholeVariant) -> dict[str, Rows]:
    """Draw the weights of mlx_lm's model, under the names of the family's own files."""
    from mlx.utils import tree_flatten

    rng, found = np.random.default_rng(variant.seed), {}
    for name, wanted in sorted(tree_flatten(model.parameters())):
        drawn = rng.standard_normal(wanted.shape).astype(np.float32)
        is_norm = wanted.ndim == 1 and name.endswith(_NORMS)
        weight = drawn * (_NOISE if wanted.ndim == 1 else _SPREAD) + np.float32(is_norm)
        if wanted.ndim == 0:
            # A scale, which is none below 0 or near it.
            weight = np.array(_SPREAD * (1 + drawn**2), np.float32)
        own = name
        for new, old in variant.names:
            own = own.replace(new, old)
        if variant.blocks and ".switch_mlp." in own:
            for expert, one in enumerate(weight):
                found[own.replace(".switch_mlp.", f".{variant.blocks}.{expert}.")] = one
        elif weight.ndim == 3 and not variant.is_stacked:
            stem = own.replace(".switch_mlp.", ".experts.")
            for expert, one in enumerate(weight):
                found[stem.replace(".experts.", f".experts.{expert}.")] = one
        else:
            found[own] = weight
    return found


def _rows(folder: Path, ids: Sequence[int], cuts: Sequence[int], layers: int) -> Rows:
    line = make_pipeline(folder, cuts, layers)
    return logits_of(line.play(in_chunks(ids, _CHUNKS)))
