"""What `--help` says and costs: it must answer at once, so it may import next to nothing."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

import pytest

from stagelink.cli.main import build_parser

COMMANDS = ("up", "generate", "chat", "node", "keygen", "inspect", "probe", "verify")
HEAVY = ("numpy", "tokenizers", "jinja2", "gguf", "rich", "stagelink_numpy", "stagelink._native")
HELP_SECONDS = 0.150


def _imported(arguments: list[str]) -> set[str]:
    code = (
        "import sys\n"
        "from stagelink.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit:\n    pass\n"
        "print('\\n'.join(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split("\n"))


@pytest.mark.parametrize("arguments", [["--help"], *([one, "--help"] for one in COMMANDS)])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    imported = _imported(arguments)
    assert not [name for name in HEAVY if name in imported]
    assert not [name for name in imported if name.startswith("stagelink.checkpoint")]


def test_help_answers_in_time() -> None:
    """Processor time, the best of five: a clock would measure the machine's other work too."""
    took = []
    for _ in range(5):
        before = _children_seconds()
        subprocess.run(
            [sys.executable, "-m", "stagelink", "up", "--help"], capture_output=True, check=True
        )
        took.append(_children_seconds() - before)
    assert min(took) < HELP_SECONDS


def _children_seconds() -> float:
    """Processor seconds of all processes that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_has_a_help_text(command: str) -> None:
    actions = [action for action in build_parser()._actions if action.dest == "command"]
    parser = actions[0].choices[command]  # type: ignore[index]
    assert all(action.help for action in parser._actions)  # type: ignore[attr-defined]


# Values that nothing stands in for: they are what is asked, or a place to write to.
NO_DEFAULT = {"--prompt-ids", "--engines", "--key-file", "--save-reference", "--receipt", "--html",
              "--local"}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_with_a_value_says_what_holds_without_it(command: str) -> None:
    actions = [action for action in build_parser()._actions if action.dest == "command"]
    parser = actions[0].choices[command]  # type: ignore[index]
    said = ("default", "needed", "with --rank 0")
    silent = {
        action.option_strings[0]
        for action in parser._actions  # type: ignore[attr-defined]
        if action.option_strings
        and action.nargs != 0
        and action.help != argparse.SUPPRESS
        and not any(word in action.help for word in said)
    }
    assert silent <= NO_DEFAULT


def test_no_command_prints_the_help_and_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    from stagelink.cli.main import main

    assert main([]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert all(command in told.err for command in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "m", "--stages", "2", "--layers", "0-1,1-2"],
        ["generate", "m", "--max-tokens", "many"],
        ["generate", "m", "--prompt", "a", "--prompt-ids", "1"],
        ["generate"],
        ["nonsense"],
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from stagelink.cli.main import main

    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("stagelink: error: ")
    assert told.count("\n") == 1
