"""Experts of replayed rounds, in both forms, beside experts that are computed one after the other.

It routes nothing: choices are drawn.
"""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import torch

from stagelink_torch.experts import Experts
from stagelink_torch.gpt_oss import _clamped_gate
from stagelink_torch.layer import Batch, Piece, Setup

WIDTH, INNER, EXPERTS, USED = 24, 16, 16, 2
FORMS = {"picked": 2, "all": 5}


def _setup(dtype: torch.dtype = torch.float32) -> Setup:
    return Setup(torch.device("cpu"), dtype, dtype, 512, 8, 8)


def _experts(*, biased: bool = False, dtype: torch.dtype = torch.float32) -> Experts:
    generator = torch.Generator().manual_seed(2)

    def drawn(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * 0.2).to(dtype)

    stacked = drawn(EXPERTS, 2 * INNER, WIDTH), drawn(EXPERTS, WIDTH, INNER)
    if not biased:
        return Experts(*stacked, _setup(dtype))
    gate = functools.partial(_clamped_gate, alpha=1.702, limit=7.0, sigmoid=torch.sigmoid)
    biases = drawn(EXPERTS, 2 * INNER), drawn(EXPERTS, WIDTH)
    return Experts(*stacked, _setup(dtype), gate=gate, biases=biases)


def _drawn(count: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Return rows, shares and choices."""
    generator = torch.Generator().manual_seed(count)
    rows = torch.randn(count, WIDTH, generator=generator).to(dtype)
    shares = torch.rand(count, USED, generator=generator)
    chosen = [torch.randperm(EXPERTS, generator=generator)[:USED] for _ in range(count)]
    return rows, shares, torch.stack(chosen)


def _batch(count: int, bucket: int) -> Batch:
    return Batch.of([Piece(at, 3, at, at + 1) for at in range(count)], _setup(), bucket)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_both_forms_give_what_experts_one_after_the_other_give(form: str, *, biased: bool) -> None:
    count, experts = FORMS[form], _experts(biased=biased)
    drawn = _drawn(count)
    expected = experts(*drawn, _batch(count, 0))
    torch.testing.assert_close(experts(*drawn, _batch(count, 256)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_limit_on_memory_changes_nothing_but_the_parts(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, experts = FORMS[form], _experts()
    drawn = _drawn(count)
    whole = experts(*drawn, _batch(count, 256))
    # Of a few picks, and of a few experts, each.
    most = {"picked": 3 * 2 * INNER * WIDTH * 4, "all": 3 * count * (2 * INNER + WIDTH) * 4}
    monkeypatch.setattr("stagelink_torch.expert_forms._BYTES_MAX", most[form])
    parts = experts(*drawn, _batch(count, 256))
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_an_expert_that_no_row_chose_may_give_no_numbers(form: str) -> None:
    count, experts = FORMS[form], _experts()
    rows, shares, chosen = _drawn(count)
    free = next(one for one in range(EXPERTS) if one not in chosen)
    before = experts(rows, shares, chosen, _batch(count, 256))
    experts._down[free].weight.fill_(float("nan"))
    assert torch.equal(experts(rows, shares, chosen, _batch(count, 256)), before)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_of_no_numbers_changes_no_other(form: str) -> None:
    count, experts = FORMS[form], _experts()
    rows, shares, chosen = _drawn(count)
    before = experts(rows, shares, chosen, _batch(count, 256))
    rows[1] = float("nan")
    after = experts(rows, shares, chosen, _batch(count, 256))
    kept = [at for at in range(count) if at != 1]
    assert torch.equal(after[kept], before[kept])
    assert after[1].isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_sixteen_bits_stay_so_and_close(form: str) -> None:
    count, experts = FORMS[form], _experts(dtype=torch.bfloat16)
    rows, shares, chosen = _drawn(count, torch.bfloat16)
    expected = experts(rows, shares, chosen, _batch(count, 0))
    got = experts(rows, shares, chosen, _batch(count, 256))
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-3)
