"""`kinetic serve` as a process: its start-up line, its options, its end."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys

import pytest
from support.tiny_models import tiny_model

pytest.importorskip("hypercorn")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model("llama", tmp_path_factory.mktemp("serve") / "bare.gguf")


def test_it_serves_and_stops(model, tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    command = [sys.executable, "-m", "kinetic", "serve", str(model), "--port", "0"]
    command += ["-np", "2", "-a", "mine", "--chat-template-file", str(template), "-t", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline()
            assert line.startswith("Serving mine on the CPU at http://127.0.0.1:")
            port = int(line.rstrip().removesuffix("/v1").rpartition(":")[2])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            reply = json.loads(connection.getresponse().read())
            assert reply["model"] == "mine" and reply["usage"]["completion_tokens"] <= 2
            connection.close()
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0


def test_what_cannot_be_served_says_why(kinetic, model, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = kinetic("serve", model, "--port", taken.getsockname()[1])
        assert done.returncode == 2 and "--port" in done.stderr
    done = kinetic("serve", model, "--host", "no.such.host.invalid")
    assert done.returncode == 2 and "--host" in done.stderr
    done = kinetic("serve", model, "--chat-template-file", tmp_path / "none")
    assert done.returncode == 2 and "--chat-template-file" in done.stderr
    done = kinetic("serve", model, "more")
    assert done.returncode == 2 and "more" in done.stderr
    done = kinetic("run", model, "--port", "1")
    assert done.returncode == 2 and "kinetic serve" in done.stderr
