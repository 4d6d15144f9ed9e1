"""The record that describes one of llama.cpp's architectures to the slice rules.

It holds types and no architecture.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Kinds:
    """A kind of layer that llama.cpp takes from a list, or from the layer's number without one.

    Attributes:
        list_key: Metadata key, without prefix, of the list: true for a layer of this kind.
        period: Every ``period``-th layer is of the other kind, the last of each group.
        period_key: Metadata key that sets another period; may be the list's own.
        needs_key: Without this key, or with 0 there, the file has no such layers.
        word: What a layer of this kind is called.
        other_word: What a layer of the other kind is called.
        needs_one: Whether a stage needs a layer of this kind: the library prepares a memory for
            them and aborts where no layer reads it.
        needs_other: The same for the other kind.
    """

    list_key: str
    period: int
    period_key: str
    needs_key: str = ""
    word: str = "sliding window"
    other_word: str = "full attention"
    needs_one: bool = True
    needs_other: bool = False

    @property
    def needed(self) -> tuple[tuple[bool, str], ...]:
        """What the list says of each kind that a stage needs, and what such a layer is called."""
        both = ((self.needs_one, True, self.word), (self.needs_other, False, self.other_word))
        return tuple((kind, word) for needed, kind, word in both if needed)


@dataclasses.dataclass(frozen=True, slots=True)
class Architecture:
    """One value of ``general.architecture``.

    Attributes:
        name: That value.
        kinds: Kinds of layers that a list in the stage's file can say; then cuts are free.
        period: Layers that must stay together because the library counts from 0 and takes no list.
        recurrent: Whether a stream has a state that cannot be cut by positions.
        positions_per_row: Position numbers that a row given as values takes (4: M-RoPE, of which
            text uses p, p, p, 0).
        embedding_by_width: Whether token embeddings are multiplied by the root of the width.
        rows_node: A node that the library computes from the rows that it is given, and that must be
            overwritten with these rows before it goes on.
        layers_scaled: Numbers of layers of a whole model by which the library recognizes one whose
            queries it scales by width and heads, not by the width of a head.
        unproven_keys: Metadata keys that switch on what no rule covers.
        dense_first_key: Key that counts the first layers without experts.
        needs_output: Whether the loader asks for ``output.weight`` and takes no tied table.
        head: Architecture of the file that holds final norm and output.
        head_keys: Metadata keys that go into it.
    """

    name: str
    kinds: Kinds | None = None
    period: int = 1
    recurrent: bool = False
    positions_per_row: int = 1
    embedding_by_width: bool = False
    rows_node: str | None = None
    layers_scaled: tuple[int, ...] = ()
    unproven_keys: tuple[str, ...] = ()
    dense_first_key: str = ""
    needs_output: bool = False
    head: str = "llama"
    head_keys: tuple[str, ...] = ()
