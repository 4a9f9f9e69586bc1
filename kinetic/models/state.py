"""How far a download is, kept beside it so that a kill at any byte loses next to nothing.

    model.gguf.part         the bytes, each where it belongs; holes where nothing arrived yet
    model.gguf.part.json    this: what is fetched, from where, and how much of every piece

The state is written after the bytes it speaks of, to a new file that then takes the old one's
place: a reader finds the old state or the new one, never half of one.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

_SMALLEST_PIECE, _LARGEST_PIECE = 1 << 20, 8 << 20
_SUFFIX = ".json"
_MAX_BYTES = 64 << 20


@dataclass
class State:
    """One file's download.

    *Units*: `size` and `piece` are bytes, `arrived[i]` is the bytes of piece i.
    """

    repo: str
    revision: str
    file: str
    asked: str
    """What to give `kinetic pull` to go on."""
    size: int
    sha256: str
    piece: int
    """Bytes fetched by one request."""
    etag: str = ""
    arrived: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.arrived:
            self.arrived = [0] * self.n_pieces

    @property
    def n_pieces(self) -> int:
        """How many pieces the file has."""
        return -(-self.size // self.piece)

    def length(self, index: int) -> int:
        """Bytes of a piece; the last may be short."""
        return min(self.piece, self.size - index * self.piece)

    @property
    def done_bytes(self) -> int:
        """Bytes that arrived."""
        return sum(self.arrived)

    @property
    def percent(self) -> int:
        """How much arrived; 100 only when everything did."""
        return 100 * self.done_bytes // self.size if self.size else 100

    def missing(self) -> list[int]:
        """Pieces that are not whole."""
        return [i for i in range(self.n_pieces) if self.arrived[i] < self.length(i)]

    def start_again(self) -> None:
        """Forget everything that arrived."""
        self.arrived = [0] * self.n_pieces
        self.etag = ""

    def is_of(self, other: State) -> bool:
        """Whether both fetch the same bytes, whatever revision names them."""
        if (self.repo, self.file, self.size) != (other.repo, other.file, other.size):
            return False
        if self.sha256 or other.sha256:
            return self.sha256 == other.sha256
        return self.revision == other.revision

    @staticmethod
    def path_for(part: Path) -> Path:
        """Where the state of a `.part` file is kept."""
        return part.with_name(part.name + _SUFFIX)

    def write(self, part: Path) -> None:
        """Keep the state, replacing the one before it in one step."""
        target = self.path_for(part)
        new = target.with_name(target.name + ".new")
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(new, target)


def piece_for(size: int) -> int:
    """Pieces of a file: enough for all connections to have work to the end, none tiny."""
    return min(max(size // 64, _SMALLEST_PIECE), _LARGEST_PIECE)


def read_state(part: Path) -> State | None:
    """The state of a `.part` file, None where there is none that makes sense."""
    path = State.path_for(part)
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        read = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return _checked(read)


def _checked(read: object) -> State | None:
    kinds: dict[str, type] = {
        **dict.fromkeys(("repo", "revision", "file", "asked", "sha256", "etag"), str),
        **dict.fromkeys(("size", "piece"), int),
        "arrived": list,
    }
    if not isinstance(read, dict) or read.keys() != kinds.keys():
        return None
    if any(type(read[key]) is not kind for key, kind in kinds.items()):
        return None
    size, piece, arrived = read["size"], read["piece"], read["arrived"]
    if size < 1 or piece < 1 or len(arrived) != -(-size // piece):
        return None
    state = State(**read)
    if any(type(n) is not int for n in arrived):
        return None
    if any(not 0 <= n <= state.length(i) for i, n in enumerate(arrived)):
        return None
    return state
