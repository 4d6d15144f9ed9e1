"""The gated delta rule and its convolution: both forms, against transformers' and each other."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from stagelink_torch.conv import causal_conv  # noqa: E402
from stagelink_torch.gated_delta import (  # noqa: E402
    RECURRENT_ROWS_MAX,
    Steps,
    advance,
    advance_blocks,
    advance_rows,
)

KEY_HEADS, HEADS, KEY, VALUE = 2, 4, 16, 24


@dataclasses.dataclass(frozen=True)
class Rows:
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    decay: torch.Tensor
    rate: torch.Tensor

    def part(self, begin: int, end: int) -> Rows:
        return Rows(*(getattr(self, one.name)[begin:end] for one in dataclasses.fields(self)))

    def steps(self) -> Steps:
        return Steps(self.queries, self.keys, self.values, self.decay, self.rate)


def draw(seed: int, rows: int) -> tuple[Rows, torch.Tensor]:
    maker = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=maker)

    decay = -torch.rand(rows, HEADS, generator=maker) * 2
    rate = torch.rand(rows, HEADS, generator=maker)
    parts = normal(rows, KEY_HEADS, KEY), normal(rows, KEY_HEADS, KEY), normal(rows, HEADS, VALUE)
    return Rows(*parts, decay, rate), normal(HEADS, KEY, VALUE)


def test_the_recurrent_form_is_the_formula_in_float64() -> None:
    rows, state = draw(1, 9)
    expected, held = [], state.double()
    unit = [
        one.double() / one.double().norm(dim=-1, keepdim=True) for one in (rows.queries, rows.keys)
    ]
    for t in range(9):
        query, key = (one[t].repeat_interleave(HEADS // KEY_HEADS, dim=0) for one in unit)
        held = held * rows.decay[t].double().exp()[:, None, None]
        error = rows.values[t].double() - torch.einsum("hkv,hk->hv", held, key)
        held = held + rows.rate[t].double()[:, None, None] * torch.einsum("hk,hv->hkv", key, error)
        expected.append(torch.einsum("hkv,hk->hv", held, query) / KEY**0.5)
    out = advance_rows(rows.steps(), state)
    assert (out.double() - torch.stack(expected)).abs().max() < 1e-5
    assert (state.double() - held).abs().max() < 1e-5


@pytest.mark.parametrize("count", [2, 17, 64, 65, 130])
def test_blocks_agree_with_the_recurrence(count: int) -> None:
    rows, state = draw(count, count)
    other = state.clone()
    one, two = advance_rows(rows.steps(), state), advance_blocks(rows.steps(), other)
    assert (one - two).abs().max() < 2e-5
    assert (state - other).abs().max() < 2e-5


def test_rows_have_the_same_bits_in_one_recurrent_call_and_in_many() -> None:
    rows, state = draw(3, 12)
    other = state.clone()
    whole = advance_rows(rows.steps(), state)
    cuts = [0, 1, 2, 5, 12]
    pairs = itertools.pairwise(cuts)
    parts = [advance_rows(rows.part(a, b).steps(), other) for a, b in pairs]
    assert torch.equal(whole, torch.cat(parts))
    assert torch.equal(state, other)


def test_few_rows_take_the_recurrent_form_and_more_take_blocks() -> None:
    for count, form in (
        (RECURRENT_ROWS_MAX, advance_rows),
        (RECURRENT_ROWS_MAX + 1, advance_blocks),
    ):
        rows, state = draw(4, count)
        other = state.clone()
        assert torch.equal(advance(rows.steps(), state), form(rows.steps(), other))


@pytest.mark.parametrize("count", [5, 90])
def test_both_forms_agree_with_transformers(count: int) -> None:
    theirs = pytest.importorskip(
        "transformers.models.qwen3_next.modeling_qwen3_next", reason="transformers is not installed"
    )
    rows, state = draw(5, count)
    batched = [getattr(rows, name)[None] for name in ("queries", "keys", "values")]
    facts = {"g": rows.decay[None], "beta": rows.rate[None], "initial_state": state[None].clone()}
    flags = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    chunk = theirs.torch_chunk_gated_delta_rule(*batched, **facts, **flags)
    for form in (advance_rows, advance_blocks):
        own = state.clone()
        out = form(rows.steps(), own)
        assert (out - chunk[0][0]).abs().max() < 2e-5
        assert (own - chunk[1][0]).abs().max() < 2e-5


def test_blocks_have_the_bits_of_transformers_blocks() -> None:
    theirs = pytest.importorskip(
        "transformers.models.qwen3_next.modeling_qwen3_next", reason="transformers is not installed"
    )
    rows, state = draw(8, 130)
    batched = [getattr(rows, name)[None] for name in ("queries", "keys", "values")]
    expected, after = theirs.torch_chunk_gated_delta_rule(
        *batched,
        g=rows.decay[None],
        beta=rows.rate[None],
        initial_state=state[None].clone(),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    assert torch.equal(advance_blocks(rows.steps(), state), expected[0])
    assert torch.equal(state, after[0])


def test_a_strong_decay_does_not_overflow() -> None:
    rows, state = draw(6, 64)
    strong = dataclasses.replace(rows, decay=rows.decay * 60)
    out = advance_blocks(strong.steps(), state)
    assert torch.isfinite(out).all()
    assert torch.isfinite(state).all()


def test_the_convolution_is_the_causal_one_and_hands_its_past_on() -> None:
    maker = torch.Generator().manual_seed(7)
    rows = torch.randn(11, 6, generator=maker)
    taps = torch.randn(4, 6, generator=maker)
    plain = torch.nn.functional.conv1d(rows.T[None], taps.T[:, None], padding=3, groups=6)[
        0, :, :11
    ]
    expected = torch.nn.functional.silu(plain.T)
    past = torch.zeros(3, 6)
    whole = causal_conv(rows, past, taps)
    assert (whole - expected).abs().max() < 1e-6
    assert torch.equal(past, rows[-3:])
    past = torch.zeros(3, 6)
    parts = [causal_conv(rows[a:b], past, taps) for a, b in ((0, 1), (1, 3), (3, 11))]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(past, rows[-3:])
