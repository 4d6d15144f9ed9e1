"""MTP heads as drafters: against the modules of transformers, their own state, and refusals.

What is accepted of their drafts is in tests/unit/bench/test_drafter.py.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")
pytest.importorskip("transformers", reason="the tiny checkpoints are made with transformers")

import torch
from tests.engines.torch.rig import make_stage, token_ids

from stagelink.engine import ConfigError, EngineError
from stagelink_conformance.drafters import make_drafter_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.plans import Entry, RoundPlan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    from stagelink_torch import TorchEngine
    from stagelink_torch.drafter import MtpDrafter

FAMILIES = ("qwen3_5_text", "qwen3_next", "deepseek_v3")
ROWS = 30


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = make_drafter_family(tmp_path_factory.mktemp("drafts") / name, name)
        return made[name]

    return folder


class Rig:
    """A whole model, its drafter, and rows of one text."""

    def __init__(self, folder: Path) -> None:
        self.engine: TorchEngine = make_stage(folder, 0, 8)
        self.ids = np.array(token_ids(count=ROWS + 1), dtype=np.int64)
        plan = RoundPlan.of(Entry(1, 1, 0, ROWS))
        buffer = Pipeline([self.engine]).send(plan, self.ids[:ROWS])
        self.rows = buffer.reshape(ROWS, -1).copy()

    def drafter(self) -> MtpDrafter:
        return self.engine.load_drafter()

    def draft(self, drafter: MtpDrafter, first: int, end: int, count: int = 1) -> list[int]:
        rows = np.ascontiguousarray(self.rows[first:end]).reshape(-1)
        return drafter.draft(7, first, rows, self.ids[first + 1 : end + 1], count).tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_drafts_are_those_of_transformers_own_modules(
    models: Callable[[str], Path], name: str
) -> None:
    folder = models(name)
    rig = Rig(folder)
    head = Reference(folder, name)
    drafter = rig.drafter()
    for end in (1, 2, 9, 10, ROWS):
        held = drafter.position(7)
        assert rig.draft(drafter, held, end, 3) == head.drafts(rig.ids[: end + 1], 3)


@pytest.mark.parametrize("name", FAMILIES)
def test_cutting_back_and_drafting_again_equals_a_fresh_start(
    models: Callable[[str], Path], name: str
) -> None:
    rig = Rig(models(name))
    one, fresh = rig.drafter(), rig.drafter()
    rig.draft(one, 0, 20, 4)
    one.keep(7, 12)
    rig.draft(fresh, 0, 12, 0)
    assert rig.draft(one, 12, ROWS, 4) == rig.draft(fresh, 12, ROWS, 4)
    # The position of the first row cuts as a keep does.
    assert rig.draft(one, 12, ROWS, 4) == rig.draft(fresh, 12, ROWS, 4)


def test_drafting_leaves_nothing_behind(models: Callable[[str], Path]) -> None:
    rig = Rig(models("qwen3_5_text"))
    one, other = rig.drafter(), rig.drafter()
    for end in range(4, ROWS, 4):
        rig.draft(one, end - 4, end, 5)
        assert rig.draft(other, end - 4, end, 0) == []
    assert one.position(7) == other.position(7) == 28
    assert rig.draft(one, 28, ROWS, 5) == rig.draft(other, 28, ROWS, 5)


def test_the_lead_of_a_split_drafts_as_the_whole_model(models: Callable[[str], Path]) -> None:
    rig = Rig(models("qwen3_next"))
    lead = make_stage(models("qwen3_next"), 0, 3).load_drafter()
    assert rig.draft(lead, 0, ROWS, 4) == rig.draft(rig.drafter(), 0, ROWS, 4)


def test_rows_before_the_final_norm_are_another_choice(models: Callable[[str], Path]) -> None:
    rig = Rig(models("qwen3_5_text"))
    after, before = rig.drafter(), rig.engine.load_drafter(after_norm=False)
    drafts = [
        [rig.draft(one, end - 1, end)[0] for end in range(1, ROWS)] for one in (after, before)
    ]
    assert drafts[0] != drafts[1]


def test_streams_of_a_drafter_do_not_see_each_other(models: Callable[[str], Path]) -> None:
    rig = Rig(models("deepseek_v3"))
    one, other = rig.drafter(), rig.drafter()
    ids = np.array(token_ids(seed=4, count=9), dtype=np.int64)
    one.draft(3, 0, np.ascontiguousarray(rig.rows[:9]).reshape(-1), ids, 3)
    assert rig.draft(one, 0, 20, 3) == rig.draft(other, 0, 20, 3)
    one.end(3)
    assert one.position(3) == 0


@pytest.mark.parametrize(
    ("first", "ids", "count", "reason"),
    [
        (4, [1, 2], 1, "wrong_position"),
        (0, [1, 300], 1, "token_id"),
        (0, [1], 1, "rows_size"),
        (0, [], 1, "too_many_rows"),
        (0, [1, 2], 256, "context_overrun"),
    ],
)
def test_what_cannot_be_drafted_is_refused_by_its_code(
    models: Callable[[str], Path], first: int, ids: list[int], count: int, reason: str
) -> None:
    rig = Rig(models("qwen3_5_text"))
    drafter = rig.drafter()
    rows = np.ascontiguousarray(rig.rows[:2]).reshape(-1)
    with pytest.raises(EngineError) as caught:
        drafter.draft(7, first, rows, np.array(ids, dtype=np.int64), count)
    assert caught.value.reason == reason
    assert drafter.position(7) == 0


def test_more_streams_than_slots_are_refused(models: Callable[[str], Path]) -> None:
    rig = Rig(models("qwen3_5_text"))
    drafter = rig.drafter()
    rows = np.ascontiguousarray(rig.rows[:1]).reshape(-1)
    for stream in range(4):
        drafter.draft(stream, 0, rows, rig.ids[1:2], 1)
    with pytest.raises(EngineError) as caught:
        drafter.draft(9, 0, rows, rig.ids[1:2], 1)
    assert caught.value.reason == "streams_full"


def test_a_checkpoint_without_a_head_is_refused_by_name(tiny: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_stage(tiny("qwen3_5_text"), 0, 8).load_drafter()
    assert caught.value.reason == "engine_drafter"


def test_a_follower_has_no_drafter(models: Callable[[str], Path]) -> None:
    with pytest.raises(EngineError) as caught:
        make_stage(models("qwen3_5_text"), 4, 8).load_drafter()
    assert caught.value.reason == "engine_role"


class Reference:
    """The same head from transformers' layers: whole sequences, no cache."""

    def __init__(self, folder: Path, name: str) -> None:
        from safetensors.torch import load_file

        from stagelink_conformance.whole import load_whole

        self.model: Any = load_whole(folder)
        tensors = load_file(folder / "model.safetensors")
        deepseek = name.startswith("deepseek")
        prefix = "model.layers.8." if deepseek else "mtp.layers.0."
        body = self.model.model
        config = copy.deepcopy(self.model.config)
        if not deepseek:
            config.layer_types = [*config.layer_types, "full_attention"]
        config.num_hidden_layers = 9
        self.layer = type(body.layers[-1])(config, 8).eval()
        self.layer.load_state_dict(_state(tensors, prefix, self.layer), strict=True)
        names = (
            ("enorm", "hnorm", "shared_head.norm")
            if deepseek
            else ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        )
        at = prefix if deepseek else "mtp."
        self.norms = []
        for one in names:
            norm = copy.deepcopy(body.norm)
            norm.weight.data = tensors[f"{at}{one}.weight"]
            self.norms.append(norm)
        self.join = tensors[at + ("eh_proj.weight" if deepseek else "fc.weight")]

    @torch.no_grad()
    def drafts(self, ids: npt.NDArray[np.int64], count: int) -> list[int]:
        """Draft after the last of ``ids``, whose rows but the last are the model's own."""
        body = self.model.model
        following = torch.from_numpy(ids[1:].copy())[None]
        hidden = body(torch.from_numpy(ids[:-1].copy())[None]).last_hidden_state
        found: list[int] = []
        for _ in range(count):
            parts = self.norms[0](body.embed_tokens(following)), self.norms[1](hidden)
            rows = torch.cat(parts, dim=-1) @ self.join.T
            turns = body.rotary_emb(rows, torch.arange(rows.shape[1])[None])
            out = self.norms[2](self.layer(rows, position_embeddings=turns, attention_mask=None))
            token = self.model.lm_head(out[:, -1:]).argmax(dim=-1)
            found.append(int(token))
            following = torch.cat((following, token), dim=1)
            hidden = torch.cat((hidden, out[:, -1:]), dim=1)
        return found


def _state(tensors: dict[str, torch.Tensor], prefix: str, layer: Any) -> dict[str, torch.Tensor]:
    """Return a layer's tensors by its own names, experts stacked as its modules have them."""
    state = {name: tensors.get(prefix + name) for name in layer.state_dict()}
    experts = f"{prefix}mlp.experts."
    count = sum(name.startswith(experts) and "gate_proj" in name for name in tensors)
    if count:
        kinds = (
            [f"{experts}{e}.{one}_proj.weight" for e in range(count)]
            for one in ("gate", "up", "down")
        )
        gate, up, down = (torch.stack([tensors[name] for name in kind]) for kind in kinds)
        state["mlp.experts.gate_up_proj"] = torch.cat((gate, up), dim=1)
        state["mlp.experts.down_proj"] = down
    assert all(tensor is not None for tensor in state.values())
    return state  # type: ignore[return-value]
