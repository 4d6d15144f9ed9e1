"""How byte-level BPE cuts text into words before it merges, one row for each GGUF ``pre`` name.

It makes no tokenizer and reads no file. The rows are what the models' own tokenizer.json say, in
the steps of the ``tokenizers`` library; a name is here only where llama.cpp cuts the same.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

_BYTE_LEVEL: Final = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
# The cut of GPT-2, in the library itself, and the bytes alone after cuts of one's own.
WITH_REGEX: Final = _BYTE_LEVEL | {"use_regex": True}
_BYTES: Final = _BYTE_LEVEL | {"use_regex": False}
_EACH_DIGIT: Final = {"type": "Digits", "individual_digits": True}
_NFC: Final = {"type": "NFC"}

_CONTRACTION: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# Letters with one mark before them, numbers, other marks, line ends, spaces: since GPT-4.
_WORDS: Final = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MARKED_WORDS: Final = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_WORDS: Final = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """How text is cut before BPE, and the settings that go with it in the original tokenizer."""

    steps: tuple[dict[str, Any], ...]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False
    adds_bos: bool = False


def _splits(*patterns: str) -> tuple[dict[str, Any], ...]:
    """Return the steps that cut at each pattern in turn and then turn text into bytes."""
    cuts = ({"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
            for one in patterns)  # fmt: skip
    return (*cuts, _BYTES)


_GPT2: Final = Rules((WITH_REGEX,))
_GPT_NEOX: Final = Rules((WITH_REGEX,), normalizer=_NFC)
_STARCODER: Final = Rules((_EACH_DIGIT, WITH_REGEX))
_LLAMA3: Final = Rules(_splits(_WORDS % "{1,3}"), ignore_merges=True, adds_bos=True)
_GPT4: Final = Rules(_splits(_WORDS % "{1,3}"))
_DEEPSEEK3: Final = Rules(
    _splits(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_WORDS)
)
_QWEN2: Final = Rules(_splits(_WORDS % ""), normalizer=_NFC)

# Left out, since llama.cpp cuts otherwise: gpt-4o and tekken (it knows ASCII capitals alone, and
# cuts before a combining mark), deepseek-coder (U+3000 is a space to it and a character of its own
# to the model). docs/checkpoints.md 3 has the figures; deepseek-llm was not compared.
PRE_TOKENIZERS: Final = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT_NEOX,
    "olmo": _GPT_NEOX,
    "smollm": _STARCODER,
    "starcoder": _STARCODER,
    "refact": _STARCODER,
    "command-r": Rules(_STARCODER.steps, normalizer=_NFC),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": _GPT4,
    "smaug-bpe": _GPT4,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": Rules(_splits(_MARKED_WORDS), normalizer=_NFC),
    "deepseek-v3": _DEEPSEEK3,
}
