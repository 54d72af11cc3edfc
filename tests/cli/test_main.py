"""The shell: finding commands, exit codes, and where an error is told."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.cli.commands import install, invoke
from threadcast import __version__
from threadcast.cli import main
from threadcast.core.errors import FormatError, PlanError
from threadcast.store import Store

HEAVY = ("torch", "pandas", "sklearn", "xgboost", "sqlalchemy", "flask", "pyarrow", "scipy", "matplotlib")


def raising(error: BaseException):
    def command(output, settings):
        raise error

    return command


def test_every_command_that_has_a_file_is_listed_with_its_help():
    result = invoke("--help")
    assert result.exit_code == 0
    for name, text in main.COMMANDS.items():
        present = importlib.util.find_spec(f"threadcast.cli.{name}") is not None
        assert (f"  {name} " in result.stdout) == present
        assert (text.split()[0] in result.stdout) or not present


def test_the_package_can_be_run_as_a_module():
    command = [sys.executable, "-m", "threadcast"]
    assert subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout.endswith(
        f"version {__version__}\n"
    )
    assert subprocess.run([*command, "plam"], capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize("args", [("plam",), ("doctor", "--nonsense"), ("doctor", "extra"), ("resize", "1")])
def test_wrong_usage_exits_with_2_and_says_so_on_stderr(monkeypatch, args):
    install(monkeypatch, raising(RuntimeError("must not run")))
    result = invoke(*args)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr
    assert result.stdout == ""


def test_an_error_on_purpose_is_one_line_on_stderr_and_exit_code_1(monkeypatch):
    install(monkeypatch, raising(PlanError("cores=0: a plan needs at least 1")))
    result = invoke("doctor")
    assert result.exit_code == 1
    assert result.stderr == "threadcast: error: cores=0: a plan needs at least 1\n"
    assert result.stdout == ""


def test_under_json_an_error_is_an_object_on_stdout_too(monkeypatch):
    install(monkeypatch, raising(FormatError("must be at least 0", pointer="/ops/3/flops")))
    result = invoke("doctor", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "error": {"type": "FormatError", "message": "must be at least 0", "pointer": "/ops/3/flops"}
    }
    assert result.stderr == "threadcast: error: /ops/3/flops: must be at least 0\n"


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError, IsADirectoryError])
def test_a_file_that_cannot_be_used_is_the_users_to_mend(monkeypatch, error):
    install(monkeypatch, raising(error(errno.ENOENT, "No such file or directory", "graph.json")))
    result = invoke("doctor")
    assert result.exit_code == 1
    assert result.stderr == "threadcast: error: graph.json: No such file or directory\n"


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [("models", "list"), ("models", "list", "--json"), ("--help",), ("--version",)])
def test_a_full_disk_behind_stdout_is_one_line_on_stderr(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from threadcast.cli.main import main; main()", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.stderr == "threadcast: error: the output cannot be written: No space left on device\n"
    assert done.returncode == 1


MAIN = f"{sys.executable} -c 'from threadcast.cli.main import main; main()'"


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["db import rows.csv", "db import rows.csv --json", "db --help"])
def test_a_command_does_its_work_though_its_streams_are_closed(tmp_path, monkeypatch, words, streams):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "rows.csv").write_text("machine,op,threads,seconds\nm,relu,1,0.5\n")
    done = subprocess.run(
        f"{MAIN} {words} {streams}", shell=True, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert (done.returncode, b"rror" in done.stderr) == (0, False)
    if "import" in words:
        with Store.open(tmp_path / "threadcast/threadcast.db", create=False) as store:
            assert (store.counts().measurements, store.check()) == (1, [])


def test_nothing_else_gets_the_number_of_a_closed_stream(tmp_path):
    program = (
        "import os, sys\nfrom threadcast.cli.main import main\nsys.argv[1:] = ['--version']\n"
        "try:\n    main()\nfinally:\n    with open('other', 'w') as file:\n        assert file.fileno() > 2\n"
        "        os.system('echo noise')\n"
    )
    done = subprocess.run(
        f'{sys.executable} -c "$PROGRAM" <&- >&- 2>&-', shell=True, cwd=tmp_path,
        env={**os.environ, "PROGRAM": program, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.returncode, (tmp_path / "other").read_text()) == (0, "")


def test_a_stream_that_is_only_read_is_one_line_on_stderr():
    done = subprocess.run(f"{MAIN} models list 1</dev/null", shell=True, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (
        1, "threadcast: error: the output cannot be written: Bad file descriptor\n"
    )  # fmt: skip


def test_too_little_memory_is_one_line_on_stderr(monkeypatch):
    text = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 51200 bytes. Error code 12\nframe #0: c10"
    install(monkeypatch, raising(RuntimeError(text)))
    result = invoke("doctor")
    assert result.exit_code == 1
    assert result.stderr == (
        "threadcast: error: there is not enough memory: PyTorch asked for 51200 bytes at once; "
        "take a smaller size or batch\n"
    )


def test_a_missing_optional_package_names_the_extra(monkeypatch):
    install(monkeypatch, raising(ModuleNotFoundError("No module named 'flask'", name="flask")))
    result = invoke("doctor")
    assert result.exit_code == 1
    assert result.stderr == "threadcast: error: this needs flask; pip install 'threadcast[service]'\n"


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), OSError("without a file"), ModuleNotFoundError("no", name="threadcast.nothing")]
)
def test_a_bug_is_not_hidden(monkeypatch, error):
    install(monkeypatch, raising(error))
    assert invoke("doctor").exception is error


def test_an_interrupt_exits_with_130(monkeypatch):
    install(monkeypatch, raising(KeyboardInterrupt()))
    result = invoke("doctor")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "threadcast: interrupted\n")


def test_a_reader_that_leaves_early_is_no_noise():
    program = (
        "import sys, types\n"
        "from threadcast.cli import main\n"
        "from tests.cli.commands import install\n"
        "import pytest\n"
        "def command(output, settings):\n"
        "    output.result({'rows': ['x' * 1000] * 1000}, *['x' * 1000] * 1000)\n"
        "install(pytest.MonkeyPatch(), command)\n"
        "main.main()\n"
    )
    for flags in ([], ["--json"]):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "wb") as closed:
            done = subprocess.run(
                [sys.executable, "-c", program, "doctor", *flags], stdout=closed, stderr=subprocess.PIPE, text=True
            )
        assert done.stderr == ""
        assert done.returncode == 1


def commands() -> list[tuple[str, click.Command]]:
    """Every command and sub-command there is."""
    found: list[tuple[str, click.Command]] = []
    context = click.Context(main.cli)

    def collect(name: str, command: click.Command | None) -> None:
        assert command is not None
        if isinstance(command, click.Group):
            for child in command.list_commands(context):
                collect(f"{name} {child}", command.get_command(context, child))
        else:
            found.append((name, command))

    for name in main.cli.list_commands(context):
        collect(name, main.cli.get_command(context, name))
    return found


@pytest.mark.parametrize(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_every_command_speaks_json_and_documents_itself(name, command):
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert {"--json", "--config", "--traceback"} <= flags
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help or isinstance(parameter.type, click.Choice), f"{name} {parameter.opts} has no help"


def test_importing_the_commands_imports_no_heavy_library():
    program = (
        "import importlib, sys, click\n"
        "from threadcast.cli.main import cli\n"
        "context = click.Context(cli)\n"
        "for name in cli.list_commands(context): cli.get_command(context, name)\n"
        f"print(*[n for n in {HEAVY!r} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
