"""Warm Start: what earlier prompts left in the cache, for those that begin the same.

A tree of pages. A node is a page of 64 tokens after its parent's, held by a reference count of
its own, so a later sequence starts with the very pages that an earlier one computed: nothing is
copied but a page that is shared in part. By the contract a page's words depend on its tokens
alone, however they were cut into steps, so a warm answer is the cold one.

Recurrent layers cannot be cut back to a page's end. Their state is recorded every 256 tokens
and a sequence starts where the last recorded one is.

Trees of different salts know nothing of each other. Nodes unused for longest go first: when the
tree outgrows its bytes, and when a request needs their pages.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt

from kinetic.errors import ContextError
from kinetic.ir.cpu_abi import PAGE
from kinetic.runtime.engine import Engine
from kinetic.runtime.memory import page_bytes
from kinetic.runtime.prompt_store import PromptStore, chain_key
from kinetic.runtime.sequence import Sequence

MEMORY_LIMIT = 1 << 30
"""Bytes of pages and states that are kept."""
ARITHMETIC = "kinetic-arith-1"
"""The version of docs/arithmetic.md: with another one, the same tokens leave other words."""
SNAPSHOT = 256
"""Tokens from one recorded state to the next, or a multiple where states are large."""
_SNAPSHOTS = 32
"""States that the limit should have room for."""

State = npt.NDArray[np.uint8]
_NO_STATE: State = np.zeros(0, np.uint8)


class _Node:
    """A page of a text. The root of a salt has none."""

    def __init__(self, parent: _Node | None, tokens: tuple[int, ...], page: int, key: bytes):
        self.parent, self.tokens, self.page, self.key = parent, tokens, page, key
        self.children: dict[tuple[int, ...], _Node] = {}
        self.state = _NO_STATE
        self.stored = False
        """Whether the disk has it, or is about to."""


class PromptCache:
    """Prompt states in memory, and on disk where there is a store.

    `identity` is all that the words of a page depend on besides tokens and salt; `limit` bounds
    the memory, in bytes.
    """

    def __init__(
        self,
        engine: Engine,
        limit: int = MEMORY_LIMIT,
        store: PromptStore | None = None,
        identity: str = "",
    ):
        self.engine, self.limit, self.store = engine, limit, store
        self._identity = identity.encode()
        self._page_bytes = page_bytes(engine.device.program)
        self._roots: dict[str, _Node] = {}
        self._recent: OrderedDict[_Node, None] = OrderedDict()
        self._unsaved: deque[_Node] = deque()
        self._floor: _Node | None = None
        """The oldest node that must stay for now: it and its ancestors are being used."""
        self.nbytes = 0
        self.interval = SNAPSHOT * max(
            1, _SNAPSHOTS * engine.device.program.slot_bytes // max(1, limit)
        )
        """Tokens from one recorded state to the next."""
        engine.pages.reclaim = self._give_up

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def spare_pages(self) -> int:
        """Pages that nobody else holds."""
        return sum(self.engine.pages.holders(node.page) == 1 for node in self._recent)

    # -- using ---------------------------------------------------------------------------
    def restore(self, sequence: Sequence, tokens: Items[int], salt: str) -> None:
        """Begin an empty sequence with as much of `tokens` as is known, all but the last one:
        its outputs are not kept."""
        most = len(tokens) - 1
        try:
            path = self._walk(self._root(salt), tokens, most)
            while self.engine.states is not None and path and not len(path[-1].state):
                path.pop()
            sequence.adopt([node.page for node in path], tokens[: len(path) * PAGE])
        finally:
            self._floor = None
        if self.engine.states is None:
            self._share_part(sequence, path[-1] if path else self._root(salt), tokens[:most])
        elif path:
            self._restore_state(sequence, path[-1].state)
        if self.store is not None:
            self.store.touch([node.key for node in reversed(path)])
        self._fit()

    def _walk(self, root: _Node, tokens: Items[int], most: int) -> list[_Node]:
        """The nodes of the longest known beginning, from memory and then from disk."""
        parts = [tuple(tokens[i : i + PAGE]) for i in range(0, most - most % PAGE, PAGE)]
        node, path = root, list[_Node]()
        while len(path) < len(parts) and (child := node.children.get(parts[len(path)])):
            path.append(child)
            node = child
        self._touch(path)
        while len(path) < len(parts):
            self._floor = path[-1] if path else None
            loaded = self._load(node, parts[len(path)])
            if loaded is None:
                break
            path.append(loaded)
            node = loaded
        return path

    def _load(self, parent: _Node, part: tuple[int, ...]) -> _Node | None:
        """A node from the disk."""
        if self.store is None:
            return None
        device, key = self.engine.device, _key(parent, part)
        found = self.store.load(key, self._page_bytes, device.program.slot_bytes)
        if found is None:
            return None
        try:
            page = self.engine.pages.take()
        except ContextError:
            return None
        device.write_page(page, found[0])
        node = self._add(parent, part, page, found[1])
        node.stored = True
        return node

    def _restore_state(self, sequence: Sequence, state: State) -> None:
        assert self.engine.states is not None
        try:
            sequence.slot = self.engine.states.take()
        except ContextError:
            sequence.forget(0)
            return
        self.engine.device.write_state(sequence.slot, state)

    def _share_part(self, sequence: Sequence, node: _Node, tokens: Items[int]) -> None:
        """Copy the page that begins like what comes next, and take of it what is the same."""
        rest = tuple(tokens[len(sequence) : len(sequence) + PAGE])
        best, most = None, 0
        for child in node.children.values():
            common = _common(child.tokens, rest)
            if common > most:
                best, most = child, common
        if best is None:
            return
        pool = self.engine.pages
        pool.share(best.page)  # or it might be given up to make room for its own copy
        try:
            sequence.extend(rest[:most])
            self.engine.device.copy_page(best.page, sequence.pages[-1])
        except ContextError:
            pass
        finally:
            pool.drop(best.page)
        if best in self._recent:
            self._touch([*self._ancestors(best), best])

    # -- filling -------------------------------------------------------------------------
    def keep(
        self,
        sequence: Sequence,
        salt: str,
        states: Mapping[int, State] | None = None,
        *,
        whole_pages: bool = False,
    ) -> None:
        """Remember a sequence's pages, and its states by number of tokens.

        A sequence that will go on gives whole pages only, since it still writes the last one.
        """
        node, path, states = self._root(salt), list[_Node](), states or {}
        recurrent = self.engine.states is not None
        for i, page in enumerate(sequence.pages):
            part = tuple(sequence.tokens[i * PAGE : (i + 1) * PAGE])
            if len(part) < PAGE and (whole_pages or recurrent):
                break
            child = node.children.get(part)
            if child is None:
                if any(_common(other, part) == len(part) for other in node.children):
                    break  # a part of a page that is known to its end
                for other in [c for t, c in node.children.items() if t == part[: len(t)]]:
                    self._drop(other)
                self.engine.pages.share(page)
                child = self._add(node, part, page, states.get((i + 1) * PAGE, _NO_STATE))
            elif not len(child.state) and (i + 1) * PAGE in states:
                child.state = states[(i + 1) * PAGE]
                self.nbytes += len(child.state)
            if len(part) == PAGE and not child.stored and self.store is not None:
                child.stored = True
                self._unsaved.append(child)
            path.append(child)
            node = child
        self._touch(path)
        self._fit()

    def _add(self, parent: _Node, part: tuple[int, ...], page: int, state: State) -> _Node:
        key = b"" if self.store is None else _key(parent, part)
        node = _Node(parent, part, page, key)
        node.state = state
        parent.children[part] = node
        self._recent[node] = None
        # A child is never younger than its parent, so the oldest node has no children.
        self._touch([*self._ancestors(node), node])
        self.nbytes += self._page_bytes + len(state)
        return node

    def save_some(self, count: int = 4) -> bool:
        """Hand a few pages over to be written; whether more are left. Called between steps, so
        that copying them holds nobody up."""
        while self.store is not None and self._unsaved and count > 0:
            if not self.store.has_room():
                return False
            node = self._unsaved.popleft()
            if node in self._recent:
                self.store.save(node.key, self.engine.device.read_page(node.page), node.state)
                count -= 1
                if not self._unsaved:  # nothing is used longer ago than what follows it
                    self.store.touch([n.key for n in reversed(self._ancestors(node))])
        return bool(self._unsaved) and self.store is not None

    def close(self) -> None:
        """Write what is to be kept, and let go of all pages."""
        if self.store is not None:
            while self.save_some() or self._unsaved:
                time.sleep(0 if self.store.has_room() else 0.005)
            self.store.close()
        while self._recent:
            self._drop(next(iter(self._recent)))
        self.engine.pages.reclaim = None

    # -- forgetting ----------------------------------------------------------------------
    def _fit(self) -> None:
        while self.nbytes > self.limit and self._recent:
            self._drop(next(iter(self._recent)))

    def _give_up(self, count: int) -> None:
        """Make so many more pages available, if that is possible."""
        wanted = self.engine.pages.available + count
        while self._recent and self.engine.pages.available < wanted:
            oldest = next(iter(self._recent))
            if oldest is self._floor:
                break
            self._drop(oldest)

    def _drop(self, node: _Node) -> None:
        assert node.parent is not None and not node.children
        del self._recent[node]
        del node.parent.children[node.tokens]
        self.nbytes -= self._page_bytes + len(node.state)
        self.engine.pages.drop(node.page)

    def _touch(self, path: Items[_Node]) -> None:
        """Note that the nodes, from the root on, have been used."""
        for node in reversed(path):
            self._recent.move_to_end(node)

    def _root(self, salt: str) -> _Node:
        if salt not in self._roots:
            empty = [s for s, root in self._roots.items() if not root.children]
            for s in empty:  # salts may be many; those that left nothing are forgotten
                del self._roots[s]
            key = chain_key(b"", self._identity, salt.encode())
            self._roots[salt] = _Node(None, (), -1, key)
        return self._roots[salt]

    @staticmethod
    def _ancestors(node: _Node) -> list[_Node]:
        """The nodes above, from the top on, without the root."""
        found, above = list[_Node](), node.parent
        while above is not None and above.parent is not None:
            found.append(above)
            above = above.parent
        return found[::-1]


def _key(parent: _Node, part: tuple[int, ...]) -> bytes:
    return chain_key(parent.key, np.array(part, "<i4").tobytes())


def _common(a: Items[int], b: Items[int]) -> int:
    """How many tokens the two begin with alike."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
