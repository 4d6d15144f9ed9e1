"""What `stagelink inspect` says of a model; torch and transformers are not imported for it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from stagelink.cli import inspect
from stagelink.cli.inspect_text import engines_text
from stagelink.node.asked_engines import Answers
from stagelink_numpy.tiny import make_tiny

ANSWERS = {"numpy": None, "other": "other engine: expected something else"}


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """Run the command on a tiny model whose config is changed first."""
    answers = Answers(ANSWERS, [])
    monkeypatch.setattr("stagelink.node.asked_engines.ask_engines", lambda *_, **__: answers)

    def run(*, as_json=False, change=None, stages=2, layers=None, prepare=None):
        folder = make_tiny(tmp_path / "tiny", "qwen3")
        if change is not None:
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | change))
        if prepare is not None:
            prepare(folder)
        arguments = argparse.Namespace(
            model=str(folder),
            stages=stages,
            layers=layers,
            json=as_json,
            no_cache=False,
            ask_engines=False,
        )
        assert inspect.run(arguments) == 0
        return capsys.readouterr().out

    return run


def test_json_has_every_layer_with_its_bytes_and_state(told):
    facts = json.loads(told(as_json=True))
    assert [one["layer"] for one in facts["layer_table"]] == list(range(8))
    assert all(one["kind"] == "full" for one in facts["layer_table"])
    per_position = 2 * facts["kv_heads"] * facts["head_width"] * 2
    assert all(one["state_bytes_per_position"] == per_position for one in facts["layer_table"])
    assert facts["allowed_cuts"] == list(range(1, 8))
    assert (facts["row_factor"], facts["needs_token_ids"]) == (1, False)
    assert facts["engines"] == ANSWERS
    layers = sum(one["bytes_stored"] for one in facts["layer_table"])
    assert 0 < layers < facts["bytes_stored"]
    assert sum(one["bytes_stored"] for one in facts["stages"]) == facts["bytes_stored"]


def test_a_model_that_reads_pictures_is_said_to_be_served_as_text(told):
    assert "served as text" not in told()
    from safetensors.numpy import load_file, save_file

    def see(folder):
        weights = load_file(folder / "model.safetensors")
        eyes = {"vision_tower.patch.weight": weights["model.norm.weight"]}
        save_file(weights | eyes, folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        whole = {"model_type": "llava", "text_config": config}
        (folder / "config.json").write_text(json.dumps(whole))

    text = told(prepare=see)
    assert "served as text; 1 tensors that read them are left out" in text


def test_a_stage_says_what_a_stream_takes_of_it_at_the_most(told):
    facts = json.loads(told(as_json=True, layers="0-3,3-8"))
    one, other = facts["stages"]
    per_position = 2 * facts["kv_heads"] * facts["head_width"] * 4
    positions = min(facts["context"], 2048)
    # Positions are held in steps of 512, and there is room for one of sinks.
    held = (positions // 512 + 1) * 512 * per_position
    assert [one["stream_bytes_float32"], other["stream_bytes_float32"]] == [3 * held, 5 * held]
    assert one["stream_positions"] == positions
    assert f"MiB a stream of {positions} positions" in told()


def test_text_says_layers_cuts_stages_and_who_says_no(told):
    text = told()
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if line[0] != " ")
    assert lines["cuts"] == "before any layer of 1-7"
    assert lines["engines"] == "numpy"
    assert "not other: other engine: expected something else" in text
    assert "  full         0-8: " in text
    assert "layers 4-8" in text


def test_a_cut_that_the_model_forbids_is_said_where_it_would_be(told):
    kinds = ["sliding_attention", "full_attention"] * 4
    change = {
        "model_type": "gemma4_text",
        "architectures": ["Gemma4ForCausalLM"],
        "num_kv_shared_layers": 4,
        "layer_types": kinds,
    }
    facts = json.loads(told(as_json=True, change=change, layers="0-4,4-8"))
    assert facts["allowed_cuts"] == [1, 2]
    assert facts["needs_token_ids"] is True
    assert "layer 4 reads the keys and values of layer 2" in facts["stages"][1]["cut_refused"]
    text = told(change=change, layers="0-4,4-8")
    assert "not allowed: layer 4 reads" in text
    assert "before layer 1, 2" in text
    assert "and token ids" in text
    # Without a cut by hand it is the nearest that the model allows.
    assert "layers 2-8" in told(change=change)


def test_what_every_rank_reads_of_token_tables_is_said(told):
    change = {
        "model_type": "gemma3n_text",
        "architectures": ["Gemma3nForCausalLM"],
        "num_kv_shared_layers": 0,
        "intermediate_size": [64] * 4 + [96] * 4,
        "tie_word_embeddings": True,
    }

    def tie(folder):
        from safetensors.numpy import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        del weights["lm_head.weight"]
        save_file(weights, folder / "model.safetensors")

    facts = json.loads(told(as_json=True, change=change, prepare=tie))
    assert facts["token_tensors"] == ["model.embed_tokens.weight"]
    sizes = [one["bytes_stored"] for one in facts["stages"]]
    assert sum(sizes) > facts["bytes_stored"]
    text = told(change=change, prepare=tie)
    assert "ffn 64 or 96\n" in text
    assert "which every rank holds: layers read token ids" in text
    assert "(4 residual streams), and token ids" in text


def test_a_model_that_nobody_can_run_says_so():
    assert engines_text({"one": "no", "two": "never"}).startswith("engines        none that is")


def test_an_engine_with_rules_of_its_own_says_where_it_cuts():
    text = engines_text({"one": None, "two": None}, {"one": [4, 6, 7, 8], "two": []})
    assert "one cuts before layers 4, 6-8\n" in text
    assert "two cuts nowhere" in text


def test_an_engine_that_was_not_asked_is_told_as_such():
    text = engines_text({"one": None, "two": None, "three": "no"}, {}, ["two", "three"])
    assert "two by the model's family; --ask-engines" in text
    assert "--ask-engines" not in engines_text({"one": None, "two": "no"}, {}, ["two"])


def test_inspecting_a_model_imports_neither_torch_nor_transformers(tmp_path):
    folder = make_tiny(tmp_path / "tiny", "qwen3")
    code = (
        "import sys; from stagelink.cli.main import main\n"
        f"assert main(['inspect', {str(folder)!r}, '--json']) == 0\n"
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    facts, imported = ran.stdout.splitlines()
    assert imported == "[]"
    assert json.loads(facts)["engines"]["numpy"] is None


def test_the_table_of_torch_s_families_is_that_of_its_engine():
    families = pytest.importorskip("stagelink_torch.families", reason="torch is not installed")
    from stagelink.node import engine_families

    assert families.MODULES.keys() == engine_families._TORCH
