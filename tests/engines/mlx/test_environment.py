"""What a launcher sets for a stage of this engine: another BLAS before mlx is loaded, or nothing.

It starts no stage.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from stagelink.engine import ConfigError
from stagelink_mlx.environment import BLAS_VARIABLE, stage_environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a preload")


@pytest.fixture
def library(tmp_path: Path) -> str:
    found = tmp_path / "libopenblas.so.0"
    found.touch()
    return str(found)


def test_nothing_is_set_where_no_openblas_is(tmp_path: Path) -> None:
    assert stage_environment({}, places=[str(tmp_path / "missing.so")]) == {}


def test_an_openblas_of_the_system_is_preloaded(library: str) -> None:
    assert stage_environment({}, places=["/missing.so", library]) == {"LD_PRELOAD": library}


def test_what_was_to_be_preloaded_stays(library: str) -> None:
    set_before = {"LD_PRELOAD": "/lib/other.so"}
    found = stage_environment(set_before, places=[library])
    assert found == {"LD_PRELOAD": f"{library}:/lib/other.so"}


def test_a_library_is_not_preloaded_twice(library: str) -> None:
    assert stage_environment({"LD_PRELOAD": f"/a.so {library}"}, places=[library]) == {}


def test_the_variable_turns_it_off(library: str) -> None:
    assert stage_environment({BLAS_VARIABLE: "stock"}, places=[library]) == {}


def test_the_variable_names_another_library(library: str) -> None:
    assert stage_environment({BLAS_VARIABLE: library}, places=[]) == {"LD_PRELOAD": library}


@pytest.mark.parametrize("path", ["/missing/libopenblas.so", "no:where", "a b"])
def test_a_path_that_cannot_be_preloaded_is_refused(path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stage_environment({BLAS_VARIABLE: path})
    assert caught.value.reason == "blas_library"


def test_a_launcher_can_ask_without_importing_mlx() -> None:
    code = (
        "import sys; from stagelink_mlx.environment import stage_environment as ask; ask({});"
        "sys.exit('mlx' in sys.modules or 'mlx_lm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
