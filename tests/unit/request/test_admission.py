"""What may enter a ring."""

from __future__ import annotations

import pytest

from stagelink.errors import ConfigError
from stagelink.request.admission import check_max_tokens, check_prompt


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([], "prompt_empty"),
        ([1, 256], "token_id"),
        ([-1], "token_id"),
        ([1] * 9, "prompt_context"),
    ],
)
def test_a_prompt_that_no_stage_could_run_is_refused(ids: list[int], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_prompt(ids, vocab=256, context=8)
    assert caught.value.reason == reason


def test_a_prompt_may_fill_the_context() -> None:
    check_prompt([0] * 8, vocab=256, context=8)


def test_no_tokens_asked_for_is_refused() -> None:
    check_max_tokens(None)
    with pytest.raises(ConfigError) as caught:
        check_max_tokens(0)
    assert caught.value.reason == "max_tokens"
