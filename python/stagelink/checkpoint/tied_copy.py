"""Leaves out a head that is a copy of the embedding: some exports store a tied matrix twice.

It compares bytes as stored, and reads nothing where no head is stored.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from stagelink.checkpoint.refusal import refuse
from stagelink.checkpoint.safetensors_file import Placed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.checkpoint.digest import Digests
    from stagelink.checkpoint.safetensors_file import Form

_HEAD: Final = "lm_head.weight"
_EMBEDS: Final = frozenset(
    {"embed_tokens", "wte", "word_embeddings", "embeddings", "embedding", "embed_in"}
)
_FLAG: Final = "tie_word_embeddings"
# Two matrices that are no copies differ in their first values, and mostly need not be hashed.
_PREFIX_BYTES: Final = 4096


def drop_tied_copy(
    config: Mapping[str, Any], forms: dict[str, Form], digests: Digests
) -> dict[str, Any]:
    """Take the head out of ``forms`` where it is the embedding's copy; return the config.

    Where the config does not say whether they are tied, equal bytes do, and the config returned
    has the flag; two that differ are two.

    Raises:
        CheckpointError: ``tied_head`` where they are said to be tied and differ: which of the two
            is meant cannot be known.
    """
    settled = dict(config)
    said, head, embed = _said(config), forms.get(_HEAD), _embedding(forms)
    if said is False or head is None or embed is None:
        return settled
    one, other = _stored_parts(head), _stored_parts(embed)
    if _are_equal(one, other, digests):
        del forms[_HEAD]
        return settled if said is True else settled | {_FLAG: True}
    if said is True:
        raise refuse(
            "tied_head",
            one[0].file.path,
            expected=f"{_HEAD} equal to {embed.info.name}, since {_FLAG} is true",
            got="another matrix",
            advice=f"fetch the checkpoint again, or set {_FLAG} to false if both are meant",
        )
    return settled


def _said(config: Mapping[str, Any]) -> object:
    """Return the flag of the config, or of its part about text."""
    text = config.get("text_config")
    said = config.get(_FLAG)
    return text.get(_FLAG) if said is None and isinstance(text, dict) else said


def _embedding(forms: Mapping[str, Form]) -> Form | None:
    """Return the one matrix that may be the head's twin, by its module's name and its shape."""
    head = forms.get(_HEAD)
    found = [
        one
        for name, one in forms.items()
        if name.split(".")[-2:-1] and name.split(".")[-2] in _EMBEDS and name.endswith(".weight")
        if head is not None and one.info.shape == head.info.shape
    ]
    return found[0] if len(found) == 1 else None


def _are_equal(one: list[Placed], other: list[Placed], digests: Digests) -> bool:
    kinds = [[(part.info.dtype, part.info.shape) for part in parts] for parts in (one, other)]
    if kinds[0] != kinds[1] or any(_begin(a) != _begin(b) for a, b in zip(one, other, strict=True)):
        return False
    return [_digest(part, digests) for part in one] == [_digest(part, digests) for part in other]


def _stored_parts(one: Form) -> list[Placed]:
    held = (getattr(one, field.name) for field in dataclasses.fields(one))  # type: ignore[arg-type]
    return [one] if isinstance(one, Placed) else [part for part in held if isinstance(part, Placed)]


def _begin(one: Placed) -> bytes:
    """Return the first bytes of a tensor as stored."""
    view = memoryview(bytearray(min(_PREFIX_BYTES, one.info.nbytes)))
    with one.file.descriptor() as descriptor:
        one.file.read_into(descriptor, view, one.offset)
    return bytes(view)


def _digest(one: Placed, digests: Digests) -> bytes:
    return digests.of_range(one.file, one.offset, one.offset + one.info.nbytes)
