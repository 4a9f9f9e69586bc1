"""Downloads from a real server on this machine that cuts, lies, refuses and forgets.

Cases DL-01, DL-03, DL-05 and DL-06 of the case book are here by name.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hub_server import FakeHub

from kinetic.errors import ModelFileError, NetworkError, UsageError
from kinetic.models import download
from kinetic.models.choice import Budget, choose
from kinetic.models.download import Settings, fetch_all, targets
from kinetic.models.hub import Hub
from kinetic.models.state import State, read_state

REPO = "org/repo-GGUF"
NAME = "m-Q4_K_M.gguf"
DATA = random.Random(7).randbytes(1_000_003)
QUICK = Settings(connections=8, pause=0.01, piece=64 << 10)
FILES = {NAME: DATA, "README.md": b"hello"}


def pull(server: FakeHub, folder: Path, *, token: str | None = None, how: Settings = QUICK) -> Path:
    with Hub(server.url, token) as hub:
        repository = hub.repository(REPO)
        chosen = choose(
            *(REPO, repository.files),
            quant=None,
            file=None,
            projector=True,
            budget=Budget(1 << 40, "much"),
        )
        wanted = targets(chosen, folder)
        fetch_all(hub, repository, wanted, REPO, lambda *_: None, how)
    return wanted[0].path


def left_over(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def test_a_good_server_is_read_in_ranges(tmp_path):
    with FakeHub({REPO: FILES}) as server:
        path = pull(server, tmp_path)
    assert path.read_bytes() == DATA
    assert left_over(tmp_path) == [NAME]
    asked = sorted(r.range for r in server.file_requests() if r.range)
    assert asked[0][0] == 0
    assert len(asked) == -(-len(DATA) // (64 << 10))
    assert all(a[1] == b[0] for a, b in pairwise(asked))


def test_connections_that_break_go_on_from_the_byte(tmp_path):
    with FakeHub({REPO: FILES}, cut_after=30_000) as server:
        assert pull(server, tmp_path).read_bytes() == DATA
    # Bytes in flight when a connection breaks are lost, whole pieces are not.
    assert sum(r.sent for r in server.file_requests()) < 1.5 * len(DATA)


def test_a_server_without_ranges(tmp_path):
    with FakeHub({REPO: FILES}, ranges=False) as server:
        assert pull(server, tmp_path).read_bytes() == DATA


def test_a_server_without_ranges_that_breaks_off_once(tmp_path):
    with FakeHub({REPO: FILES}, ranges=False, cut_after=300_000, cuts=3) as server:
        assert pull(server, tmp_path).read_bytes() == DATA


def test_dl_01_one_wrong_range_is_found_and_replaced(tmp_path):
    with FakeHub({REPO: FILES}, wrong_at=100_000) as server:
        assert pull(server, tmp_path).read_bytes() == DATA
    assert sum(r.sent for r in server.file_requests()) < 2.1 * len(DATA)


def test_dl_01_bytes_that_stay_wrong_name_file_and_both_hashes(tmp_path):
    with (
        FakeHub({REPO: FILES}, wrong_at=100_000, always_wrong=True) as server,
        pytest.raises(NetworkError) as caught,
    ):
        pull(server, tmp_path)
    assert NAME in str(caught.value)
    assert hashlib.sha256(DATA).hexdigest() in str(caught.value)
    assert "got " in str(caught.value)
    assert left_over(tmp_path) == []  # the next pull starts from nothing


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"page": True}, "web page"),
        ({"list_page": True}, "web page"),
        ({"empty": True}, "empty file"),
        ({"total_lie": 5}, "lists .* bytes and serves"),
        ({"listed_lie": 5}, "lists .* bytes and serves"),
        ({"shift": 16, "busy": 0}, "another range"),
        ({"busy": 10**6}, "slow down"),
    ],
)
def test_dl_01_lies_are_recognized(tmp_path, wrong, says):
    with FakeHub({REPO: FILES}, **wrong) as server, pytest.raises(NetworkError, match=says):
        pull(server, tmp_path, how=Settings(connections=2, pause=0.0, piece=256 << 10))
    assert NAME not in left_over(tmp_path)


def test_a_busy_server_is_asked_again(tmp_path):
    with FakeHub({REPO: FILES}, busy=5) as server:
        assert pull(server, tmp_path).read_bytes() == DATA


def test_without_a_published_sha_gits_own_hash_is_checked(tmp_path):
    with FakeHub({REPO: FILES}, no_sha=True, wrong_at=5) as server:
        assert pull(server, tmp_path).read_bytes() == DATA


def test_dl_03_a_broken_download_goes_on(tmp_path):
    with FakeHub({REPO: FILES}, cut_after=20_000, busy=0) as server:
        server.cuts = 10
        how = Settings(connections=1, pause=0.0, piece=64 << 10)
        server.always_wrong = False
        with Hub(server.url) as hub:
            repository = hub.repository(REPO)
            wanted = targets(
                choose(
                    *(REPO, repository.files),
                    quant=None,
                    file=None,
                    projector=False,
                    budget=Budget(1 << 40, "much"),
                ),
                tmp_path,
            )
            calls = 0

            def interrupt(what: str, done: int, total: int) -> None:
                nonlocal calls
                calls += 1
                if done > total // 2:
                    raise KeyboardInterrupt

            server.bytes_per_second = 2_000_000
            with pytest.raises(KeyboardInterrupt):
                fetch_all(hub, repository, wanted, REPO, interrupt, how)
        state = read_state(wanted[0].part)
        assert state is not None
        assert state.done_bytes > len(DATA) // 2
        server.bytes_per_second = None
        before = sum(r.sent for r in server.file_requests())
        assert pull(server, tmp_path, how=how).read_bytes() == DATA
        assert sum(r.sent for r in server.file_requests()) - before < 0.75 * len(DATA)


def test_dl_03_a_changed_file_starts_again(tmp_path):
    part = tmp_path / f"{NAME}.part"
    part.write_bytes(b"\0" * len(DATA))
    sha = hashlib.sha256(DATA).hexdigest()
    state = State(REPO, "main", NAME, REPO, len(DATA), sha, 64 << 10, etag='"other"')
    state.arrived[3] = state.length(3)
    state.write(part)
    with FakeHub({REPO: FILES}) as server:
        assert pull(server, tmp_path).read_bytes() == DATA
    assert any(r.headers.get("if-range") == '"other"' for r in server.file_requests())


KILLED = """
import sys
from kinetic.cli import main
from kinetic.models import state, transfer
transfer._SAVE_EVERY = 0.02
sys.exit(main(["pull", "org/repo-GGUF"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_dl_03_kill_9_loses_next_to_nothing(tmp_path):
    data = random.Random(3).randbytes(24 << 20)
    with FakeHub({REPO: {NAME: data}}, bytes_per_second=2 << 20) as server:
        folder = tmp_path / "models"
        env = {**os.environ, "HF_ENDPOINT": server.url, "KINETIC_MODELS": str(folder)}
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        part = folder / f"{NAME}.part"
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            state = read_state(part)
            if state is not None and state.done_bytes > 4 << 20:
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        state = read_state(part)
        assert state is not None
        kept = state.done_bytes
        assert 4 << 20 < kept < len(data)
        # A second pull is not kept out by the first one's lock, and fetches only the rest.
        server.bytes_per_second = None
        server.requests.clear()
        done = subprocess.run(
            [sys.executable, "-m", "kinetic", "pull", REPO],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "m-Q4_K_M\n"
        assert (folder / NAME).read_bytes() == data
        assert sum(r.sent for r in server.file_requests()) <= len(data) - kept
        assert left_over(folder) == [NAME]


def test_two_pulls_of_one_file_do_not_meet(tmp_path):
    with (
        FakeHub({REPO: FILES}) as server,
        download._alone(tmp_path / f"{NAME}.part"),
        pytest.raises(ModelFileError, match="another kinetic pull"),
    ):
        pull(server, tmp_path)


def test_dl_06_the_token_goes_to_the_hub_and_not_further(tmp_path):
    with (
        FakeHub({REPO: FILES}) as files,
        FakeHub({REPO: FILES}, token="secret", redirect_to=files) as server,
    ):
        assert pull(server, tmp_path, token="secret").read_bytes() == DATA
    assert files.file_requests()
    assert all("authorization" not in r.headers for r in files.requests)
    assert all(r.headers["authorization"] == "Bearer secret" for r in server.requests)


def test_an_address_that_expired_is_asked_for_again(tmp_path):
    with (
        FakeHub({REPO: FILES}, expire_after=5) as files,
        FakeHub({REPO: FILES}, redirect_to=files) as server,
    ):
        assert pull(server, tmp_path).read_bytes() == DATA


@pytest.mark.parametrize(
    ("server", "token", "says"),
    [
        ({"token": "secret"}, None, r"401.*HF_TOKEN"),
        ({"token": "secret"}, "wrong", r"does not accept the token in HF_TOKEN \(401\)"),
        ({"gated": True}, None, r"403.*accept the terms at http.*/org/repo-GGUF"),
    ],
)
def test_dl_06_refusals_say_what_to_do(tmp_path, server, token, says):
    with FakeHub({REPO: FILES}, **server) as hub, pytest.raises(NetworkError, match=says) as caught:
        pull(hub, tmp_path, token=token)
    assert "wrong" not in str(caught.value)


def test_a_repository_that_is_not_there(tmp_path):
    with FakeHub({}) as server, pytest.raises(NetworkError, match=r"has no org/repo-GGUF \(404\)"):
        pull(server, tmp_path)


def test_dl_05_the_mirror_is_the_only_host_that_is_asked(tmp_path):
    env = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9/", "KINETIC_MODELS": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "kinetic", "pull", "org/repo"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot reach 127.0.0.1:9" in done.stderr
    assert "HTTPS_PROXY" in done.stderr
    assert done.stderr.count("\n") == 1


def test_dl_05_a_proxy_is_used_where_one_is_set(tmp_path, monkeypatch):
    # A proxy for http is asked for the whole address; this one answers 404 to everything.
    with FakeHub({}) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "")
        with Hub("http://hub.example") as hub, pytest.raises(NetworkError, match="404"):
            hub.repository("org/repo")
        assert proxy.requests
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with FakeHub({REPO: FILES}) as server:
            assert pull(server, tmp_path).read_bytes() == DATA


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_dl_05_a_certificate_of_ones_own(tmp_path, monkeypatch):
    certificate = tmp_path / "own.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-out", certificate, "-keyout", certificate.with_suffix(".key")),
        ],
        capture_output=True,
        check=True,
    )
    with FakeHub({REPO: FILES}, certificate=certificate) as server:
        with pytest.raises(NetworkError, match=r"cannot reach .*certificate.*SSL_CERT_FILE"):
            pull(server, tmp_path / "m")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert pull(server, tmp_path / "m").read_bytes() == DATA


@pytest.mark.parametrize("name", ["repo", "a/b/c", "../x", "org/", "org/..", "o rg/x", "-o/x", ""])
def test_names_that_are_no_repository(name):
    with Hub("http://127.0.0.1:9") as hub, pytest.raises(UsageError, match="not a repository"):
        hub.repository(name)


@pytest.mark.parametrize("name", ["../m.gguf", ".m.gguf", "a\nb.gguf", "c:m.gguf", "x\\m.gguf"])
def test_a_hub_cannot_choose_where_files_go(tmp_path, name):
    with FakeHub({REPO: {name: DATA}}) as server:
        try:
            path = pull(server, tmp_path / "models")
        except NetworkError as error:
            assert "cannot be a file's name" in str(error) or "(404)" in str(error)
        else:
            assert path == tmp_path / "models" / "m.gguf"
    assert left_over(tmp_path) in ([], ["models"])


def test_split_models_and_projectors_arrive_whole(tmp_path):
    files = {
        "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf": DATA[:300_000],
        "Q4_K_M/m-Q4_K_M-00002-of-00002.gguf": DATA[300_000:],
        "mmproj-F16.gguf": DATA[:1000],
    }
    with FakeHub({REPO: files}) as server:
        pull(server, tmp_path)
        names = [
            "m-Q4_K_M-00001-of-00002.gguf",
            "m-Q4_K_M-00002-of-00002.gguf",
            "mmproj-m-Q4_K_M.gguf",
        ]
        assert left_over(tmp_path) == names
        server.requests.clear()
        pull(server, tmp_path)  # all there: checked, and nothing fetched
        assert server.file_requests() == []


def test_another_file_of_the_same_name_is_not_replaced(tmp_path):
    (tmp_path / NAME).write_bytes(b"mine")
    with FakeHub({REPO: FILES}) as server, pytest.raises(ModelFileError, match="another file"):
        pull(server, tmp_path)
    assert (tmp_path / NAME).read_bytes() == b"mine"


def test_a_disk_that_would_be_full_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(
        download.shutil, "disk_usage", lambda _: SimpleNamespace(free=(2 << 30) + 1000)
    )
    monkeypatch.setenv("KINETIC_MODELS", str(tmp_path / "models"))
    from kinetic.cli.pull import pull as command

    with FakeHub({REPO: FILES}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        with pytest.raises(ModelFileError, match="stay free"):
            command(REPO)
    assert left_over(tmp_path / "models") == []


@given(st.binary(max_size=300))
@settings(max_examples=60, deadline=None)
def test_any_bytes_as_a_state_are_no_state(tmp_path_factory, data):
    part = tmp_path_factory.mktemp("s") / "x.part"
    State.path_for(part).write_bytes(data)
    assert read_state(part) is None


@pytest.mark.parametrize(
    "change",
    [
        {"size": -1},
        {"piece": 0},
        {"arrived": [10**9]},
        {"arrived": ["1"]},
        {"etag": 5},
        {"more": 1},
    ],
)
def test_a_state_that_makes_no_sense_is_no_state(tmp_path, change):
    import json
    from dataclasses import asdict

    part = tmp_path / "x.part"
    good = asdict(State(REPO, "main", NAME, REPO, 1000, "", 1000))
    State.path_for(part).write_text(json.dumps(good))
    assert read_state(part) is not None
    State.path_for(part).write_text(json.dumps({**good, **change}))
    assert read_state(part) is None
