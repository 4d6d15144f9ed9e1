"""Decoders outside the table, and a GGUF's of another architecture: what is read of their configs.

Nothing is compared with transformers here.
"""

from __future__ import annotations

import pytest
from tests.unit.checkpoint.small_families import SIZES, refused, table_of

from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.families.wide import WideFamily
from stagelink.engine import EngineSettings
from stagelink.errors import CheckpointError, ConfigError
from stagelink_numpy import NumpyEngine


def test_another_decoder_is_a_wide_one_whose_layers_are_found_by_name():
    config = {
        "model_type": "olmo9",
        "architectures": ["Olmo9ForCausalLM"],
        "n_layer": 2,
        "d_model": 32,
        "n_head": 4,
        "vocab_size": 50,
        "layer_types": ["full_attention", "other_kind"],
    }
    shapes = {
        "transformer.wte.weight": (50, 32),
        "transformer.h.0.attn.weight": (32, 32),
        "transformer.h.1.attn.weight": (32, 32),
        "transformer.ln_f.weight": (32,),
    }
    family = read_family(config, tensors=table_of(shapes))
    assert isinstance(family, WideFamily)
    assert (family.layers, family.width, family.vocab) == (2, 32, 50)
    assert family.layer_kinds == ("full", "other")
    assert set(family.layer_tensors(1)) == {"transformer.h.1.attn.weight"}
    assert family.embed_name == "transformer.wte.weight"
    ends = {"transformer.wte.weight", "transformer.ln_f.weight"}
    assert set(family.own_tensors(0, 1, lead=True)) == ends | {"transformer.h.0.attn.weight"}
    family.check_tensors(table_of(shapes))
    shapes.pop("transformer.h.1.attn.weight")
    with pytest.raises(CheckpointError) as caught:
        family.check_tensors(table_of(shapes))
    assert caught.value.reason == "tensor_missing"
    assert refused(config | {"architectures": ["Olmo9Encoder"]}).reason == "architecture"


def test_the_text_of_a_model_with_pictures_is_of_the_family_that_it_says():
    text = SIZES | {"model_type": "llama"}
    whole = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}
    family = read_family(whole | {"text_config": text})
    assert (family.model_type, family.prefix) == ("llama", "model.language_model.")
    other = {"text_config": text, "architectures": ["LlavaEncoder"]}
    assert refused(whole | other).reason == "architecture"
    assert refused(text | {"architectures": whole["architectures"]}).reason == "architecture"


def test_a_list_of_kinds_says_how_many_layers_a_wide_family_has():
    sizes = {key: value for key, value in SIZES.items() if key != "num_hidden_layers"}
    kinds = {"layers_block_type": ["linear_attention", "moe", "mlp"]}
    assert read_family(sizes | {"model_type": "nemotron_h"} | kinds).layers == 3
    said = {"model_type": "nemotron_h", "num_hidden_layers": 4}
    assert read_family(sizes | kinds | said).layers == 4
    assert refused(sizes | {"model_type": "nemotron_h"}).reason == "config_field"


def test_a_wide_family_may_call_its_sizes_as_openelm_does():
    sizes = {
        "model_type": "openelm",
        "num_transformer_layers": 2,
        "model_dim": 32,
        "max_context_length": 64,
        "vocab_size": 50,
    }
    family = read_family(sizes)
    assert (family.layers, family.width, family.context) == (2, 32, 64)
    assert refused(sizes | {"model_dim": 0}).reason == "config_field"


def test_rows_of_a_wide_family_are_wider_where_layers_read_the_embedded_ones():
    for name in ("rwkv7", "talkie"):
        assert read_family(SIZES | {"model_type": name}).row_width == 2 * SIZES["hidden_size"]
    assert read_family(SIZES | {"model_type": "telechat3"}).row_width == SIZES["hidden_size"]


def test_a_gguf_of_an_architecture_without_float_reading_is_a_family_of_its_own():
    config = SIZES | {"model_type": "gguf:phi3", "tie_word_embeddings": False}
    shapes = {"token_embd.weight": (100, 64), "output_norm.weight": (64,)}
    shapes |= {f"blk.{n}.attn_qkv.weight": (64, 64) for n in range(4)}
    family = read_family(config, tensors=table_of(shapes))
    assert (family.architecture, family.layers, family.width) == ("phi3", 4, 64)
    assert set(family.own_tensors(1, 3, lead=False)) == {
        "blk.1.attn_qkv.weight", "blk.2.attn_qkv.weight",
    }  # fmt: skip
    assert not isinstance(family, WideFamily)
    with pytest.raises(ConfigError) as caught:
        NumpyEngine(None, family, 0, 4, lead=True, settings=EngineSettings(context=8))
    assert caught.value.reason == "engine_family"
    assert "--engine llamacpp" in str(caught.value)
