"""Reading what the stages wrote, and keeping a reference in a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.verify.recorded import FORM, VOCAB, recording_of, script_of

from stagelink.errors import CheckpointError, ConfigError, StagelinkError
from stagelink.verify import measure
from stagelink.verify.recording import RowFormat, Script, read_recording
from stagelink.verify.scenario import AFTER_ROWS, FORCED, GREEDY, Wanted
from stagelink.verify.stored import Made, read_stored, write_stored

if TYPE_CHECKING:
    from pathlib import Path

MADE = Made("numpy", "a processor; a library 1.0", "float32")
WANTED = Wanted(((1, 2, 3, 4, 5, 6, 7, 8, 9, 10), (7, 7)), greedy_tokens=4)


def test_a_script_is_the_same_after_it_was_written() -> None:
    script, _ = script_of(WANTED)
    assert Script.parse(json.loads(json.dumps(script.as_json()))) == script


@pytest.mark.parametrize("data", [{}, {"rounds": 3, "roles": []}, {"rounds": [[[[1]], []]]}])
def test_what_is_no_script_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(StagelinkError) as caught:
        Script.parse(data)
    assert caught.value.reason == "recording"


def test_a_file_that_is_too_short_is_refused_by_name(tmp_path: Path) -> None:
    script, logits = script_of(WANTED)
    (tmp_path / "logits").write_bytes(logits.tobytes())
    rows = sum(one.rows_total for one in script.rounds) * FORM.row_bytes
    (tmp_path / "rows").write_bytes(bytes(rows - 1))
    with pytest.raises(StagelinkError, match="rows: expected") as caught:
        read_recording(script, FORM, VOCAB, logits=tmp_path / "logits", rows=[tmp_path / "rows"])
    assert caught.value.reason == "recording"


def test_bfloat16_rows_are_the_upper_half_of_their_floats() -> None:
    values = np.array([1.5, -2.0, 0.25, 3.0], np.float32)
    stored = (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    assert (RowFormat("bfloat16", 2, 1).floats(stored) == values.reshape(2, 2)).all()


def test_planes_of_a_row_come_together() -> None:
    rows = np.arange(8, dtype=np.float32).view(np.uint8)
    found = RowFormat("float32", 2, 2).floats(rows)
    assert found.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_no_rows_are_no_floats() -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        assert RowFormat(dtype, 2, 2).floats(np.empty(0, np.uint8)).shape == (0, 4)


def test_rows_of_one_dtype_become_those_of_another() -> None:
    from stagelink.node.reference import convert_rows

    values = np.array([1.0, -2.5, 3.0, 0.125], np.float32)
    wide, narrow = RowFormat("float32", 2, 2), RowFormat("bfloat16", 2, 2)
    there = convert_rows(values.view(np.uint8), wide, narrow)
    assert (convert_rows(there, narrow, wide).view(np.float32) == values).all()
    # Halfway between two values of bfloat16: to the even one.
    half = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1, 1], np.float32).view(np.uint8)
    back = convert_rows(convert_rows(half, wide, narrow), narrow, wide).view(np.float32)
    assert back.tolist() == [1.0, 1 + 2**-6, 1.0, 1.0]
    assert convert_rows(values[:0].view(np.uint8), wide, narrow).size == 0


def test_a_row_that_was_computed_again_is_the_one_that_counts() -> None:
    found = recording_of(Wanted(((1, 2, 3) * 12,), ("state",)))
    drafted, plain = found.script.streams("drafted")[0], found.script.streams("plain")[0]
    assert (
        found.logits[found.places(drafted)] == found.logits[found.places(plain)]
    )[: 24 + 6].all()  # fmt: skip


def _reference(wanted: Wanted, **shapes: Any) -> dict[int, np.ndarray]:
    found = recording_of(wanted, **shapes)
    return {
        index: found.logits[found.returned(index)]
        for index in found.script.only((FORCED, GREEDY))
        if found.script.rounds[index].rows_total
    }


def test_a_stored_reference_has_what_was_computed(tmp_path: Path) -> None:
    found, digest = recording_of(WANTED), bytes(range(32))
    write_stored(tmp_path / "r", digest, found, _reference(WANTED), MADE)
    read = read_stored(str(tmp_path / "r"), VOCAB)
    assert (read.model, read.made) == (digest, MADE)
    assert [one.tokens for one in read.prompts] == list(WANTED.prompts)
    for stream, kept in zip(found.script.streams(FORCED), read.prompts, strict=True):
        assert (kept.logits == found.logits[found.places(stream)]).all()
    assert [list(one.tokens) for one in read.greedy] == [
        measure.drawn(found, stream) for stream in found.script.streams(GREEDY)
    ]


def test_a_reference_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    write_stored(tmp_path / "r", bytes(32), recording_of(WANTED), _reference(WANTED), MADE)
    with pytest.raises(ConfigError) as caught:
        read_stored(str(tmp_path / "r"), VOCAB + 1)
    assert caught.value.reason == "reference"


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 0.5, VOCAB])
@pytest.mark.parametrize("name", ["forced.1.tokens", "greedy.0.tokens", "greedy.1.prompt"])
def test_a_stored_token_that_is_none_is_refused(tmp_path: Path, name: str, value: float) -> None:
    path = tmp_path / "r"
    write_stored(path, bytes(32), recording_of(WANTED), _reference(WANTED), MADE)
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    begin = 8 + length + json.loads(data[8 : 8 + length])[name]["data_offsets"][0]
    data[begin : begin + 4] = np.array([value], "<f4").tobytes()
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=name) as caught:
        read_stored(str(path), VOCAB)
    assert caught.value.reason == "reference"


@pytest.mark.parametrize("name", ["model", "made", "forced.0.logits", "greedy.1.logits"])
def test_a_bit_that_turned_in_a_stored_reference_is_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / "r"
    write_stored(path, bytes(32), recording_of(WANTED), _reference(WANTED), MADE)
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    begin = 8 + length + json.loads(data[8 : 8 + length])[name]["data_offsets"][0]
    # The lowest bit: a logit that is wrong by nothing that a limit would see.
    data[begin + 4] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_stored(str(path), VOCAB)
    assert caught.value.reason == "reference"


def test_a_stored_reference_of_a_dtype_without_limits_is_refused(tmp_path: Path) -> None:
    made = Made("numpy", "", "float64")
    write_stored(tmp_path / "r", bytes(32), recording_of(WANTED), _reference(WANTED), made)
    with pytest.raises(ConfigError, match="float64") as caught:
        read_stored(str(tmp_path / "r"), VOCAB)
    assert caught.value.reason == "reference"


def test_a_stored_continuation_is_the_same_for_every_length_of_chunks(tmp_path: Path) -> None:
    read = []
    for chunk_rows in (3, 8):
        path = tmp_path / str(chunk_rows)
        found = recording_of(WANTED, chunk_rows=chunk_rows)
        write_stored(path, bytes(32), found, _reference(WANTED, chunk_rows=chunk_rows), MADE)
        read.append(read_stored(str(path), VOCAB).greedy)
    for one, other in zip(*read, strict=True):
        assert len(one.tokens) == WANTED.greedy_tokens
        assert (one.tokens, one.prompt) == (other.tokens, other.prompt)
        assert (one.logits == other.logits).all()
    assert [one.prompt for one in read[0]] == list(WANTED.prompts)


def test_a_file_that_is_no_reference_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"\x80\x04\x95 no safetensors")
    with pytest.raises(CheckpointError):
        read_stored(str(tmp_path / "r"), VOCAB)


def test_a_stored_continuation_counts_up_to_where_ours_leaves_it() -> None:
    logits = np.eye(4, dtype=np.float32)
    assert measure.stored_split(0, [0, 1, 2, 3], [0, 1, 2, 3], logits).at is None
    split = measure.stored_split(0, [0, 3, 9, 9], [0, 1, 2, 3], logits)
    assert split.at is not None
    assert (split.tokens, split.at.position, split.at.gap) == (2, 1, 1.0)


@pytest.mark.parametrize("length", range(1, 14))
def test_the_states_of_a_sound_model_are_equal_however_short_the_prompt(length: int) -> None:
    found = measure.states(
        recording_of(Wanted((tuple(n % VOCAB for n in range(length)),), ("state",)))
    )
    assert set(found) == {"cut back to nothing", "cut back to a part"}
    for one in found.values():
        assert (one.logits.positions, one.logits.equal) == (AFTER_ROWS, AFTER_ROWS)
