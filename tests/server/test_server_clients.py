"""The real clients from PyPI against a small real model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_server_vectors import embedder  # noqa: F401 (a fixture)

from kinetic.api import Model

FILE = "qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf"
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
HI = [{"role": "user", "content": "Say hello in three words."}]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def real(serving):
    folder = Path(os.environ.get("KINETIC_TEST_MODELS", "~/.cache/kinetic-test-models"))
    path = folder.expanduser() / FILE
    if not path.exists():
        pytest.skip(f"{FILE} is absent (set KINETIC_TEST_MODELS)")
    model = Model.load(path, ctx_size=2048, parallel=2, queue_limit=8)
    yield serving(model, path)
    model.close()


@pytest.fixture
def openai(real):
    library = pytest.importorskip("openai")
    return library.OpenAI(base_url=f"http://127.0.0.1:{real.port}/v1", api_key="any")


@pytest.fixture
def anthropic(real):
    library = pytest.importorskip("anthropic")
    return library.Anthropic(base_url=f"http://127.0.0.1:{real.port}", api_key="any")


@pytest.fixture
def ollama(real):
    library = pytest.importorskip("ollama")
    return library.Client(host=f"http://127.0.0.1:{real.port}")


def test_openai_chat(openai):
    (card,) = openai.models.list().data
    settings = {"model": card.id, "messages": HI, "max_tokens": 12, "temperature": 0}
    whole = openai.chat.completions.create(**settings, logprobs=True, top_logprobs=2)
    (choice,) = whole.choices
    assert "hello" in choice.message.content.lower()
    assert len(choice.logprobs.content) >= 2
    assert whole.usage.completion_tokens <= 12
    stream = openai.chat.completions.create(
        **settings, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == choice.message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_openai_completions_and_errors(openai):
    import openai as library

    done = openai.completions.create(
        model="x", prompt="def add(a, b):\n    return", max_tokens=6, temperature=0, logprobs=1
    )
    assert "a + b" in done.choices[0].text
    assert len(done.choices[0].logprobs.tokens) >= 3
    with pytest.raises(library.BadRequestError, match="too long"):
        openai.chat.completions.create(
            model="x", messages=[{"role": "user", "content": "word " * 5000}]
        )


def test_openai_responses(openai):
    settings = {"model": "x", "input": "Say hello in three words.", "max_output_tokens": 12}
    whole = openai.responses.create(**settings, temperature=0)
    assert "hello" in whole.output_text.lower()
    events = list(openai.responses.create(**settings, temperature=0, stream=True))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text
    assert events[-1].response.output_text == text


def test_anthropic_messages(anthropic):
    settings = {"model": "x", "messages": HI, "max_tokens": 12}
    settings["extra_body"] = {"temperature": 0}
    whole = anthropic.messages.create(**settings, system="You are polite.")
    assert whole.content[0].type == "text" and whole.stop_reason in ("end_turn", "max_tokens")
    counted = anthropic.messages.count_tokens(
        model="x", messages=HI, system="You are polite."
    ).input_tokens
    usage = whole.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted
    with anthropic.messages.stream(**settings, system="You are polite.") as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text


def test_anthropic_errors(anthropic):
    import anthropic as library

    with pytest.raises(library.BadRequestError, match="prompt is too long"):
        anthropic.messages.create(
            model="x", max_tokens=5, messages=[{"role": "user", "content": "word " * 5000}]
        )


def test_anthropic_tools(anthropic):
    tool = {"name": "get_weather", "description": "weather", "input_schema": WEATHER["parameters"]}
    forced = {"type": "tool", "name": "get_weather"}
    asked = {
        "model": "x",
        "max_tokens": 80,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [tool],
        "extra_body": {"temperature": 0},
    }
    done = anthropic.messages.create(**asked, tool_choice=forced)
    (call,) = [block for block in done.content if block.type == "tool_use"]
    assert done.stop_reason == "tool_use" and set(call.input) == {"city"}
    with anthropic.messages.stream(**asked, tool_choice=forced) as stream:
        (same,) = [b for b in stream.get_final_message().content if b.type == "tool_use"]
    assert same.input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "4 C, rain"}
    asked["messages"] += [
        {
            "role": "assistant",
            "content": [call.model_dump(include={"type", "id", "name", "input"})],
        },
        {"role": "user", "content": [result]},
    ]
    assert anthropic.messages.create(**asked).content


def test_ollama(ollama, real):
    assert ollama.list().models[0].model.endswith(":latest")
    assert ollama.ps().models[0].size > 0
    shown = ollama.show("x")
    assert "completion" in shown.capabilities and "tools" in shown.capabilities
    options = {"num_predict": 12, "temperature": 0}
    whole = ollama.chat("x", messages=HI, options=options)
    assert "hello" in whole.message.content.lower() and whole.eval_count <= 12
    parts = list(ollama.chat("x", messages=HI, options=options, stream=True))
    assert "".join(p.message.content for p in parts) == whole.message.content
    assert parts[-1].done
    made = ollama.generate("x", prompt="Say hello.", options=options)
    assert made.response and made.done_reason in ("stop", "length")


def test_infill(real):
    body = {
        "input_prefix": "def add(a, b):\n    return ",
        "input_suffix": "\n\nprint(add(1, 2))\n",
        "n_predict": 8,
        "temperature": 0,
    }
    assert "a + b" in real.post("/infill", body).json["content"]


def test_a_second_turn_reuses_the_first(real):
    settings = {"temperature": 0, "max_tokens": 8, "cache_salt": "turns"}
    long = "The report says: " + "all is well, " * 60
    first = real.chat(long, **settings).json
    talk = [
        {"role": "user", "content": long},
        first["choices"][0]["message"],
        {"role": "user", "content": "Go on."},
    ]
    second = real.chat(messages=talk, **settings).json
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 100


def test_schemathesis_finds_no_server_error(client):
    pytest.importorskip("schemathesis")
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run"),
        f"http://127.0.0.1:{client.port}/openapi.json",
        *("--checks", "not_a_server_error", "--max-examples", "8", "--seed", "1"),
        *("--phases", "examples,fuzzing", "--request-timeout", "20"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert client.chat().status == 200


def test_openai_tools_and_schemas(openai):
    tool = {"type": "function", "function": WEATHER}
    messages = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
    settings = {"model": "x", "max_tokens": 80, "temperature": 0, "messages": messages}
    whole = openai.chat.completions.create(**settings, tools=[tool]).choices[0]
    stream = openai.chat.completions.create(**settings, tools=[tool], stream=True)
    deltas = [c.choices[0].delta for c in stream if c.choices]
    text = "".join(d.content or "" for d in deltas)
    assert text == (whole.message.content or "")
    calls = [part for d in deltas for part in d.tool_calls or ()]
    arguments = "".join(part.function.arguments or "" for part in calls)
    if whole.message.tool_calls:
        assert arguments == whole.message.tool_calls[0].function.arguments
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "size": {"type": "integer", "minimum": 0, "maximum": 1000},
        },
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "c", "strict": True, "schema": schema}}
    held = openai.chat.completions.create(**settings, response_format=form).choices[0]
    assert set(json.loads(held.message.content)) == {"city", "size"}


def test_openai_logprobs(openai):
    asked = {"model": "x", "messages": HI, "max_tokens": 4, "temperature": 0}
    done = openai.chat.completions.create(**asked, logprobs=True, top_logprobs=2).choices[0]
    assert 1 <= len(done.logprobs.content) <= 4
    assert all(len(token.top_logprobs) == 2 for token in done.logprobs.content)
    scored = openai.completions.create(
        model="x", prompt="One, two, three, four", echo=True, logprobs=1, max_tokens=1
    )
    told = scored.choices[0].logprobs
    assert told.token_logprobs[0] is None and told.token_logprobs[-2] > -1  # " four", as expected
    assert "".join(told.tokens) == scored.choices[0].text


def test_vectors_of_the_real_clients(embedder):  # noqa: F811
    library = pytest.importorskip("openai")
    base = f"http://127.0.0.1:{embedder.port}"
    made = library.OpenAI(base_url=f"{base}/v1", api_key="any").embeddings
    packed = made.create(model="x", input=["a cat", "a dog"])  # asks for base64 by itself
    plain = made.create(model="x", input=["a cat", "a dog"], encoding_format="float")
    width = embedder.service.model.graph.meta.n_embd
    for one, two in zip(packed.data, plain.data, strict=True):
        assert len(one.embedding) == len(two.embedding) == width
        assert one.embedding == pytest.approx(two.embedding, abs=1e-7)
    client = pytest.importorskip("ollama").Client(host=base)
    found = client.embed("x", input=["a cat", "a dog"]).embeddings
    assert list(found[0]) == pytest.approx(plain.data[0].embedding, abs=1e-6)
    chain = pytest.importorskip("langchain_openai").OpenAIEmbeddings(
        base_url=f"{base}/v1", api_key="any", model="x", check_embedding_ctx_length=False
    )
    assert chain.embed_query("a cat") == pytest.approx(plain.data[0].embedding, abs=1e-6)


def test_langchain(real):
    library = pytest.importorskip("langchain_openai")
    from pydantic import BaseModel

    class Person(BaseModel):
        """A person."""

        name: str
        age: int

    chat = library.ChatOpenAI(
        base_url=f"http://127.0.0.1:{real.port}/v1",
        api_key="any",
        model="x",
        temperature=0,
        max_tokens=60,
    )
    assert "hello" in chat.invoke("Say hello in three words.").content.lower()
    assert "".join(c.content for c in chat.stream("Say hello in three words."))
    person = chat.with_structured_output(Person, method="json_schema").invoke("Ann is 30.")
    assert isinstance(person, Person)
    bound = chat.bind_tools([Person], tool_choice="auto", parallel_tool_calls=False)
    assert bound.invoke("Ann is 30.") is not None


def test_llama_index(real):
    library = pytest.importorskip("llama_index.llms.openai_like")
    model = library.OpenAILike(
        api_base=f"http://127.0.0.1:{real.port}/v1",
        api_key="any",
        model="x",
        is_chat_model=True,
        temperature=0,
        max_tokens=12,
    )
    assert "hello" in model.complete("Say hello in three words.").text.lower()


def test_litellm(real):
    library = pytest.importorskip("litellm")
    done = library.completion(
        model="openai/x",
        api_base=f"http://127.0.0.1:{real.port}/v1",
        api_key="any",
        messages=HI,
        max_tokens=12,
        temperature=0,
    )
    assert "hello" in done.choices[0].message.content.lower()


# Agents from npm, where they are installed: each completes one prompt. ------------------------


def run_agent(name, arguments, env, folder):
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    env = {**os.environ, "HOME": str(folder), **env}
    done = subprocess.run(
        [program, *arguments],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.strip()


@pytest.fixture(scope="module")
def roomy(serving):
    """Agents' prompts are long."""
    folder = Path(os.environ.get("KINETIC_TEST_MODELS", "~/.cache/kinetic-test-models"))
    path = folder.expanduser() / FILE
    if not path.exists():
        pytest.skip(f"{FILE} is absent (set KINETIC_TEST_MODELS)")
    model = Model.load(path, ctx_size=32768, parallel=1, queue_limit=8)
    yield serving(model, path)
    model.close()


def test_codex(roomy, tmp_path):
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text(
        'model = "local"\nmodel_provider = "kinetic"\n[model_providers.kinetic]\n'
        f'name = "kinetic"\nbase_url = "http://127.0.0.1:{roomy.port}/v1"\n'
        'wire_api = "responses"\n'
    )
    run_agent("codex", ["exec", "--skip-git-repo-check", "Say hello."], {}, tmp_path)


def test_claude_code(roomy, tmp_path):
    env = {
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{roomy.port}",
        "ANTHROPIC_AUTH_TOKEN": "any",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    # Its own system prompt and all its tools are 18,000 tokens; the protocol is the same.
    small = ["--system-prompt", "Be brief.", "--tools", "Bash", "--model", "local"]
    run_agent("claude", ["-p", "Say hello.", *small], env, tmp_path)
