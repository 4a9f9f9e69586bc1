"""models, rm, pull, fit, plan, can-run, doctor, completion, and `kinetic` alone, at a terminal.

No command but pull and can-run may open a connection: here each runs with the network barred.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.gguf_writer import write_gguf
from support.hub_server import FakeHub
from support.tiny_models import tiny_model

from kinetic.cli import COMMANDS

PLACES = ("OLLAMA_MODELS", "HF_HUB_CACHE", "HF_HOME", "LLAMA_CACHE", "HF_TOKEN", "HF_ENDPOINT")
NAME = "tiny-Q4_K_M"

BARRED = """
import socket, sys

class Barred(socket.socket):
    def connect(self, address):
        raise SystemExit(f"BARRED: connect to {address}")
    connect_ex = connect

def refuse(*a, **k):
    raise SystemExit(f"BARRED: {a}")

ask = socket.getaddrinfo

def own_only(host, *rest, **more):
    if host not in ("127.0.0.1", "::1", "localhost", None):  # what a server listens on
        refuse(host)
    return ask(host, *rest, **more)

socket.socket = Barred
socket.create_connection = refuse
socket.getaddrinfo = own_only
from kinetic.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home with one model in Kinetic's own folder."""
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    (folder / "models").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    monkeypatch.setenv("KINETIC_MODELS", str(folder / "models"))
    monkeypatch.setenv("KINETIC_CACHE_DIR", str(folder / "cache"))
    tiny_model("llama", folder / "models" / f"{NAME}.gguf")
    return folder


def modules_loaded(*line: str) -> set[str]:
    code = (
        "import sys; from kinetic.cli import main; main(sys.argv[1:]);"
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, *line], capture_output=True, text=True, check=False
    )
    return set(done.stderr.split())


def barred(*line: object) -> subprocess.CompletedProcess[str]:
    """`kinetic` in a process that may not connect anywhere."""
    return subprocess.run(
        [sys.executable, "-c", BARRED, *map(str, line)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("line", [["--version"], ["--help"], *([c, "--help"] for c in COMMANDS)])
def test_starting_is_light(line):
    # Counted, not timed: on a quiet machine --version takes 40 ms, most of it Python itself.
    code = "import sys; print(*sys.modules, sep='\\n', file=sys.stderr)"
    bare = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False
    )
    more = modules_loaded(*line) - set(bare.stderr.split())
    assert len(more) < 75, sorted(more)
    heavy = {"numpy", "llvmlite", "rich", "psutil", "httpx2", "jinja2", "asyncio", "ssl"}
    assert not heavy & more


# models ------------------------------------------------------------------------------------


def test_models_lists_names_and_whether_they_run(kinetic, home):
    write_gguf(home / "models" / "odd.gguf", {"general.architecture": "weird"})
    (home / "models" / "broken.gguf").write_bytes(b"GGUF")
    (home / "models" / "half-Q8_0.gguf.part").write_bytes(b"")
    done = kinetic("models")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["NAME", "SIZE", "QUANT", "ARCH", "RUNS", "ON", "KINETIC", "FROM"]
    by_name = {row.split()[0]: row for row in rows}
    assert "no: architecture weird" in by_name["odd"]
    assert "truncated" in by_name["broken"]
    assert "unfinished" in by_name["half-Q8_0"]
    assert " llama " in by_name[NAME]


def test_cl_03_no_escape_and_pure_json(kinetic, home):
    for line in (("models",), ("fit",), ("info", NAME), ("doctor",)):
        done = kinetic(*line, env={"NO_COLOR": "1"})
        assert "\x1b" not in done.stdout + done.stderr
        done = kinetic(*line, "--json", env={"TERM": "dumb"})
        json.loads(done.stdout)
        assert "\x1b" not in done.stdout + done.stderr


def test_an_empty_computer_is_told_what_to_do(kinetic, home):
    shutil.rmtree(home / "models")
    for command in ("models", "fit"):
        done = kinetic(command)
        assert done.returncode == 0
        assert "kinetic pull" in done.stdout


def test_every_command_takes_a_name(kinetic, home):
    done = kinetic("info", NAME.lower())
    assert done.returncode == 0
    assert done.stdout.startswith(f"{NAME}.gguf\n")
    done = kinetic("info", "tiny-Q4")
    assert done.returncode == 2
    assert f"there is no model tiny-Q4; did you mean {NAME}?" in done.stderr


def test_a_hostile_name_cannot_drive_the_terminal(kinetic, home):
    bad = home / "models" / "a\x1b[31mb.gguf"
    write_gguf(bad, {"general.architecture": "we\x1b[31mird"})
    for command in ("models", "fit", "completion models"):
        done = kinetic(*command.split())
        assert "\x1b" not in done.stdout + done.stderr


# rm ----------------------------------------------------------------------------------------


def test_rm_asks_and_yes_does_not(kinetic, home):
    file = home / "models" / f"{NAME}.gguf"
    done = kinetic("rm", NAME)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert file.exists()
    done = kinetic("rm", "--yes", NAME)
    assert done.returncode == 0
    assert done.stdout.startswith(f"deleted {NAME}, ")
    assert not file.exists()
    assert kinetic("rm", "--yes", NAME).returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize(("key", "kept"), [("n", True), ("", True), ("y", False)])
def test_rm_at_a_terminal(home, key, kept):
    said, code = at_terminal(["rm", NAME], "[y/N]", key + "\n")
    assert (home / "models" / f"{NAME}.gguf").exists() == kept
    assert code == (1 if kept else 0)
    assert f"delete {NAME}" in said


def test_rm_takes_an_unfinished_download_and_its_state(kinetic, home):
    part = home / "models" / "half.gguf.part"
    part.write_bytes(b"123")
    assert kinetic("rm", "--yes", "half").returncode == 0
    assert not part.exists()


def test_rm_by_path_takes_all_parts_and_only_models(kinetic, home):
    parts = [home / f"big-{no:05}-of-00002.gguf" for no in (1, 2)]
    for part in parts:
        part.write_bytes(b"x")
    letter = home / "letter.txt"
    letter.write_text("dear")
    assert kinetic("rm", "--yes", parts[1]).returncode == 0
    assert not any(part.exists() for part in parts)
    done = kinetic("rm", "--yes", letter)
    assert (done.returncode, letter.exists()) == (2, True)
    assert "no model file" in done.stderr


# pull and can-run --------------------------------------------------------------------------


def test_pull_says_what_it_takes_and_prints_the_name(kinetic, home):
    data = (home / "models" / f"{NAME}.gguf").read_bytes()
    files = {"new-Q4_K_M.gguf": data, "new-Q8_0.gguf": data + b"\0" * 32}
    with FakeHub({"org/new-GGUF": files}) as hub:
        env = {"HF_ENDPOINT": hub.url}
        done = kinetic("pull", "org/new-GGUF:Q4_K_M", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "new-Q4_K_M\n"
    assert "as named by :Q4_K_M" in done.stderr
    assert hub.url in done.stderr
    assert kinetic("info", "new-q4_k_m").returncode == 0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["pull"], "name one repository"),
        (["pull", "a/b", "c/d"], "name one repository"),
        (["pull", "model"], "'model' is not a repository"),
        (["pull", "org/repo:"], "after the colon"),
        (["can-run"], "name one repository"),
        (["models", "x"], "takes no name"),
        (["doctor", "x"], "takes no name"),
        (["fit", "a", "b"], "one model or folder"),
        (["plan"], "name a model file"),
        (["rm"], "name a model to delete"),
        (["completion", "tcsh"], "name a shell: bash, zsh, fish"),
    ],
)
def test_wrong_lines_are_one_sentence(kinetic, home, line, says):
    done = kinetic(*line)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_can_run_sizes_a_repository_without_its_files(kinetic, home):
    files = {"m-Q4_K_M.gguf": b"x" * 1000, "m-Q8_0.gguf": b"x" * 2000}
    gguf = {"gguf": {"architecture": "qwen3", "context_length": 40960, "total": 1000}}
    with FakeHub({"org/m-GGUF": files}, extra=gguf) as hub:
        env = {"HF_ENDPOINT": hub.url}
        done = kinetic("can-run", "org/m-GGUF", env=env)
        assert done.returncode == 0, done.stderr
        assert "qwen3, 40960 tokens of context" in done.stdout
        assert "Q4_K_M" in done.stdout
        told = json.loads(kinetic("can-run", "--json", "org/m-GGUF:Q8_0", env=env).stdout)
        assert [row["quant"] for row in told["files"]] == ["Q8_0"]
        assert hub.file_requests() == []
        hub.extra["gguf"] = {"architecture": "mystery"}
        done = kinetic("can-run", "org/m-GGUF", env=env)
        assert done.returncode == 1
        assert "architecture mystery is not supported yet" in done.stdout


def test_can_run_suggests_conversions_of_safetensors(kinetic, home):
    with FakeHub({"org/m": {"model.safetensors": b"x"}}, conversions=["a/m-GGUF"]) as hub:
        done = kinetic("can-run", "org/m", env={"HF_ENDPOINT": hub.url})
    assert done.returncode == 1
    assert "kinetic can-run a/m-GGUF" in done.stdout


# fit, plan, doctor -------------------------------------------------------------------------


def test_fit_and_plan_exit_with_whether_it_runs(kinetic, home):
    odd = write_gguf(home / "odd.gguf", {"general.architecture": "weird"})
    assert kinetic("fit", odd).returncode == 1
    assert kinetic("plan", odd).returncode == 1
    assert kinetic("fit").returncode == 0
    done = kinetic("fit", home / "models", "--json")
    (row,) = json.loads(done.stdout)
    assert (row["name"], row["runs"], row["where"]) == (NAME, True, "CPU")
    low, high = row["tokens_per_second"]
    assert 0 < low < high
    done = kinetic("plan", NAME, "-c", 512, "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["context"] == 512
    assert made["total"] == made["weights"] + made["cache"] + made["work"]
    half = json.loads(kinetic("plan", NAME, "-c", 256, "--json").stdout)
    assert 2 * half["cache"] == made["cache"]


def test_doctor_is_one_screen(kinetic, home):
    done = kinetic("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    for label in ("system", "cpu", "memory", "gpu", "models", "disk"):
        assert f"\n  {label:<8} " in done.stdout
    assert "(measured, " in done.stdout
    assert len(done.stdout.splitlines()) < 24


# Offline. ----------------------------------------------------------------------------------

LINES = {
    "models": ["models"],
    "rm": ["rm", "--yes", NAME],
    "doctor": ["doctor"],
    "fit": ["fit"],
    "plan": ["plan", NAME],
    "info": ["info", NAME],
    "run": ["run", NAME, "Hi", "-n", "2"],
    "bench": ["bench", NAME, "-r", "1"],
    "show": ["show", NAME, "--plan"],
    "completion": ["completion", "bash"],
}
ONLINE = ("pull", "can-run")
STAY = ("serve", "chat")
"""Commands that do not end by themselves."""


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in (*ONLINE, *STAY)])
def test_no_other_command_connects(home, command):
    done = barred(*LINES.get(command, [command, NAME]))
    assert "BARRED" not in done.stdout + done.stderr
    if command in LINES:
        assert done.returncode == 0, done.stderr


def test_the_server_connects_nowhere(home):
    line = [sys.executable, "-c", BARRED, "serve", NAME, "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        said = b""
        while b"Serving" not in said:
            block = process.stdout.readline()
            assert block, said  # it ended
            said += block
        process.terminate()
        said += process.stdout.read()
    assert b"BARRED" not in said


def test_chat_connects_nowhere(home):
    done = barred("chat", NAME)  # no terminal and no input: it ends
    assert "BARRED" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", ONLINE)
def test_the_bar_holds_where_a_connection_is_wanted(home, command):
    assert "BARRED" in barred(command, "org/repo").stderr


def test_http_is_imported_by_nobody_else():
    importers = set()
    for file in Path(sys.modules["kinetic"].__path__[0]).rglob("*.py"):
        if "import httpx2" in file.read_text(encoding="utf-8"):
            importers.add(file.name)
    assert importers == {"hub.py", "transfer.py"}


# Completion. -------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_parse(kinetic, tmp_path, shell):
    done = kinetic("completion", shell)
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its script is only printed")
    script = tmp_path / f"c.{shell}"
    script.write_text(done.stdout)
    check = subprocess.run([shell, "-n", str(script)], capture_output=True, check=False)
    assert (check.returncode, check.stderr) == (0, b"")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_models(kinetic, home, tmp_path):
    (tmp_path / "kinetic").write_text(f'#!/bin/sh\nexec {sys.executable} -m kinetic "$@"\n')
    (tmp_path / "kinetic").chmod(0o755)
    script = kinetic("completion", "bash").stdout

    def complete(*words: str) -> list[str]:
        listed = " ".join(f"'{word}'" for word in words)
        code = f"{script}\nCOMP_WORDS=(kinetic {listed})\nCOMP_CWORD={len(words)}\n_kinetic\n"
        code += 'printf "%s\\n" "${COMPREPLY[@]}"'
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", code], capture_output=True, text=True, env=env, cwd=home, check=False
        )
        return done.stdout.split()

    assert complete("do") == ["doctor"]
    assert complete("pull", "--no-m") == ["--no-mmproj"]
    assert NAME in complete("info", "tiny")


# `kinetic` alone. --------------------------------------------------------------------------


def at_terminal(line: list[str], until: str, keys: str) -> tuple[str, int]:
    """Run `kinetic` in a terminal with the network barred; type `keys` once it says `until`."""
    import pty
    import select

    process, terminal = pty.fork()
    if process == 0:
        os.environ["TERM"] = "dumb"
        os.execv(sys.executable, [sys.executable, "-c", BARRED, *line])
    said, deadline, typed = b"", time.monotonic() + 60, False
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            block = os.read(terminal, 4096)
        except OSError:
            break  # the other side has closed
        if not block:
            break
        said += block
        if not typed and until.encode() in said:
            time.sleep(0.1)  # until it reads keys
            os.write(terminal, keys.encode())
            typed = True
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    return said.decode(errors="replace"), os.waitstatus_to_exitcode(status)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_alone_it_proposes_models_and_waits_for_a_key(home):
    said, code = at_terminal([], "q quits", "q")
    assert code == 0
    assert f"1  {NAME}" in said
    assert "2  " in said
    assert "t/s" in said
    assert "BARRED" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_alone_it_connects_only_after_a_pick_of_what_is_not_here(home):
    said, _ = at_terminal([], "q quits", "2")
    assert "BARRED" in said  # the picked one is downloaded
    assert said.index("q quits") < said.index("BARRED")


def test_alone_without_a_terminal_it_prints_the_help(kinetic):
    assert kinetic().stdout == kinetic("--help").stdout
