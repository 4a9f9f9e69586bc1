"""Feed damaged files to everything that reads files from strangers, and see that it only refuses.

    python scripts/fuzz_readers.py --minutes 10 [--reader gguf|ktc|receipt|prompt-state] [--seed N]

Good files are damaged at random: bits, numbers, spans, cuts, and fields of JSON; where a format
has checksums, half of the damaged files get right ones again, so that what lies behind them is
reached. A reader may take the file or raise a KineticError. Anything else is a finding: another
exception, more memory than twice the file (and a little), or a read that takes seconds. Findings
are written to golden/fuzz/<reader>/, which the tests read again.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import signal
import struct
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from blake3 import blake3

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.gguf_writer import gguf_bytes  # noqa: E402

from kinetic.errors import KineticError  # noqa: E402
from kinetic.ir.gguf_split import open_model  # noqa: E402
from kinetic.ir.ktc import HEAD, PAGE  # noqa: E402
from kinetic.receipts.canonical import canonical  # noqa: E402
from kinetic.receipts.fields import check_fields  # noqa: E402
from kinetic.receipts.files import read_receipt, receipt_text  # noqa: E402
from kinetic.receipts.seal import check_signature, sealed, token_hash  # noqa: E402
from kinetic.runtime.prompt_store import PromptStore  # noqa: E402

FOUND = ROOT / "golden" / "fuzz"
HANG = 10
"""Seconds that no small file may take."""
SLACK = 2 << 20
"""Bytes that any read may take: modules loaded late, messages."""
_MEASURED = 8
"""One file in so many is read with its memory measured, which is slow."""
_EDGES = (0, 1, 7, 8, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


class Reader(NamedTuple):
    """What reads a file, good files to begin with, and what makes a damaged one consistent."""

    read: Callable[[Path], object]
    good: list[bytes]
    mend: Callable[[bytes, random.Random], bytes]
    suffix: str


# The readers. ------------------------------------------------------------------------------


def _read_model(path: Path) -> None:
    with open_model(path) as file:
        file.identity()
        for name in list(file.tensors)[:4]:
            file.data(name)


def _read_ktc(path: Path) -> None:
    from kinetic.ktc.verify import verify_ktc

    verify_ktc(path)


def _read_receipt(path: Path) -> None:
    check_signature(read_receipt(path), "receipt")


_KEY, _PAGE_BYTES, _STATE_BYTES = b"k" * 32, 4096, 512


def _read_state(path: Path) -> None:
    """The store keeps a file under its key; a bad one is a miss and is removed."""
    store = PromptStore(path.parent)
    try:
        store.load(_KEY, _PAGE_BYTES, _STATE_BYTES)
    finally:
        store.close()


def _good_gguf() -> list[bytes]:
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "a.text": "some text",
        "a.numbers": [1, 2, 3],
        "a.texts": ["a", "b" * 40, ""],
        "a.nested": [[1, 2], [3]],
        "a.flag": True,
    }
    tensors = {
        "a.weight": ([24], 0, np.arange(24, dtype=np.float32).tobytes()),
        "b": ([2, 32], 2, bytes(36)),
    }
    return [gguf_bytes(metadata, tensors), gguf_bytes(metadata, tensors, version=2)]


def _good_ktc() -> list[bytes]:
    from nacl.signing import SigningKey

    from kinetic.ktc.write import write_ktc

    out = []
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "a.gguf", Path(folder) / "a.ktc"
        for key in (None, SigningKey(b"f" * 32)):
            source.write_bytes(_good_gguf()[0])
            write_ktc(source, target, key=key)
            out.append(target.read_bytes())
    return out


def _good_receipt() -> list[bytes]:
    from nacl.signing import SigningKey

    from kinetic.receipts.fields import RECEIPT
    from kinetic.receipts.seal import signed
    from kinetic.runtime.sampling import SamplingParams

    ids = [1, 2, 3]
    tokens = {"count": 3, "blake3": token_hash(ids), "ids": ids}
    file = {"file": "a.gguf", "path": "a.gguf", "size": 9, "blake3": "0" * 64}
    plain = SamplingParams(seed=7)
    fields = RECEIPT["sampling"]
    assert isinstance(fields, dict)
    names = [name for name in fields if hasattr(plain, name)]
    sampling = {name: getattr(plain, name) for name in names} | {"logit_bias": {"3": "-inf"}}
    style = {"opener": "<t>", "closer": "</t>", "turn": "", "answer": "", "open": True}
    sampling |= {
        "choice": 0,
        "max_tokens": None,
        "stop": ["x"],
        "ignore_eos": False,
        "shown": [4],
        "constraint": {"kind": "grammar", "text": 'root ::= "a"', "reasoning": style},
    }
    settings = {"ctx-size": 64, "kv-type": "f16", "lora": [{**file, "scale": 1.0}]}
    record = {
        "receipt": 1,
        "kinetic": {"version": "0.1.0", "build": "0" * 16},
        "arithmetic": "kinetic-arith-1",
        "graph": "0" * 64,
        "model": file,
        "device": {"class": "cpu", "name": "the CPU", "settings": settings},
        "input": [{"role": "user", "content": "hi"}],
        "prompt": tokens,
        "sampling": sampling,
        "output": {"finish": "end", "text": "a", "tokens": tokens},
    }
    whole = sealed(record)  # type: ignore[arg-type]
    check_fields(whole, "the fuzzer's receipt")
    return [
        receipt_text(whole).encode(),
        canonical(signed(whole, SigningKey(b"f" * 32))),
    ]


def _good_state() -> list[bytes]:
    from kinetic.runtime import prompt_store

    out = []
    for state in (0, _STATE_BYTES):
        content = np.arange(_PAGE_BYTES + state, dtype=np.uint32).astype(np.uint8)
        head = prompt_store._head(_KEY, content, (_PAGE_BYTES, state))
        out.append(head + content.tobytes())
    return out


def _as_is(raw: bytes, rng: random.Random) -> bytes:
    return raw


def _mend_ktc(raw: bytes, rng: random.Random) -> bytes:
    """Right hashes of the head and, half of the time, of the manifest and the metadata."""
    if len(raw) < HEAD.size:
        return raw
    fields = list(HEAD.unpack_from(raw))
    if rng.random() < 0.5:
        fields[0], fields[1], fields[3] = b"KTC1", 1, len(raw)
        end = HEAD.size + min(fields[2], len(raw))
        fields[4] = blake3(raw[HEAD.size : end]).digest()
        try:
            manifest = json.loads(raw[HEAD.size : end])
            start = -(-end // PAGE) * PAGE
            first = manifest["sections"][0]
            first["blake3"] = blake3(raw[start : start + first["bytes"]]).hexdigest()
            new = json.dumps(manifest, separators=(",", ":")).encode()
            if len(new) == end - HEAD.size:
                raw = raw[: HEAD.size] + new + raw[end:]
                fields[4] = blake3(new).digest()
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            pass
    before = HEAD.pack(*fields)[:-32]
    return before + blake3(before).digest() + raw[HEAD.size :]


def _mend_receipt(raw: bytes, rng: random.Random) -> bytes:
    """One field made into anything, and the seal made anew."""
    try:
        record = json.loads(raw)
        holder = record
        for _ in range(rng.randrange(4)):
            inner = [v for v in holder.values() if isinstance(v, dict)]
            holder = rng.choice(inner) if inner else holder
        holder[rng.choice(list(holder))] = rng.choice(
            [None, True, -1, 2**64, 1e308, "", "\ud800", [], {}, [[]], {"": 0}, [2**31], "-inf"]
        )
        signature = record.pop("signature", None)
        whole = sealed({k: v for k, v in record.items() if k != "seal"})
        if signature is not None:
            whole["signature"] = signature
        return json.dumps(whole).encode()
    except (ValueError, AttributeError, IndexError, RecursionError, OverflowError):
        return raw


def _mend_state(raw: bytes, rng: random.Random) -> bytes:
    """A right checksum over whatever sizes the file now has."""
    from kinetic.runtime import prompt_store

    at = prompt_store._HEAD.size
    if len(raw) < at:
        return raw
    content = np.frombuffer(raw[at:], np.uint8)
    sizes = struct.unpack_from("<QQ", raw, 8)
    if rng.random() < 0.5:
        sizes = (_PAGE_BYTES, max(0, len(content) - _PAGE_BYTES))
    return prompt_store._head(_KEY, content, sizes) + content.tobytes()


def readers() -> dict[str, Reader]:
    """Every reader of files from strangers."""
    return {
        "gguf": Reader(_read_model, _good_gguf(), _as_is, ".gguf"),
        "ktc": Reader(_read_ktc, _good_ktc(), _mend_ktc, ".ktc"),
        "receipt": Reader(_read_receipt, _good_receipt(), _mend_receipt, ".json"),
        "prompt-state": Reader(_read_state, _good_state(), _mend_state, ".warm"),
    }


# Damage. -----------------------------------------------------------------------------------


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """A file with some damage, mostly near its beginning, where the structure is."""
    out = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        size = len(out)
        if size < 16:
            return bytes(out)
        at = rng.randrange(size if rng.random() < 0.4 else min(size, 600))
        span = min(rng.choice((1, 2, 4, 8, 40)), size - at)
        kind = rng.randrange(8)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.randrange(256)
        elif kind == 2 and at + 8 <= size:
            struct.pack_into("<Q", out, at, rng.choice(_EDGES))
        elif kind == 3 and at + 4 <= size:
            struct.pack_into("<I", out, at, rng.choice(_EDGES) & 0xFFFFFFFF)
        elif kind == 4:
            del out[at : at + span]
        elif kind == 5:
            out[at:at] = out[at : at + span] * rng.choice((1, 2, 30))
        elif kind == 6:
            out[at:at] = rng.randbytes(span)
        elif kind == 7 and rng.random() < 0.3:
            del out[at:]
    return bytes(out)


class Hang(BaseException):
    """A read took too long."""


def _too_long(*_: object) -> None:
    raise Hang


def judge(reader: Reader, path: Path, *, measure: bool) -> str | None:
    """Read a file; what is wrong with how that went, or None."""
    size = path.stat().st_size
    if measure:
        tracemalloc.start()
    if hasattr(signal, "SIGALRM"):
        signal.alarm(HANG)
    try:
        reader.read(path)
    except KineticError:
        pass
    except Hang:
        return f"it took more than {HANG} seconds"
    except Exception:
        return traceback.format_exc()
    finally:
        if hasattr(signal, "SIGALRM"):
            signal.alarm(0)
        peak = tracemalloc.get_traced_memory()[1] if measure else 0
        tracemalloc.stop()
    if peak > 2 * size + SLACK:
        return f"it took {peak} bytes of memory for a file of {size}"
    return None


def fuzz(name: str, reader: Reader, seconds: float, seed: int, keep: Path | None) -> int:
    """Damage and read until the time is over; the number of findings."""
    rng, end = random.Random(seed), time.monotonic() + seconds
    seen: set[str] = set()
    count = 0
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _too_long)
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        # The name under which a store would keep it; others do not care.
        path = where / (_KEY.hex() + reader.suffix)
        if name == "prompt-state":
            store = PromptStore(where)
            path = store._path(_KEY)
            store.close()
        for raw in reader.good:  # the modules it needs are loaded, and good files are taken
            path.write_bytes(raw)
            reader.read(path)
        while time.monotonic() < end:
            raw = damaged(rng.choice(reader.good), rng)
            if rng.random() < 0.5:
                raw = reader.mend(raw, rng)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(raw)
            count += 1
            wrong = judge(reader, path, measure=count % _MEASURED == 0)
            if wrong is None:
                continue
            key = "memory" if "of memory" in wrong else wrong.strip().splitlines()[-1][:60]
            if key in seen:
                continue
            seen.add(key)
            print(f"{name}: a file of {len(raw)} bytes: {wrong}", file=sys.stderr)
            if keep is not None:
                (keep / name).mkdir(parents=True, exist_ok=True)
                (keep / name / f"{blake3(raw).hexdigest()[:16]}{reader.suffix}").write_bytes(raw)
    print(f"{name}: {count} files, {len(seen)} findings")
    return len(seen)


def main() -> int:
    """Fuzz what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known = readers()
    parser.add_argument("--minutes", type=float, default=1.0, help="for each reader")
    parser.add_argument("--reader", choices=known, action="append")
    parser.add_argument("--seed", type=int, default=None, help="default: a fresh one")
    options = parser.parse_args()
    faulthandler.enable()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}")
    chosen = options.reader or list(known)
    found = [fuzz(n, known[n], 60 * options.minutes, seed, FOUND) for n in chosen]
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main())
