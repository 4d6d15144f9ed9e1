"""The seam between stagelink and an engine: what an engine is handed, and what it promises.

It names what engines may use and holds nothing itself. Engines import this module and nothing else
of stagelink; no engine knows a socket.
"""

from __future__ import annotations

from stagelink.checkpoint.families.base import Family, LayerState
from stagelink.checkpoint.families.deepseek_v2 import DeepseekV2Family
from stagelink.checkpoint.families.deepseek_v3 import DeepseekV3Family
from stagelink.checkpoint.families.described import DescribedFamily
from stagelink.checkpoint.families.gemma3 import Gemma3Family
from stagelink.checkpoint.families.gguf_family import GgufFamily
from stagelink.checkpoint.families.gpt_oss import GptOssFamily
from stagelink.checkpoint.families.granite import GraniteFamily
from stagelink.checkpoint.families.llama import LlamaFamily
from stagelink.checkpoint.families.mixtral import MixtralFamily
from stagelink.checkpoint.families.olmo2 import Olmo2Family
from stagelink.checkpoint.families.qwen3_5 import Qwen35Family, Qwen35MoeFamily
from stagelink.checkpoint.families.qwen3_moe import Qwen3MoeFamily
from stagelink.checkpoint.families.qwen3_next import Qwen3NextFamily
from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.families.smollm3 import SmolLm3Family
from stagelink.checkpoint.families.wide import WideFamily
from stagelink.checkpoint.gguf_source import GgufSource
from stagelink.checkpoint.gguf_walk import GgufTensor
from stagelink.checkpoint.opened import Checkpoint, TensorInfo
from stagelink.checkpoint.rope import Rope
from stagelink.checkpoint.user_cache import locked, private_folder
from stagelink.engine.checks import EngineChecks
from stagelink.engine.freed_memory import give_back, let_code_go
from stagelink.engine.memory_map import (
    DONT_NEED,
    mappings,
    memory_advice,
    resident_bytes,
    written_bytes,
)
from stagelink.engine.native_callbacks import address_filter
from stagelink.engine.round import (
    CANCEL,
    CLOSE,
    CONTINUE,
    OPEN,
    RESUME,
    RETURN_ALL,
    RETURN_LAST,
    RETURN_NONE,
    Batch,
    Entry,
    Piece,
    Round,
)
from stagelink.engine.saved import StateEnvelope
from stagelink.engine.seam import (
    Beating,
    Drafter,
    EngineDescription,
    EngineSettings,
    PlanLike,
    Preparing,
    StageEngine,
)
from stagelink.errors import CheckpointError, ConfigError, EngineError

__all__ = [
    "CANCEL",
    "CLOSE",
    "CONTINUE",
    "DONT_NEED",
    "OPEN",
    "RESUME",
    "RETURN_ALL",
    "RETURN_LAST",
    "RETURN_NONE",
    "Batch",
    "Beating",
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "DeepseekV2Family",
    "DeepseekV3Family",
    "DescribedFamily",
    "Drafter",
    "EngineChecks",
    "EngineDescription",
    "EngineError",
    "EngineSettings",
    "Entry",
    "Family",
    "Gemma3Family",
    "GgufFamily",
    "GgufSource",
    "GgufTensor",
    "GptOssFamily",
    "GraniteFamily",
    "LayerState",
    "LlamaFamily",
    "MixtralFamily",
    "Olmo2Family",
    "Piece",
    "PlanLike",
    "Preparing",
    "Qwen3MoeFamily",
    "Qwen3NextFamily",
    "Qwen35Family",
    "Qwen35MoeFamily",
    "Rope",
    "Round",
    "SmolLm3Family",
    "StageEngine",
    "StateEnvelope",
    "TensorInfo",
    "WideFamily",
    "address_filter",
    "give_back",
    "let_code_go",
    "locked",
    "mappings",
    "memory_advice",
    "private_folder",
    "read_family",
    "resident_bytes",
    "written_bytes",
]
