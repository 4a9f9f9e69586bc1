"""Options in any place, plain errors, llama.cpp's flags."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetic.cli import COMMANDS, llama_flags
from kinetic.cli.options import device, sampling_overrides, take_model
from kinetic.cli.run import build_parser
from kinetic.errors import UsageError

OPTIONS = [
    ["--temp", "0"],
    ["-n", "8"],
    ["--top-k=40"],
    ["--seed", "-1"],
    ["--raw"],
    ["--top-nsigma", "-1"],
    ["--device", "cpu"],
    ["-t", "2"],
]


@given(st.permutations(OPTIONS), st.lists(st.integers(0, len(OPTIONS)), min_size=3, max_size=3))
def test_options_and_words_mix_in_any_order(options, places):
    words = ["m.gguf", "hello", "there"]
    line = [list(option) for option in options]
    for word, place in zip(reversed(words), sorted(places, reverse=True), strict=True):
        line.insert(place, [word])
    got = build_parser().parse([part for parts in line for part in parts])
    want = build_parser().parse([part for option in OPTIONS for part in option] + words)
    assert got == want
    assert got.words == words
    assert (got.temperature, got.n_predict, got.top_k, got.threads) == (0.0, 8, 40, 2)


def test_after_two_dashes_everything_is_prompt():
    got = build_parser().parse(["m", "--temp", "0", "--", "--temp", "-h", "--", "x"])
    assert got.words == ["m", "--temp", "-h", "--", "x"]
    assert got.temperature == 0.0


def test_no_model_is_taken_from_the_prompt():
    got = build_parser().parse(["-n", "4", "--", "m", "hi"])
    with pytest.raises(UsageError, match="name the model file before it"):
        take_model(got, "run")


def test_numbers_and_phrases_with_a_dash_are_words():
    got = build_parser().parse(["m", "-5", "-.5", "- a list", "-"])
    assert got.words == ["m", "-5", "-.5", "- a list", "-"]


def test_values_may_be_any_number():
    got = build_parser().parse(
        [
            "m",
            "--presence-penalty",
            "-1e30",
            "--frequency-penalty=-1.5E-3",
            "-n8",
            "-s-1",
            "-p",
            "-",
        ]
    )
    assert got.words == ["m"]
    assert (got.presence_penalty, got.frequency_penalty) == (-1e30, -1.5e-3)
    assert (got.n_predict, got.seed, got.prompt) == (8, -1, "-")


@pytest.mark.parametrize("word", ["-ctx", "-cq8_0", "-mfoo.gguf", "-temp", "-nope", "-hx", "-raw"])
def test_a_short_option_swallows_no_longer_word(word):
    with pytest.raises(UsageError, match=f"there is no option {word}; "):
        build_parser().parse(["m", word, "1"])


def test_a_phrase_that_starts_like_an_option_is_a_word():
    assert build_parser().parse(["m", "-c is a flag"]).words == ["m", "-c is a flag"]


@given(st.lists(st.text(max_size=8), max_size=6))
def test_no_line_is_worse_than_a_usage_error(line):
    try:
        build_parser().parse(line)
    except UsageError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["--temp", "hot"], "--temp takes a number from 0 up, not 'hot'"),
        (["--temp", "-0.1"], "--temp takes a number from 0 up"),
        (["--temp", "inf"], "--temp takes a number"),
        (["--top-p", "nan"], "--top-p takes a number from 0 to 1, not 'nan'"),
        (["--top-p", "1.5"], "--top-p takes a number from 0 to 1"),
        (["-n", "1.5"], "--n-predict takes a whole number of at least -1, not '1.5'"),
        (["-n", "1_000"], "--n-predict takes a whole number"),
        (["-n", "٣"], "--n-predict takes a whole number"),
        (["-n", "9" * 5000], "--n-predict takes a whole number"),
        (["-t", "0"], "--threads takes a whole number from 1 to 4096"),
        (["--mirostat", "3"], "--mirostat takes a whole number from 0 to 2"),
        (["--seed", str(2**64)], "--seed takes a whole number"),
        (["--device", "tpu"], "--device takes one of auto, cpu, cuda, vulkan"),
        (["--device", "gpu"], "--device takes one of auto, cpu, cuda, vulkan, not 'gpu'"),
        (["--repack-cache", ""], "--repack-cache takes the name of a folder, not ''"),
        (["--temperture", "1"], "did you mean --temp?"),
        (["-temp", "1"], "did you mean --temp?"),
        (["--frobnicate"], "there is no option --frobnicate; see kinetic run --help"),
        (["--mirrors"], "there is no option --mirrors; see kinetic run --help"),
        (["-x"], "there is no option -x"),
        (["--tem", "0"], "did you mean --temp?"),
    ],
)
def test_a_wrong_option_says_what_it_takes(line, says):
    with pytest.raises(UsageError) as caught:
        build_parser().parse(["m", *line])
    assert says in str(caught.value)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_says_what_it_means(command):
    parser = import_module(f"kinetic.cli.{command.replace('-', '_')}").build_parser()
    rows = [row for _, rows in parser.rows() for row in rows]
    names = [name for written, _ in rows for name in written.split(" ")[0].rstrip(",").split(",")]
    assert len(names) == len(set(names))
    assert all(meaning for _, meaning in rows)


def overrides(*line: str) -> dict[str, object]:
    return sampling_overrides(build_parser().parse(["m", *line]))


def test_only_what_is_given_overrides_the_model():
    assert overrides() == {}
    assert overrides("--temp", "0", "--seed", "-1", "--top-k", "-1") == {
        "temperature": 0.0,
        "top_k": 0,
    }
    assert overrides("--mirostat", "2", "--mirostat-lr", "0.2", "--mirostat-ent", "4") == {
        "mirostat": 2,
        "mirostat_eta": 0.2,
        "mirostat_tau": 4.0,
    }


def test_dry_breakers_replace_the_default_ones():
    breakers = "dry_sequence_breakers"
    assert overrides("--dry-sequence-breaker", "a", "--dry-sequence-breaker", "b") == {
        breakers: ("a", "b")
    }
    assert overrides("--dry-sequence-breaker", "none") == {breakers: ()}


# llama.cpp's flags. ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("-m m -sys Be. --temperature 0 hi", "-m m --system Be. --temp 0 hi"),
        ("-m m -ngl 0 hi", "-m m --device cpu hi"),
        ("-m m -ngl 99 hi", "-m m hi"),
        ("-m m --n-gpu-layers=0 hi", "-m m --device cpu hi"),
        ("-m m -dev none hi", "-m m --device none hi"),
        ("-m m -fa on --jinja -b 512 -ub 128 hi", "-m m hi"),
        ("-m m -fa hi", "-m m hi"),
        ("-m m -no-cnv -st --numa isolate hi", "-m m hi"),
        ("-m m --top-n-sigma 1 hi", "-m m --top-nsigma 1 hi"),
    ],
)
def test_llama_lines_work(theirs, ours):
    parse = build_parser().parse
    assert parse(theirs.split()) == parse(ours.split())


@pytest.mark.parametrize("flag", llama_flags.REFUSED)
def test_flags_without_an_equivalent_say_so(flag):
    parser = build_parser()
    if flag in parser.known():  # run has it; chat does not
        parser = import_module("kinetic.cli.chat").build_parser()
    with pytest.raises(UsageError, match=r"is a llama\.cpp flag: "):
        parser.parse(["m", flag, "1", "hi"])


@pytest.mark.parametrize(
    ("name", "line", "becomes"),
    [
        ("llama-server", "-m m --port 1", "serve -m m --port 1"),
        ("llama-cli", "-m m -cnv", "chat -m m -cnv"),
        ("llama-cli.exe", "-m m -p hi", "run -m m -p hi"),
        ("LLAMA-CLI.EXE", "-m m --file=x", "run -m m --file=x"),
        ("llama-completion", "-m m -p hi", "run -m m -p hi"),
        ("llama-server", "--version", "--version"),
        ("kinetic", "models", "models"),
        ("llama-other", "models", "models"),
    ],
)
def test_programs_of_llama_cpp_are_commands(name, line, becomes):
    assert llama_flags.as_program(name, line.split()) == becomes.split()


@pytest.mark.parametrize("command", ["run", "chat", "serve"])
@pytest.mark.parametrize("flag", tuple(llama_flags.documented()))
def test_no_flag_is_a_bare_error(command, flag):
    parser = import_module(f"kinetic.cli.{command}").build_parser()
    kind, says = llama_flags.meaning(flag, command, parser.known())
    if kind == "unknown":
        assert llama_flags.SPELLINGS[flag] in ("--system", "--n-predict") and command == "serve"
    elif kind in ("stops", "f16"):
        assert says.startswith(flag) and says.endswith(".")


def test_a_link_with_another_name_is_that_program(tmp_path):
    script = "import sys; from kinetic.__main__ import main; sys.exit(main())"
    file = tmp_path / "llama-server"
    file.write_text(f"#!{sys.executable}\n{script}\n")
    done = subprocess.run([sys.executable, file, "--help"], capture_output=True, text=True)
    assert done.stdout.startswith("kinetic serve: "), done.stderr


@pytest.mark.parametrize("flag", llama_flags.LATER)
def test_options_of_a_later_version_say_so(flag):
    for line in ([flag, "q8_0", "hi"], [f"{flag}=1"], [flag]):
        with pytest.raises(UsageError, match=f"^{flag} is not supported yet: "):
            build_parser().parse(["m", *line])


# The manual's chapter of llama.cpp flags, and Kinetic's own options that are not there yet.
ACCEPTED = (
    *("-fa", "--flash-attn", "--jinja", "--mmap", "-cb", "--cont-batching", "-nocb"),
    *("--no-cont-batching", "--no-warmup", "--metrics", "--slots", "--no-webui", "--embedding"),
    *("--embeddings", "-no-cnv", "--no-conversation", "-st", "--single-turn"),
    *("-b 1", "--batch-size 1", "-ub 1", "--ubatch-size 1", "-tb 1", "--threads-batch 1"),
    *("--cache-reuse 1", "--numa x", "--prio 1", "--poll 1", "-to 1", "--timeout 1"),
    *("--threads-http 1", "-ctk f16", "-ctv f16", "--cache-type-k=f16"),
)
NOT_HERE = (
    *("-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu", "-ot"),
    *("--override-tensor", "-cnv", "--conversation", "-i", "--interactive"),
    *("--interactive-first", "--chat-template", "-md", "--model-draft", "--draft", "--draft-max"),
    *("--draft-min", "-ngld", "-hf", "--hf-repo", "-mu", "--model-url"),
    *("--image", "--control-vector", "--control-vector-scaled", "--grammar", "--grammar-file"),
    *("-j", "--json-schema", "--api-key-file", "--ssl-key-file", "--ssl-cert-file"),
    *("-np", "-ctk", "-ctv", "-a", "--host", "--port", "--mmproj"),
    "--rope-scaling",
)


@pytest.mark.parametrize("flag", ACCEPTED)
def test_flags_that_kinetic_does_not_need_are_taken_silently(flag):
    assert build_parser().parse(["m", *flag.split(), "hi"]).words == ["m", "hi"]


@pytest.mark.parametrize("flag", NOT_HERE)
def test_the_other_flags_are_explained(flag):
    assert flag in llama_flags.REFUSED or flag in llama_flags.LATER


def test_a_flag_that_ends_the_line_is_taken():
    assert build_parser().parse(["m", "-b"]).words == ["m"]
    with pytest.raises(UsageError, match="-ngl needs a value"):
        build_parser().parse(["m", "-ngl"])


def test_llama_device_names_are_taken():
    assert device(build_parser().parse(["m", "--device", "none"])) == "cpu"
    assert device(build_parser().parse(["m", "--device", "cuda0"])) == "cuda"


def test_device_classes_are_the_compilers():
    from kinetic.cli.options import DEVICE_CLASSES
    from kinetic.codegen.targets.llvm_x86 import AVX2_CLASS, SCALAR_CLASS

    assert DEVICE_CLASSES == (AVX2_CLASS, SCALAR_CLASS)
