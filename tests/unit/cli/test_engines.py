"""Which engine runs where: flags, the environment, the best one installed, and what is missing."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from stagelink import engine_registry
from stagelink.cli import settings
from stagelink.cli.main import build_parser
from stagelink.config import Job, ModelConfig, Task
from stagelink.engine_registry import best_engine, check_engine, find_engine
from stagelink.errors import ConfigError
from stagelink.verify.scenario import Wanted

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def _parsed(*flags: str) -> argparse.Namespace:
    return build_parser().parse_args(["generate", "m", *flags])


def _reason(call: object, *arguments: object) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments)  # type: ignore[operator]
    return caught.value.reason


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Modules that count as installed; a test adds to them."""
    there = {"stagelink_numpy", "numpy"}
    monkeypatch.setattr(engine_registry, "_is_there", lambda module: module in there)
    monkeypatch.setattr(engine_registry, "_has_cuda", lambda: "cuda" in there)
    monkeypatch.delenv(settings.ENGINE_VARIABLE, raising=False)
    return there


def test_a_list_of_engines_says_how_many_stages_there_are(installed: set[str]) -> None:
    installed |= {"stagelink_torch", "torch"}
    config = settings.model_config(_parsed("--engines", "numpy,torch,numpy"))
    assert config.world == 3
    assert [config.engine_of(rank) for rank in range(3)] == ["numpy", "torch", "numpy"]


def test_one_engine_and_one_device_are_for_all_ranks() -> None:
    config = settings.model_config(_parsed("--stages", "2", "--engine", "numpy", "--device", "cpu"))
    assert [config.engine_of(1), config.device_of(1)] == ["numpy", "cpu"]


def test_devices_can_be_given_one_a_rank() -> None:
    config = settings.model_config(_parsed("--stages", "2", "--device", "cuda:0,cuda:1"))
    assert [config.device_of(rank) for rank in range(2)] == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--engines", "numpy,numpy", "--stages", "3"], "world"),
        (["--device", "cpu,cpu", "--stages", "3"], "world"),
        (["--engines", "numpy,,numpy"], "engines"),
        (["--device", ""], "device"),
        (["--threads", "0"], "threads"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(flags: list[str], reason: str) -> None:
    assert _reason(settings.model_config, _parsed(*flags)) == reason


def test_more_threads_than_four_a_core_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert settings.model_config(_parsed("--threads", "8")).threads == 8
    for text in ("9", "0", "-3"):
        with pytest.raises(ConfigError, match=f"is {text}: expected 1 to 8,.*in between$"):
            settings.model_config(_parsed("--threads", text))


def test_what_only_some_ranks_choose_reaches_the_config() -> None:
    flags = ["--threads", "2", "--kv-dtype", "bfloat16", "--batch-invariant"]
    config = settings.model_config(_parsed(*flags))
    assert (config.threads, config.kv_dtype, config.batch_invariant) == (2, "bfloat16", True)
    assert settings.model_config(_parsed()).threads is None


def test_a_flag_comes_before_the_environment_and_that_before_the_best(installed: set[str]) -> None:
    installed |= {"stagelink_torch", "torch", "stagelink_mlx", "mlx"}
    environment = {settings.ENGINE_VARIABLE: "mlx"}
    assert settings.engines(_parsed("--engine", "numpy"), environment) == ("numpy",)
    assert settings.engines(_parsed(), environment) == ("mlx",)
    assert settings.engines(_parsed(), {}) == ("torch",)


def test_only_an_engine_that_nobody_asked_for_is_said_aloud(installed: set[str]) -> None:
    assert settings.engine_note(_parsed(), {}) == (
        "engine numpy (best installed; --engine changes it)"
    )
    assert settings.engine_note(_parsed("--engine", "numpy"), {}) is None
    assert settings.engine_note(_parsed(), {settings.ENGINE_VARIABLE: "numpy"}) is None
    installed |= {"stagelink_torch", "torch"}
    assert settings.engine_note(_parsed(), {}) == (
        "engine torch (best installed; --engine changes it)"
    )


@pytest.mark.parametrize(
    ("there", "system", "best"),
    [
        ({"stagelink_torch", "torch", "cuda"}, "linux", "torch"),
        ({"stagelink_torch", "torch", "stagelink_mlx", "mlx"}, "darwin", "mlx"),
        ({"stagelink_torch", "torch", "stagelink_mlx", "mlx"}, "linux", "torch"),
        ({"stagelink_mlx", "mlx"}, "linux", "numpy"),
        ({"stagelink_torch"}, "linux", "numpy"),
        ({"stagelink_llamacpp", "llama_cpp"}, "linux", "numpy"),
    ],
)
def test_the_best_engine_is_the_fastest_that_can_run_here(
    installed: set[str], monkeypatch: pytest.MonkeyPatch, there: set[str], system: str, best: str
) -> None:
    installed |= there
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(engine_registry.platform, "machine", lambda: "arm64")
    assert best_engine() == best


@pytest.mark.parametrize(
    ("there", "reason"), [(set(), "engine_unknown"), ({"stagelink_torch"}, "engine_import")]
)
def test_a_missing_engine_or_library_says_what_to_install(
    installed: set[str], there: set[str], reason: str
) -> None:
    installed |= there
    with pytest.raises(ConfigError, match=r'pip install "stagelink\[torch\]"') as caught:
        check_engine("torch")
    assert caught.value.reason == reason


@pytest.mark.usefixtures("installed")
def test_what_is_wrong_with_an_engine_of_a_list_names_its_rank() -> None:
    with pytest.raises(ConfigError, match=r"^rank 1: no engine is named 'nope'.*") as caught:
        settings.model_config(_parsed("--engines", "numpy,nope"))
    assert (caught.value.reason, caught.value.rank) == ("engine_unknown", 1)
    with pytest.raises(ConfigError, match=r"^no engine is named 'nope'.*use one of them$"):
        settings.model_config(_parsed("--engine", "nope"))


def test_a_class_of_any_module_can_be_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_engine_of_a_test.py").write_text(
        "from stagelink_numpy import NumpyEngine\nclass Mine(NumpyEngine): pass\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    check_engine("own_engine_of_a_test:Mine")
    assert find_engine("own_engine_of_a_test:Mine").__name__ == "Mine"
    assert _reason(find_engine, "own_engine_of_a_test:Yours") == "engine_import"
    assert _reason(find_engine, "no_such_module:Mine") == "engine_import"
    assert _reason(find_engine, "no-such-engine") == "engine_unknown"


@pytest.mark.parametrize("name", ["json:JSONDecoder", "json:__doc__"])
def test_what_is_no_engine_is_refused_by_what_an_engine_has(name: str) -> None:
    with pytest.raises(ConfigError, match=r"expected a class with describe, load, run") as caught:
        find_engine(name)
    assert caught.value.reason == "engine_kind"


@pytest.mark.parametrize("flag", ["--engine", "--engines"])
def test_an_empty_name_does_not_mean_another_engine(flag: str) -> None:
    assert _reason(settings.model_config, _parsed(flag, "")) == flag.removeprefix("--")


def test_an_engine_whose_native_library_is_broken_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(module: str) -> None:
        message = f"lib{module}.so: cannot open shared object file"
        raise OSError(message)

    monkeypatch.setattr(engine_registry.importlib, "import_module", fail)
    with pytest.raises(ConfigError, match=r"cannot open shared.*stagelink\[cpu\]") as caught:
        find_engine("numpy")
    assert caught.value.reason == "engine_import"


def test_a_job_is_the_same_after_it_was_written(tmp_path: Path) -> None:
    model = ModelConfig("m", 2, ((0, 1), (1, 2)), ("numpy", "torch"), ("cpu", "cuda"), threads=3)
    for wanted in (None, Wanted(((1, 2), (3,)), ("close",))):
        job = Job(model, Task(prompt_ids=(1, 2)), wanted)
        job.write(tmp_path / "job")
        assert Job.read(tmp_path / "job") == job


def test_importing_stagelink_imports_no_framework() -> None:
    code = (
        "import sys, stagelink, stagelink.engine, stagelink.cli.main, stagelink.engine_registry\n"
        "stagelink.engine_registry.best_engine()\n"
        "found = {'torch', 'mlx', 'mlx_lm', 'transformers', 'llama_cpp'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(found)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
