"""llama.cpp computes from a GGUF what transformers computes from our reading of it.

It is the check that names, the order of q and k rows, norms and config are meant as we read them.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.checkpoint.gguf_families import metadata, to_gguf, write_gguf
from tests.unit.checkpoint.small_families import write_folder
from tests.unit.checkpoint.test_gguf_families import CASES

from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.open import open_checkpoint

IDS = np.random.default_rng(11).integers(0, 90, 40).tolist()
# llama.cpp keeps keys and values in half precision here; logits lie between -6 and 6.
CLOSE = 0.03


def logits_of_llama_cpp(path):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    model = llama_cpp.Llama(
        str(path), n_ctx=64, n_batch=64, n_threads=1, logits_all=True, verbose=False
    )
    try:
        model.eval(IDS)
        return np.array(model.scores[: len(IDS)])
    finally:
        model.close()


def logits_of_transformers(folder):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", CASES)
def test_llama_cpp_and_transformers_agree_on_what_the_file_means(tmp_path, name):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    architecture, config, more = CASES[name]
    # Past the sliding window and the layers that differ; wide enough that logits are not flat.
    slides = name in ("gemma3", "gpt_oss")
    config = config | {"num_hidden_layers": 8, "sliding_window": 16 if slides else None}
    random = np.random.default_rng(4)
    weights = {}
    for one, shape in read_family(config).all_tensors().items():
        centre = 1.0 if one.endswith("norm.weight") and name != "gemma3" else 0.0
        weights[one] = random.normal(centre, 0.2, shape).astype(np.float32)
    keys = metadata(architecture, config) | more
    tensors = to_gguf(architecture, config, weights)
    path = write_gguf(tmp_path / "m.gguf", architecture, keys, tensors, config["vocab_size"])
    checkpoint = open_checkpoint(path, cache=False)
    read = {one: checkpoint.read(one) for one in checkpoint.tensors}
    folder = tmp_path / "folder"
    folder.mkdir()
    # Their default for padding lies outside so small a vocabulary.
    told = {**checkpoint.config, "pad_token_id": None}
    if name == "gpt_oss":
        # llama.cpp rounds the bounds of YaRN's ramp, which the model was not trained with.
        told["rope_parameters"] = {**told["rope_parameters"], "truncate": True}
    write_folder(folder, told, read)
    theirs, ours = logits_of_llama_cpp(path), logits_of_transformers(folder)
    assert np.abs(ours).max() > 1
    assert np.abs(theirs - ours).max() < CLOSE * np.abs(ours).max()
