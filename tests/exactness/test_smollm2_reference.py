"""SmolLM2's logits are close to the float64 reference, on real weights and a short prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stagelink_conformance.reference import reference_logits
from stagelink_conformance.scripts import chunked

if TYPE_CHECKING:
    from conftest import Model


def test_smollm2_is_close_to_the_float64_reference(smollm2: Model) -> None:
    ids = [504, 3575, 282, 4649, 314]
    pipeline = smollm2.split([11])
    outcomes = pipeline.play(chunked(1, ids, 3))
    logits = np.concatenate([one.logits for one in outcomes])
    assert np.abs(logits - reference_logits(smollm2.checkpoint, ids)).max() < 2e-4
    pipeline.close()
