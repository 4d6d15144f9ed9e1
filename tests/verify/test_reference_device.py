"""A reference of another engine computes where the ring does, if it can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stagelink.config import ModelConfig
from stagelink.errors import ConfigError
from stagelink.node import reference_choice
from stagelink.node.reference_choice import ReferenceChoice

if TYPE_CHECKING:
    from pathlib import Path


class _Watch:
    def converting(self, what: str, done: int, total: int) -> None:
        """Hear nothing."""


@pytest.mark.parametrize(
    ("devices", "engine", "asked"),
    [
        (("cuda:1",), "other", ["cuda:1", "auto"]),
        (("cuda:0", "cuda:1"), "other", ["auto"]),
        (("cuda:0", "cuda:1"), "numpy", ["cuda:0"]),
        (("auto",), "other", ["auto"]),
    ],
)
def test_the_device_that_all_ranks_share_is_tried_first(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], engine: str,
    asked: list[str],
) -> None:  # fmt: skip
    seen = []

    def refuse(_checkpoint: Any, _name: str, settings: Any, _progress: Any) -> None:
        seen.append(settings.device)
        raise ConfigError("expected another device", reason="engine_device")

    monkeypatch.setattr(reference_choice, "Reference", refuse)
    model = ModelConfig(str(tiny), 2, devices=devices)
    watch: Any = _Watch()
    with pytest.raises(ConfigError, match="another device"):
        ReferenceChoice.of(model, watch, kind="whole", engine=engine)
    assert seen == asked
