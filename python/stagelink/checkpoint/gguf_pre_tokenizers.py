"""How byte-level BPE cuts text into words before it merges, one row for each GGUF ``pre`` name.

It makes no tokenizer and reads no file. The rows are what the models' own tokenizer.json say, in
the steps of the ``tokenizers`` library; where llama.cpp's regexes part from them, these count.
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
# Since GPT-4o a word is capitals, then small letters; what has no case, and marks, is both.
_CAPITALS: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+%s"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The letters with case that DeepSeek's first tokenizers knew: fewer than Unicode has now.
_CASED: Final = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    "\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
# The model says \\s+$, which finds the same and takes a second for ten thousand spaces in a text.
_LAST_SPACES: Final = r"(?<!\s)\s+$"
_CASELESS: Final = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_SIGNS: Final = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """How text is cut before BPE, and the settings that go with it in the original tokenizer."""

    steps: tuple[dict[str, Any], ...]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False
    adds_bos: bool = False


def _splits(*patterns: str, each_digit: bool = False) -> tuple[dict[str, Any], ...]:
    """Return the steps that cut at each pattern in turn and then turn text into bytes."""
    cuts = ({"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False}
            for one in patterns)  # fmt: skip
    digits = (_EACH_DIGIT,) if each_digit else ()
    return (*cuts, *digits, _BYTES)


_GPT2: Final = Rules((WITH_REGEX,))
_GPT_NEOX: Final = Rules((WITH_REGEX,), normalizer=_NFC)
_STARCODER: Final = Rules((_EACH_DIGIT, WITH_REGEX))
_LLAMA3: Final = Rules(_splits(_WORDS % "{1,3}"), ignore_merges=True, adds_bos=True)
_GPT4: Final = Rules(_splits(_WORDS % "{1,3}"))
_DEEPSEEK3: Final = Rules(
    _splits(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_WORDS)
)
_QWEN2: Final = Rules(_splits(_WORDS % ""), normalizer=_NFC)

# OpenAI's own encoder looks a whole word up before it merges, as Mistral's does.
_GPT4O: Final = Rules(
    _splits(_CASED_WORDS % (_CONTRACTION + "?", _CONTRACTION + "?", "{1,3}")), ignore_merges=True
)
_TEKKEN: Final = Rules(_splits(_CASED_WORDS % ("", "", "")), ignore_merges=True, adds_bos=True)
_DEEPSEEK1: Final = Rules(
    _splits("[\r\n]", rf"\s?[{_CASED}]+", _DEEPSEEK_SIGNS, _LAST_SPACES, _CASELESS, each_digit=True)
)
_DEEPSEEK_CODER: Final = Rules(
    _splits("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CASELESS, each_digit=True)
)

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
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "tekken": _TEKKEN,
    "deepseek-llm": _DEEPSEEK1,
    "deepseek-coder": _DEEPSEEK_CODER,
}
