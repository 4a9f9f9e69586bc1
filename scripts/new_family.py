#!/usr/bin/env python3
"""What a GGUF file of an unknown architecture holds, and a starter of its family file.

    .venv/bin/python scripts/new_family.py model.gguf          # print what it holds, the starter
    .venv/bin/python scripts/new_family.py model.gguf --write  # write families/NAME.py, register it

The starter is Llama with the norms, biases and matrices that the file's names show, so it may
already load. What it cannot see, such as scales, rope pairs or the order of norms, is for the
reference code to say; the page docs/add-a-family.md goes on from there.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from _setup import ROOT

STARTER = '''"""{arch}: say which models these are, what differs from Llama, and the paper or code.
"""

from __future__ import annotations

from math import sqrt

from kinetic.families.common import (
{imports})
from kinetic.families.config import Config{experts_import}
from kinetic.ir.build import Builder
from kinetic.ir.gguf import GGUFFile
from kinetic.ir.graph import Graph


def build(file: GGUFFile) -> Graph:
    """The graph of a {arch} file.

    Raises: ModelFileError, UnsupportedError.
    """
    b, cfg = Builder(file), Config.read(file, rope_kind="neox")  # or "norm": see the reference
{experts}
    caches = {{}}
    x, table = embedding(b, cfg)  # [T, D]
    for i in range(cfg.n_layers):
        with b.scope(f"blk.{{i}}"):
            caches[f"blk.{{i}}"] = cfg.cache()
{layer}
    return finish(b, cfg, logits(b, x, table, cfg), caches)
'''


def starter(arch: str, names: set[str]) -> str:
    """The text of a family file, from the names of the first layer's tensors."""

    def has(name: str) -> bool:
        return f"{name}.weight" in names

    def normed(value: str, name: str) -> str:
        return f'norm(b, {value}, "{name}", cfg)' if has(name) else value

    mixed = has("ffn_gate_inp")
    lines = [
        f"h = {normed('x', 'attn_norm')}",
        "q, k, v = qkv(b, h, cfg)  # [T, H, Dh], [T, Hkv, Dh], [T, Hkv, Dv]",
    ]
    for part in "qk":
        if has(f"attn_{part}_norm"):
            lines.append(f'{part} = norm(b, {part}, "attn_{part}_norm", cfg, cfg.head_dim)')
    lines += [f'{p} = b.rope({p}, None, "{p}_rope", **cfg.rope.attrs())' for p in "qk"]
    lines.append('a = b.attention(q, k, v, scale=1 / sqrt(cfg.head_dim), cache=f"blk.{i}")')
    # Without a norm before the feed-forward, one called "post attention" stands there.
    after = "post_attention_norm" if has("ffn_norm") or not has("attn_norm") else ""
    lines.append(f"y = {normed('attention_out(b, a, cfg)', after)}")
    lines.append('x = b.add(x, y, "attn_residual")')
    before = "ffn_norm" if has("ffn_norm") or after else "post_attention_norm"
    lines.append(f"h = {normed('x', before)}")
    fused = "" if has("ffn_gate") or mixed else ", fused=True"
    block = "moe(b, h, cfg, experts)" if mixed else f"gated_ffn(b, h, cfg{fused})"
    lines.append(f"y = {normed(block, 'post_ffw_norm')}")
    lines.append('x = b.add(x, y, "ffn_residual")')
    blocks = ["attention_out", "embedding", "finish", "logits", "norm", "qkv"]
    blocks.append("moe" if mixed else "gated_ffn")
    return STARTER.format(
        arch=arch,
        imports="".join(f"    {name},\n" for name in sorted(blocks)),
        experts_import=", Experts" if mixed else "",
        experts="    experts = Experts.read(cfg.h, cfg.n_ff)\n" if mixed else "",
        layer="\n".join(" " * 12 + line for line in lines),
    )


def register(arch: str, module: str) -> None:
    """Put the architecture at the end of `SUPPORTED`."""
    path = ROOT / "families" / "__init__.py"
    text = path.read_text(encoding="utf-8")
    end = text.index("\n}\n", text.index("SUPPORTED: dict"))
    line = f'\n    "{arch}": "kinetic.families.{module}",'
    path.write_text(text[:end] + line + text[end:], encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true", help="write the family file, register it")
    options = parser.parse_args(argv)

    from kinetic.families import SUPPORTED
    from kinetic.ir.gguf import GGUFFile

    with GGUFFile.open(options.file) as file:
        arch = file.architecture
        print(f"architecture {arch}" + (", which is supported" if arch in SUPPORTED else ""))
        for key, value in file.metadata.items():
            if key.startswith(f"{arch}."):
                print(f"  {key} = {str(value)[:60]}")
        first: set[str] = set()
        for name, info in file.tensors.items():
            if found := re.fullmatch(r"blk\.(\d+)\.(.*)", name):
                if found[2] in first:
                    continue
                first.add(found[2])
            print(f"  {name:40} {list(info.shape)} {info.type_name}")
        text = starter(arch, first)
    module = re.sub(r"\W", "_", arch)
    path = ROOT / "families" / f"{module}.py"
    if not options.write:
        print(f"\n# {path.relative_to(ROOT)}\n{text}")
    elif path.exists() or arch in SUPPORTED:
        print(f"\n{path.relative_to(ROOT)} or its line in SUPPORTED is there already; not written")
        return 1
    else:
        path.write_text(text, encoding="utf-8")
        register(arch, module)
        print(
            f"\nwrote {path.relative_to(ROOT)}; try `kinetic info` and `kinetic show` on the file"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
