"""Runs the promises on families with Mamba layers, which the table of tiny families does not have.

Bits beside the library's own model are in test_recurrent_families.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("transformers", reason="the transformers engine is not installed here")

from tests.engines.transformers.recurrent_families import LAYERS, RECURRENT

from stagelink_conformance.families import FAMILIES
from stagelink_conformance.promises.test_hostile import *  # noqa: F403
from stagelink_conformance.promises.test_loading import *  # noqa: F403
from stagelink_conformance.promises.test_state import *  # noqa: F403
from stagelink_conformance.promises.test_streams import *  # noqa: F403
from stagelink_transformers import TransformersEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.long

STAGELINK_FAMILIES = ("falcon_h1", "jamba", "mamba2", "nemotron_h")


@pytest.fixture(scope="session", autouse=True)
def _recurrent() -> Iterator[None]:
    """Let the suite make these families, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name in STAGELINK_FAMILIES:
            model_type, fields = RECURRENT[name]
            patch.setitem(FAMILIES, name, (model_type, {"num_hidden_layers": LAYERS, **fields}))
        yield


@pytest.fixture(scope="session")
def stagelink_engine() -> type:
    return TransformersEngine
