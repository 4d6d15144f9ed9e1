"""A slow second model in float64, written from the formulas: what an engine's logits are held to.

It shares no code with an engine, keeps no cache, reads config.json itself; for short prompts only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from stagelink.engine import Checkpoint

    Doubles = npt.NDArray[np.float64]
    Complexes = npt.NDArray[np.complex128]
    Read = Callable[[str], Doubles]


# What the formulas below say; other families are compared with transformers' model (whole.py).
REFERENCE_TYPES = ("llama", "qwen2", "qwen3")


def reference_logits(checkpoint: Checkpoint, token_ids: Sequence[int]) -> Doubles:
    """Return the logits of every position, ``[len(token_ids), vocab]``.

    Llama (Touvron et al. 2023), Qwen2 with its biases and Qwen3 with its head norms.
    """
    config = checkpoint.config

    def read(name: str) -> Doubles:
        return checkpoint.read(name).astype(np.float64)

    table = read("model.embed_tokens.weight")
    rows = [table[token] for token in token_ids]
    for layer in range(config["num_hidden_layers"]):
        rows = _layer(config, read, f"model.layers.{layer}.", rows)
    final = read("model.norm.weight")
    head = table if config.get("tie_word_embeddings") else read("lm_head.weight")
    return np.stack([head @ _norm(config, row, final) for row in rows])


def _layer(config: Mapping[str, Any], read: Read, base: str, rows: list[Doubles]) -> list[Doubles]:
    """Return the rows after one decoder layer."""
    norm = read(base + "input_layernorm.weight")
    heads = _heads(config, read, base, [_norm(config, row, norm) for row in rows])
    out = read(base + "self_attn.o_proj.weight")
    rows = [row + out @ _attend(heads, at) for at, row in enumerate(rows)]
    norm = read(base + "post_attention_layernorm.weight")
    gate, up, down = (read(f"{base}mlp.{part}_proj.weight") for part in ("gate", "up", "down"))
    return [row + down @ _gated(_norm(config, row, norm), gate, up) for row in rows]


def _norm(config: Mapping[str, Any], row: Doubles, weight: Doubles) -> Doubles:
    """RMSNorm over the last axis."""
    mean = (row**2).mean(axis=-1, keepdims=True)
    scaled: Doubles = weight * row / np.sqrt(mean + float(config["rms_norm_eps"]))
    return scaled


def _gated(row: Doubles, gate: Doubles, up: Doubles) -> Doubles:
    """SwiGLU without the projection back."""
    opened = gate @ row
    return opened / (1.0 + np.exp(-opened)) * (up @ row)


def _heads(
    config: Mapping[str, Any], read: Read, base: str, rows: list[Doubles]
) -> dict[str, list[Doubles]]:
    """Return q, k and v of every position, ``[heads, head_width]`` each, q and k turned."""
    count = {"q": config["num_attention_heads"]}
    count["k"] = count["v"] = config.get("num_key_value_heads") or count["q"]
    width = config.get("head_dim") or config["hidden_size"] // count["q"]
    heads = {}
    for part in ("q", "k", "v"):
        name = f"{base}self_attn.{part}_proj"
        matrix = read(name + ".weight")
        bias = read(name + ".bias") if config["model_type"] == "qwen2" else 0.0
        heads[part] = [(matrix @ row + bias).reshape(count[part], width) for row in rows]
    for part in ("q", "k"):
        if config["model_type"] == "qwen3":
            norm = read(f"{base}self_attn.{part}_norm.weight")
            heads[part] = [_norm(config, one, norm) for one in heads[part]]
        heads[part] = [_turn(config, one, at) for at, one in enumerate(heads[part])]
    return heads


def _attend(heads: dict[str, list[Doubles]], at: int) -> Doubles:
    """Return the attention of position ``at`` over the positions up to it, all heads in a row."""
    query = heads["q"][at]
    group = len(query) // len(heads["k"][0])
    results = []
    for head, one in enumerate(query):
        keys = np.stack([heads["k"][past][head // group] for past in range(at + 1)])
        values = np.stack([heads["v"][past][head // group] for past in range(at + 1)])
        scores = keys @ one / math.sqrt(len(one))
        weights = np.exp(scores - scores.max())
        results.append(weights @ values / weights.sum())
    return np.concatenate(results)


def _turn(config: Mapping[str, Any], heads: Doubles, at: int) -> Doubles:
    """Turn the pairs (i, i + half) of every head, seen as complex numbers, by their angles."""
    half = heads.shape[1] // 2
    angles = np.array([at * _frequency(config, pair / half) for pair in range(half)])
    turned: Complexes = (heads[:, :half] + 1j * heads[:, half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=1)


def _frequency(config: Mapping[str, Any], exponent: float) -> float:
    """Return one pair's frequency, scaled as config.json says in its older or newer place."""
    newer = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or newer
    theta = config.get("rope_theta") or newer.get("rope_theta") or 10000.0
    frequency = math.pow(theta, -exponent)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return frequency
    stretched = frequency / float(scaling["factor"])
    if kind == "linear":
        return stretched
    if kind != "llama3":
        raise NotImplementedError(f"the reference has no rope scaling {kind}")
    original = int(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelength = 2.0 * math.pi / frequency
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return stretched
    smooth = (original / wavelength - low) / (high - low)
    return (1.0 - smooth) * stretched + smooth * frequency
