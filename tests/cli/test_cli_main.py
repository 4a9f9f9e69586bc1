"""The command line as a whole: help, exit codes, errors, interruption, closed pipes."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kinetic as package
from kinetic.cli import COMMANDS, main

HEAVY = ("numpy", "llvmlite", "jinja2", "lark", "rich", "psutil", "blake3")


def test_help_lists_every_command(kinetic):
    for line in ((), ("--help",), ("-h",), ("help",)):
        done = kinetic(*line)
        assert (done.returncode, done.stderr) == (0, "")
        assert all(f"  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(kinetic, command):
    done = kinetic(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"kinetic {command}: ")
    assert max(map(len, done.stdout.splitlines())) <= 92
    assert kinetic("help", command).stdout == done.stdout
    # Help wins wherever it stands, even beside what would be an error.
    assert kinetic(command, "no-such.gguf", "-h").stdout == done.stdout


def test_version_is_the_one_in_the_package(kinetic):
    assert kinetic("--version").stdout == f"kinetic {package.__version__}\n"


@pytest.mark.parametrize("line", [["--help"], ["--version"], ["run", "--help"], ["bench", "-h"]])
def test_light_commands_import_nothing_heavy(line):
    code = (
        "import sys; from kinetic.cli import main; main(sys.argv[1:]);"
        f"sys.exit(', '.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *line], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""


def test_import_is_light():
    code = f"import kinetic, sys; sys.exit(', '.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_help_answers_at_once(kinetic):
    # 0.03 s on a quiet machine; the bound only catches an import that should not be there.
    started = time.monotonic()
    kinetic("--help")
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (["rin"], 2, "did you mean run?"),
        (["frobnicate"], 2, "the commands are"),
        (["model.gguf"], 2, "kinetic run model.gguf"),
        (["--temp", "0", "run"], 2, "options come after the command"),
        (["run"], 2, "name a model file"),
        (["bench"], 2, "name a model file"),
        (["run", "no-such.gguf", "hi"], 2, "there is no file no-such.gguf"),
        (["run", "", "hi"], 2, "the model's name is empty"),
        (["run", "-m", "", "hi"], 2, "the model's name is empty"),
        (["run", "-m", "no-such.gguf", "hi"], 2, "there is no file no-such.gguf"),
        (["info", "no/such/folder/x.gguf"], 2, "there is no folder no/such/folder either"),
        (["run", "m", "--tmep", "0"], 2, "did you mean --temp?"),
        (["bench", "m", "--repetition=3"], 2, "did you mean --repetitions?"),
        (["run", "m", "--temp"], 2, "--temp needs a value"),
        (["run", "m", "--raw=yes"], 2, "--raw takes no value"),
        (["show", "m", "--after", ""], 2, "--after takes the name of a pass, not ''"),
        (["show", "m", "--asm="], 2, "--asm takes the name of a kernel, not ''"),
        (["show", "m", "--plan", "--list"], 2, "choose --plan or --list"),
    ],
)
def test_a_wrong_line_is_one_sentence(kinetic, line, code, says):
    done = kinetic(*line)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("kinetic: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_a_missing_file_names_those_near_it(kinetic, tmp_path):
    for name in ("gemma-3-270m-Q4_K_M.gguf", "other.gguf", "notes.txt"):
        (tmp_path / name).touch()
    done = kinetic("info", tmp_path / "gemma-3-270m-Q4_K_S.gguf")
    assert "gemma-3-270m-Q4_K_M.gguf" in done.stderr
    assert "notes.txt" not in done.stderr
    done = kinetic("info", tmp_path)
    assert "is a folder" in done.stderr
    assert "other.gguf" in done.stderr


def test_errors_show_no_control_character(kinetic):
    done = kinetic("info", "a\x1b[31mb.gguf")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "\\x1b[31m" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_ctrl_c_ends_cleanly(tmp_path):
    model = tmp_path / "m.gguf"
    model.touch()
    # Without a prompt, run waits for stdin: a moment in which Ctrl-C can come.
    with subprocess.Popen(
        [sys.executable, "-m", "kinetic", "run", model],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        _wait_until_it_reads(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (out, err) == (b"", b"")


def test_ctrl_c_while_the_command_is_imported_ends_cleanly_too():
    code = (
        "import sys, kinetic.__main__ as program\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('kinetic.cli'): raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.exit(program.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def _wait_until_it_reads(pid: int) -> None:
    """Wait until the process sleeps in a read of its pipe, however long a busy machine takes."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.02)
        try:
            where = Path(f"/proc/{pid}/wchan").read_text()
            call = Path(f"/proc/{pid}/syscall").read_text().split()
        except OSError:
            time.sleep(5)  # a system that does not tell
            return
        if "pipe" in where or call[:2] == ["0", "0x0"]:  # read(0, ...)
            return


@pytest.mark.skipif(sys.platform == "win32", reason="pipes differ")
def test_a_reader_that_left_is_no_error():
    with subprocess.Popen(
        [sys.executable, "-m", "kinetic", "run", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_internal_errors_keep_their_traceback(capsys, monkeypatch):
    from kinetic.errors import InternalError

    def broken(arguments: list[str]) -> int:
        raise InternalError("pass fuse lost a node")

    monkeypatch.setattr("kinetic.cli.dispatch", broken)
    assert main([]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert said.endswith("kinetic: pass fuse lost a node.\n")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of sh in which `kinetic` is this one."""
    line = line.replace("kinetic", f"{shlex.quote(sys.executable)} -m kinetic", 1)
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform == "win32", reason="shells differ")
@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("kinetic --help >&-", 0, ""),
        ("kinetic runn >&-", 2, "kinetic: there is no command 'runn'; did you mean run?\n"),
        ("kinetic rum 2>&-", 2, ""),
        ("kinetic rum <&- >&- 2>&-", 2, ""),
        ("kinetic rum 2>/dev/full", 2, ""),
        ("kinetic run --help <&-", 0, ""),
    ],
)
def test_a_closed_stream_is_no_accident(line, code, says):
    done = shell(line)
    assert (done.returncode, done.stderr) == (code, says)
    assert done.stdout.startswith("kinetic run: ") or done.stdout == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_under_stdout_is_named():
    done = shell("kinetic run --help > /dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith("kinetic: stdout: No space left on device; free some of")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            PermissionError(13, "Permission denied", "m.gguf"),
            "kinetic: m.gguf: Permission denied; check its permissions",
        ),
        (MemoryError(), "kinetic: there is not enough memory"),
    ],
)
def test_the_systems_errors_are_sentences_too(capsys, monkeypatch, error, says):
    def broken(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr("kinetic.cli.dispatch", broken)
    assert main([]) == 1
    assert capsys.readouterr().err.startswith(says)
