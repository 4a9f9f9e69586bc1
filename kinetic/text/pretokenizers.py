"""How a byte-level BPE vocabulary cuts text into words before merging.

A GGUF file names its rules in `tokenizer.ggml.pre`. Rules are steps that each cut the pieces
of the step before; nearly all are regular expressions over character classes.

*Source*: the rules are those the models' authors published in their tokenizer.json files, in
the reading that llama.cpp (MIT) gives them, since GGUF ids are defined by it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

from kinetic.errors import UnsupportedError
from kinetic.text.unicode_classes import collapse, expand_classes, narrow_spaces

# A step takes (text, collapsed text, ends of the pieces so far) and returns the new ends.
Step = Callable[[str, str, list[int]], list[int]]


@dataclass(frozen=True)
class Rules:
    """What a pre-tokenizer name stands for.

    `steps` cut the text. `ignore_merges`: a word that is a token is used whole. `clean_spaces`:
    detokenizing removes spaces before punctuation. `raw_utf8`: symbols are characters, spaces
    become U+2581, instead of bytes in GPT-2's alphabet.
    """

    steps: tuple[Step, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    clean_spaces: bool = True
    raw_utf8: bool = False

    def split(self, text: str) -> list[str]:
        """Cut a text into its words; joined they give the text again."""
        shadow = collapse(text)
        ends = [len(text)]
        for step in self.steps:
            ends = step(text, shadow, ends)
        words = []
        start = 0
        for end in ends:
            words.append(text[start:end])
            start = end
        return words


def rules_for(name: str | None) -> Rules:
    """The rules of a `tokenizer.ggml.pre` name; None, for a file without it, is "default".

    *Raises*: UnsupportedError for a name that is not known.
    """
    key = name or "default"
    found = _NAMES.get(key)
    if found is None:
        raise UnsupportedError(f'unsupported pre-tokenizer "{key}"')
    steps, flags = found
    return _rules(tuple(steps), tuple(sorted(flags.items())))


@functools.cache
def _rules(steps: tuple[str | Step, ...], flags: tuple[tuple[str, bool], ...]) -> Rules:
    made = tuple(_regex_step(s) if isinstance(s, str) else s for s in steps)
    return Rules(made, **dict(flags))


def _cut(find: Callable[..., object], subject: str, ends: list[int]) -> list[int]:
    out: list[int] = []
    start = 0
    for end in ends:
        done = start
        # endpos makes look-ahead see the end of the piece as the end of the text.
        for match in find(subject, start, end):  # type: ignore[attr-defined]
            a, b = match.span()
            if a > done:
                out.append(a)
            out.append(b)
            done = b
        if done < end:
            out.append(end)
        start = end
    return out


def _regex_step(pattern: str) -> Step:
    """Cut around the matches of a pattern over classes, or over plain text if it names none."""
    if pattern.startswith("text:"):
        find = re.compile(pattern[5:].replace(r"\s", "[\t-\r ]")).finditer
        return lambda text, shadow, ends: _cut(find, narrow_spaces(text), ends)
    find = re.compile(expand_classes(pattern)).finditer
    return lambda text, shadow, ends: _cut(find, shadow, ends)


def _group_digits(pattern: str) -> Step:
    """Cut runs of digits into threes counted from the right, as large numbers are written.

    There is no cut before a run: its first group stays with what stands before it, and later
    steps cut there if they will.
    """
    find = re.compile(pattern).finditer

    def step(text: str, shadow: str, ends: list[int]) -> list[int]:
        out: list[int] = []
        start = 0
        for end in ends:
            for match in find(shadow, start, end):
                a, b = match.span()
                first = a + (b - a) % 3
                out.extend(range(first if first > a else a + 3, b + 1, 3))
            if end > (out[-1] if out else 0):
                out.append(end)
            start = end
        return out

    return step


def _group_ascii_digits(text: str, shadow: str, ends: list[int]) -> list[int]:
    """The same for ASCII digits only, where the place before the run's end stays uncut."""
    out: list[int] = []
    start = 0
    for end in ends:
        for match in _ASCII_DIGITS(text, start, end):
            a, b = match.span()
            out.extend(p for p in range(a + (b - a) % 3, b - 2, 3) if p > start)
        out.append(end)
        start = end
    return out


_ASCII_DIGITS = re.compile("[0-9]{3,}").finditer

_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_CJK_KANA = "text:[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_HANGUL = "text:[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_ASCII_PUNCT_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_SCRIPT_WORD = r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"


def _cased(upper: str, lower: str, contraction: str) -> str:
    """Words whose capitals come first: `FOOBar` is one, `fooBar` is two."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return f"{lead}{upper}*{lower}+{contraction}|{lead}{upper}+{lower}*{contraction}"


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3 = f"{_CONTRACTION}|{_WORD}|\\p{{N}}{{1,3}}{_SYMBOLS}{_TAIL}"
QWEN2 = f"{_CONTRACTION}|{_WORD}|\\p{{N}}{_SYMBOLS}{_TAIL}"
QWEN35 = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _TAIL
)
JAIS2 = (
    f"{_CONTRACTION}|{_WORD}|\\p{{N}}{{1,3}}{_SYMBOLS}"
    r"|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)"
    r"|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
)
_CASED_SYMBOLS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
TEKKEN = _cased("[\\p{Upper}]", "[\\p{Lower}]", "") + r"|\p{N}" + _CASED_SYMBOLS + _TAIL
GPT4O = (
    _cased("[\\p{Upper}]", "[\\p{Lower}]", _CONTRACTION + "?")
    + r"|\p{N}{1,3}"
    + _CASED_SYMBOLS
    + _TAIL
)
GRANITE_EMBED = (
    _cased(r"[\p{Upper}\p{M}]", r"[\p{Lower}\p{M}]", _CONTRACTION + "?")
    + r"|\p{N}{1,3}"
    + _CASED_SYMBOLS
    + _TAIL
)
# llama.cpp reads Lu, Ll, Lt, Lm and Lo all as "letter", so case does not cut here.
UNCASED = _cased(r"[\p{L}\p{M}]", r"[\p{L}\p{M}]", _CONTRACTION + "?")
YOUTU = UNCASED + r"|\p{N}" + _CASED_SYMBOLS + _TAIL
TINY_AYA = UNCASED + r"|\p{N}{1,3}" + _CASED_SYMBOLS + _TAIL
KIMI = r"\p{Han}+|[^\r\n\p{L}\p{N}]?\p{NotHan}+" + _CONTRACTION + r"?|\p{N}{1,3}" + _SYMBOLS + _TAIL
DEEPSEEK3 = (r"\p{N}{1,3}", _CJK_KANA, _ASCII_PUNCT_WORD + _SCRIPT_WORD + r"[\r\n]*" + _TAIL)
SPARK = (
    r"\p{N}{1,3}",
    _CJK_KANA,
    _ASCII_PUNCT_WORD + _SCRIPT_WORD + r"|[\r\n]|\s+(?!\S)|\s+",
    r"\p{N}",
)
DEEPSEEK_LLM = (
    "[\r\n]",
    "text:\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e"
    "-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-"
    "\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-"
    "\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-"
    "\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-"
    "\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e"
    "\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-"
    "\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-"
    "\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-"
    "\U0001e943]+",
    "text:\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"text:\s+$",
    _CJK_HANGUL,
    r"\p{N}+",
)
DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_HANGUL, r"\p{N}")
STARCODER = (r"\p{N}", GPT2)
POEM = "text: ?[^(" + "\t-\r " + "|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
BAILING = (
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|"
    f"{_WORD}|\\p{{N}}{_SYMBOLS}"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
SEED = f"{_CONTRACTION}|{_WORD}|\\p{{N}}" + r"| ?[^\s\p{L}\p{N}\r\n]+" + _TAIL
EXAONE_MOE = (
    _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
    + r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
LINES = "text:[^\n]+|\n+"
_YOUTU_SCRIPTS = (
    "text:[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a"
    "\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f"
    "\u30a0-\u30ff]+"
)
_AFMOE_SCRIPTS = (
    "text:[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f"
    "\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-"
    "\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_NUMBER_RUN = "[0-9\xd1]+"
CHAMELEON = (
    "text:<sentinel:[0-9]+>",
    "text:IMGIMG[A-I]{1,4}Z",
    "text:[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    GPT2,
)

_KEEP = {"clean_spaces": False}
_LLAMA3 = ((LLAMA3,), {"ignore_merges": True, "add_bos": True})
_Entry = tuple[tuple[str | Step, ...], dict[str, bool]]


def _table() -> dict[str, _Entry]:
    groups: list[tuple[str, tuple[str | Step, ...], dict[str, bool]]] = [
        (
            "default",
            (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
            {},
        ),
        ("minicpm5", (r"\p{N}{1,3}", LLAMA3.replace("{1,3}", "+")), {"ignore_merges": True}),
        (
            "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
            *_LLAMA3,
        ),
        ("deepseek-llm", DEEPSEEK_LLM, _KEEP),
        ("deepseek-coder", DEEPSEEK_CODER, _KEEP),
        ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", DEEPSEEK3, _KEEP),
        ("spark2_5", SPARK, _KEEP),
        ("youtu", (_YOUTU_SCRIPTS, YOUTU), {"clean_spaces": False, "ignore_merges": True}),
        ("falcon", (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"), {}),
        ("starcoder refact codeshell exaone minerva-7b mellum2", STARCODER, {}),
        ("command-r smollm", STARCODER, _KEEP),
        (
            "mpt gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum "
            "modern-bert jina-v1-en jina-v2-code roberta-bpe olmo jais exaone4",
            (GPT2,),
            {},
        ),
        ("trillion granite-docling", (GPT2,), _KEEP),
        ("jais-2", (JAIS2,), {}),
        ("gemma4 granite-embed-multi-311m", (LINES,), {"raw_utf8": True, "add_bos": True}),
        ("sarvam-moe", (LINES,), {"raw_utf8": True, "clean_spaces": False}),
        (
            "qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan solar-open grok-2",
            (QWEN2,),
            _KEEP,
        ),
        ("megrez stablelm2", (QWEN2,), {}),
        ("qwen35", (QWEN35,), _KEEP),
        ("dbrx smaug-bpe chatglm-bpe", (LLAMA3,), {}),
        ("glm4 glm5", (LLAMA3,), {"ignore_merges": True}),
        ("poro-chat", (POEM,), _KEEP),
        ("bloom gpt3-finnish", (POEM,), {}),
        ("viking", (POEM, r"\p{N}"), _KEEP),
        (
            "tekken",
            (TEKKEN,),
            {"clean_spaces": False, "ignore_merges": True, "add_bos": True},
        ),
        ("exaone-moe", (EXAONE_MOE,), {}),
        ("chameleon", CHAMELEON, {"add_bos": True, "clean_spaces": False}),
        ("gpt-4o llama4 kanana2 talkie minimax-m2", (GPT4O,), _KEEP),
        (
            "granite-embed-multi-97m",
            (GRANITE_EMBED,),
            {"clean_spaces": False, "ignore_merges": True},
        ),
        ("tiny_aya cohere2moe", (_group_digits(_NUMBER_RUN), TINY_AYA), _KEEP),
        ("superbpe", (r"\p{N}+", _group_ascii_digits), _KEEP),
        ("bailingmoe bailingmoe2 llada-moe", (BAILING,), _KEEP),
        ("seed-coder", (SEED,), _KEEP),
        ("kimi-k2", (KIMI,), _KEEP),
        ("ufakzeka", (QWEN2.removeprefix(_CONTRACTION + "|"),), _KEEP),
        ("afmoe", (_group_digits(_NUMBER_RUN), _AFMOE_SCRIPTS, DEEPSEEK3[2]), _KEEP),
        ("laguna", (LINES, QWEN2), _KEEP),
    ]
    return {name: (steps, flags) for names, steps, flags in groups for name in names.split()}


_NAMES = _table()
SUPPORTED = frozenset(_NAMES)
