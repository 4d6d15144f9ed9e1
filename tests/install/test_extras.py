"""Each extra alone in a fresh environment, from built wheels: it brings what it needs, and no more.

It builds wheels and installs frameworks, for minutes: run by hand (docs/testing.md). Wheels of
frameworks come from STAGELINK_WHEELS or ../shared/wheels where they are there, else from the index.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stagelink_numpy.tiny import make_tiny

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
FOLDERS = [os.environ.get("STAGELINK_WHEELS", ""), str(ROOT.parent / "shared" / "wheels")]
FRAMEWORKS = ("torch", "mlx", "mlx_lm", "transformers", "llama_cpp")
# What each extra may have of them. mlx-lm itself depends on transformers, not on torch.
BRINGS = {
    "cpu": (),
    "torch": ("torch",),
    "mlx": ("mlx", "mlx_lm", "transformers"),
    "transformers": ("torch", "transformers"),
    "llamacpp": ("llama_cpp",),
}
ENGINES = {"cpu": "numpy"}


def _run(*command: str, **options: object) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=900, **options
    )  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


def _find_links() -> list[str]:
    folders = [folder for folder in FOLDERS if folder and Path(folder).is_dir()]
    return [flag for folder in folders for flag in ("--find-links", folder)]


def _wheel(pattern: str) -> list[str]:
    """A framework's own wheel by its path: the index might have a larger build of it."""
    for folder in FOLDERS:
        found = sorted(Path(folder).glob(pattern)) if folder else []
        if found:
            return [str(found[-1])]
    return []


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every wheel of this project; STAGELINK_BUILT names a folder that has them already."""
    built = os.environ.get("STAGELINK_BUILT")
    if built:
        return Path(built)
    folder = tmp_path_factory.mktemp("wheels")
    _run(str(ROOT / "scripts" / "wheels"), str(folder))
    return folder


@pytest.mark.parametrize("extra", BRINGS)
def test_an_extra_alone_brings_what_it_needs_and_runs(
    extra: str, wheels: Path, tmp_path: Path
) -> None:
    if extra == "llamacpp" and not _wheel("llama_cpp_python-*.whl"):
        pytest.skip("no wheel of llama-cpp-python at hand: it would be compiled for minutes")
    fresh = tmp_path / "fresh"
    _run(UV, "venv", "--quiet", "--python", sys.executable, str(fresh))
    python = str(fresh / "bin" / "python")
    framework = []
    if "torch" in BRINGS[extra]:
        framework = _wheel("torch-*.whl")
    if extra == "llamacpp":
        framework = _wheel("llama_cpp_python-*.whl")
    _run(
        UV, "pip", "install", "--quiet", "--python", python, "--find-links", str(wheels),
        *_find_links(), *framework, f"stagelink[{extra}]",
    )  # fmt: skip

    code = (
        "import importlib.util as u, json, sys, stagelink\n"
        f"names = {FRAMEWORKS!r}\n"
        "print(json.dumps([[n for n in names if u.find_spec(n)],"
        " [n for n in names if n in sys.modules]]))"
    )
    # Away from the source tree, and without anything of this environment.
    alone = {"cwd": tmp_path, "env": {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}}
    there, imported = json.loads(_run(python, "-c", code, **alone))
    assert there == [name for name in FRAMEWORKS if name in BRINGS[extra]]
    assert imported == []

    engine = ENGINES.get(extra, extra)
    if extra == "llamacpp":
        _run(python, "-c", "import stagelink_llamacpp", **alone)
        return
    model = make_tiny(tmp_path / "tiny", "llama")
    told = _run(
        python, "-m", "stagelink", "generate", str(model), "--stages", "2", "--engine", engine,
        "--prompt-ids", "1,2,3", "--max-tokens", "4", "--ignore-eos", "--json", **alone,
    )  # fmt: skip
    assert len(json.loads(told)["token_ids"]) == 4
