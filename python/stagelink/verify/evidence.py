"""Everything that a verification measured, before anyone says whether it is good enough.

Values only; `measure` fills them in, `judge` reads them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagelink.verify.figures import Closeness, Disagreement, Drift


@dataclasses.dataclass(frozen=True, slots=True)
class Boundary:
    """The rows that one stage handed on, beside the reference's.

    Attributes:
        rank: The stage.
        engine: What computes there.
        end: One past its last layer: where the model is cut.
        chained: Against the reference's own rows: everything that went wrong up to here.
        own: Against the reference given this stage's own input: what went wrong in it alone.
        is_head: The logits of rank 0's head, given the ring's last rows, instead of rows.
        last_rank: The last of several stages that could only be seen together.
    """

    rank: int
    engine: str
    end: int
    chained: Drift | None
    own: Drift
    is_head: bool = False
    last_rank: int | None = None

    @property
    def name(self) -> str:
        """What a person calls it."""
        who = f"rank {self.rank}"
        if self.last_rank not in (None, self.rank):
            who = f"ranks {self.rank}-{self.last_rank}"
        if self.is_head:
            return f"head ({who}, {self.engine})"
        return f"boundary {self.end} (after layer {self.end - 1}, {who}, {self.engine})"

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"name": self.name, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """One greedy continuation.

    Attributes:
        prompt: Index of the prompt.
        tokens: Tokens that were drawn and can be compared.
        at: The first that the reference would not have drawn, or ``None``.
    """

    prompt: int
    tokens: int
    at: Disagreement | None


@dataclasses.dataclass(slots=True)
class Evidence:
    """What was measured; ``None`` and empty where it was not.

    Attributes:
        is_same: Every stage computes with what the reference computes with.
        is_invariant: Every stage promises bits that do not depend on the composition.
        close: Forced logits against the reference's, a prompt an element.
        boundaries: In ring order, the head last.
        splits: A greedy prompt an element.
        repeats: Forced logits against those of the same rounds again.
        compositions: By name, a stream's logits in another composition against the forced ones.
        states: By name, streams that must end alike.
        begins: By the name of what was run twice, the first rank whose rows differ; without an
            entry no rank's rows do. Names are those of ``compositions`` and ``states``, and
            ``prompt 0`` and so on for repeats.
    """

    is_same: bool = False
    is_invariant: bool = False
    close: list[Closeness] = dataclasses.field(default_factory=list)
    boundaries: list[Boundary] = dataclasses.field(default_factory=list)
    splits: list[Split] = dataclasses.field(default_factory=list)
    repeats: list[Closeness] = dataclasses.field(default_factory=list)
    compositions: dict[str, Closeness] = dataclasses.field(default_factory=dict)
    states: dict[str, StatePair] = dataclasses.field(default_factory=dict)
    begins: dict[str, int] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "same_as_reference": self.is_same,
            "batch_invariant": self.is_invariant,
            "close": [one.as_json() for one in self.close],
            "boundaries": [one.as_json() for one in self.boundaries],
            "greedy": [dataclasses.asdict(one) for one in self.splits],
            "repeat": [one.as_json() for one in self.repeats],
            "invariance": {name: one.as_json() for name, one in self.compositions.items()},
            "state": {name: one.as_json() for name, one in self.states.items()},
            "first_rank_unlike": self.begins,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class StatePair:
    """Two streams that hold the same tokens, one of them after a cut back.

    Attributes:
        logits: What came after the cut, against the stream that never had one.
        is_exact: Every byte must be equal: both had the same composition, or no bit depends on it.
        unlike: Ranks whose states' digests differ.
        unknown: Ranks that could not digest a state.
    """

    logits: Closeness
    is_exact: bool
    unlike: tuple[int, ...]
    unknown: tuple[int, ...]

    @property
    def held_to(self) -> str:
        """Which of the two promises holds for the pair."""
        return "every byte" if self.is_exact else "closeness"

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"held_to": self.held_to, **dataclasses.asdict(self)}
