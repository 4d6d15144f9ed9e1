"""What llama.cpp does by a layer's absolute number, as data: one ``Architecture`` for each it has.

It decides nothing; rules.py turns the data and a file's metadata into a ``Rule``.
"""

from __future__ import annotations

from stagelink_llamacpp.architectures.dense import DENSE
from stagelink_llamacpp.architectures.gated_delta import GATED_DELTA
from stagelink_llamacpp.architectures.gemma import GEMMA
from stagelink_llamacpp.architectures.mixture import MIXTURE
from stagelink_llamacpp.architectures.record import Architecture, Kinds

__all__ = ["ARCHITECTURES", "Architecture", "Kinds"]

ARCHITECTURES: dict[str, Architecture] = {
    one.name: one for one in (*DENSE, *GEMMA, *MIXTURE, *GATED_DELTA)
}
