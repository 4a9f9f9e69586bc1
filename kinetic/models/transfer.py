"""One file over several connections, each fetching ranges of it.

Every answer is checked against what was asked: its range, the file's whole size, its ETag, the
number of bytes. What breaks goes on from the byte where it broke. A server without ranges is
read from the start to the end in one go.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from hashlib import sha1, sha256
from pathlib import Path
from typing import BinaryIO, Protocol

import httpx2

from kinetic.errors import KineticError, NetworkError
from kinetic.models.hub import Hub, refusal, retry_after, unreachable, web_page
from kinetic.models.state import State

CONNECTIONS = 8
Progress = Callable[[str, int, int], None]
"""`progress(what, done, total)`, in bytes."""

_RETRIES = 6
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_EXPIRED = (401, 403, 404, 410)
_LONGEST_WAIT = 60.0
_SAVE_EVERY = 1.0
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_READ = 8 << 20


class Hash(Protocol):
    """What hashlib's digests have in common."""

    def update(self, data: bytes, /) -> None:
        """Take more bytes."""

    def hexdigest(self) -> str:
        """The digest of all bytes so far."""


class _Changed(Exception):
    """The file on the server is not the one that the first pieces came from."""


class _NoRanges(Exception):
    """The server answers every request with the whole file."""


class Transfer:
    """The download of one file into its `.part` file.

    `pause` is the first wait after a failure, in seconds; it doubles with each one after it.
    """

    def __init__(
        self,
        hub: Hub,
        url: str,
        state: State,
        part: Path,
        progress: Progress,
        *,
        connections: int = CONNECTIONS,
        pause: float = 1.0,
    ) -> None:
        self._hub, self._url, self._state, self._part = hub, url, state, part
        self._progress, self._connections, self._pause = progress, connections, pause
        self._direct: str | None = None  # where the hub sends us; may expire
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._doubtful: set[int] = set(range(state.n_pieces)) - set(state.missing())
        self._saved = 0.0

    def run(self) -> None:
        """Fetch what is missing.

        *Raises*: NetworkError where the server refuses, lies or stays away; what arrived is
        kept then, as it is on Ctrl-C.
        """
        self._part.touch()
        with self._part.open("r+b") as file:
            file.truncate(self._state.size)
        try:
            for _ in range(3):
                try:
                    self._in_pieces(self._state.missing(), self._piece)
                    return
                except _Changed:
                    self._state.start_again()
                    self._direct = None
                except _NoRanges:
                    self._in_one_go()
                    return
            raise NetworkError(
                f"{self._state.file} changes on {self._hub.host} while it is downloaded; "
                "try again later."
            )
        finally:
            self._state.write(self._part)

    def repair(self, right: Callable[[], bool]) -> bool:
        """Fetch pieces again and replace those that differ, until `right` says so.

        The hub publishes one hash of the whole file, which does not tell where it is wrong.
        Pieces of an earlier run and pieces that needed several tries come first.
        """
        first = sorted(self._doubtful)
        rest = [i for i in range(self._state.n_pieces) if i not in self._doubtful]
        order = first + rest
        for at in range(0, len(order), self._connections):
            changed: list[int] = []
            batch = order[at : at + self._connections]
            try:
                self._in_pieces(batch, partial(self._compare, changed))
            except (_NoRanges, _Changed):
                self._state.start_again()
                self.run()
                return right()
            if changed and right():
                return True
        return False

    # Threads. --------------------------------------------------------------------------

    def _in_pieces(self, pieces: list[int], work: Callable[[int, BinaryIO], None]) -> None:
        """Run `work` for every piece on as many threads as there are connections."""
        queue = deque(pieces)
        self._stop.clear()
        self._error = None
        threads = [
            # Daemons: one that waits for a silent server must not hold up Ctrl-C.
            threading.Thread(target=self._worker, args=(queue, work), daemon=True)
            for _ in range(min(self._connections, len(pieces)))
        ]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                self._tick()
                if isinstance(self._error, KineticError):
                    break  # it ends the command; threads that wait for a server need not be met
                for thread in threads:
                    thread.join(0.1 / len(threads))
        finally:
            self._stop.set()
        self._tick()
        if self._error is not None:
            raise self._error

    def _worker(self, queue: deque[int], work: Callable[[int, BinaryIO], None]) -> None:
        try:
            # Unbuffered: the state must not speak of bytes that a kill would lose.
            with open(self._part, "r+b", buffering=0) as file:
                while not self._stop.is_set():
                    try:
                        index = queue.popleft()
                    except IndexError:
                        return
                    work(index, file)
        except BaseException as error:
            if self._error is None:
                self._error = error
            self._stop.set()

    def _tick(self) -> None:
        self._progress("download", self._state.done_bytes, self._state.size)
        now = time.monotonic()
        if now - self._saved >= _SAVE_EVERY:
            self._saved = now
            self._state.write(self._part)

    # Pieces. ---------------------------------------------------------------------------

    def _piece(self, index: int, file: BinaryIO) -> None:
        """Fetch one piece, from where it broke off if it does."""
        state, failures = self._state, 0
        while state.arrived[index] < state.length(index) and not self._stop.is_set():
            before = state.arrived[index]
            try:
                self._fetch(index, file)
                continue
            except httpx2.HTTPError as error:
                problem = unreachable(error, self._hub)
                wait = None
            except _Busy as busy:
                problem, wait = busy.problem, busy.wait
            self._doubtful.add(index)
            failures = 1 if state.arrived[index] > before else failures + 1
            if failures > _RETRIES:
                raise problem
            seconds = self._pause * 2 ** (failures - 1) if wait is None else wait
            self._stop.wait(min(seconds, _LONGEST_WAIT))

    def _fetch(self, index: int, file: BinaryIO) -> None:
        state = self._state
        start = index * state.piece + state.arrived[index]
        end = index * state.piece + state.length(index)
        with self._ask(start, end) as response:
            file.seek(start)
            for block in response.iter_raw():
                if self._stop.is_set():
                    return
                block = block[: end - start]
                file.write(block)
                start += len(block)
                state.arrived[index] += len(block)
                if start == end:
                    return

    def _compare(self, changed: list[int], index: int, file: BinaryIO) -> None:
        """Fetch a piece again; where it differs from what is there, take the new one."""
        state = self._state
        start, length = index * state.piece, state.length(index)
        file.seek(start)
        old = file.read(length)
        state.arrived[index] = 0
        self._piece(index, file)
        file.seek(start)
        if file.read(length) != old:
            changed.append(index)

    def _ask(self, start: int, end: int) -> _Answer:
        """Ask for a range of bytes and check that the answer is about that range."""
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        if self._state.etag:
            headers["If-Range"] = self._state.etag
        direct = self._direct
        if direct is None:
            headers |= self._hub.authorization
        answer = _Answer(self._hub.client, direct or self._url, headers)
        try:
            self._check(answer.response, start, direct)
        except BaseException:
            answer.close()
            raise
        return answer

    def _check(self, response: httpx2.Response, start: int, direct: str | None) -> None:
        state, status = self._state, response.status_code
        if status == 200:
            _refuse_page(response, self._hub.host)
            etag = _strong(response)
            if state.etag and etag and etag != state.etag:
                raise _Changed
            raise _NoRanges
        if status != 206:
            raise self._not_the_file(response, direct)
        told = _RANGE.fullmatch(response.headers.get("content-range", ""))
        if told is None or int(told[1]) != start:
            raise _Busy(
                NetworkError(
                    f"{self._hub.host} sends another range of {state.file} than was asked for; "
                    "repeat the command later."
                )
            )
        if told[3] != "*" and int(told[3]) != state.size:
            raise NetworkError(
                f"{self._hub.host} lists {state.file} with {state.size} bytes and serves "
                f"{told[3]}; repeat the command later."
            )
        etag = _strong(response)
        if state.etag and etag and etag != state.etag:
            raise _Changed
        state.etag = state.etag or etag
        if response.history:
            self._direct = str(response.url)

    def _not_the_file(self, response: httpx2.Response, direct: str | None) -> Exception:
        """What an error status means here."""
        status = response.status_code
        if status in _EXPIRED and (direct is not None or response.history):
            # The address that the hub gave out has expired; it gives out another one.
            self._direct = None
            return _Busy(refusal(response, self._state.repo, self._hub), 0)
        if status in _BUSY:
            problem = refusal(response, self._state.repo, self._hub)
            return _Busy(problem, retry_after(response))
        return refusal(response, self._state.repo, self._hub)

    # A server without ranges. ----------------------------------------------------------

    def _in_one_go(self) -> None:
        """Read the whole file from the start, as often as it breaks."""
        for attempt in range(_RETRIES):
            self._state.start_again()
            try:
                self._in_pieces([0], self._stream_all)
            except httpx2.HTTPError as error:
                problem = unreachable(error, self._hub)
                wait = None
            except _Busy as busy:
                problem, wait = busy.problem, busy.wait
            else:
                if not self._state.missing():
                    return
                problem, wait = self._short(), None
            time.sleep(min(self._pause * 2**attempt if wait is None else wait, _LONGEST_WAIT))
        raise problem

    def _stream_all(self, _: int, file: BinaryIO) -> None:
        state, at = self._state, 0
        headers = {"Accept-Encoding": "identity", **self._hub.authorization}
        with _Answer(self._hub.client, self._url, headers) as response:
            if response.status_code != 200:
                raise self._not_the_file(response, None)
            _refuse_page(response, self._hub.host)
            file.seek(0)
            for block in response.iter_raw():
                if self._stop.is_set():
                    return
                if at + len(block) > state.size:
                    raise NetworkError(
                        f"{self._hub.host} lists {state.file} with {state.size} bytes and serves "
                        "more; repeat the command later."
                    )
                file.write(block)
                at += len(block)
                self._count(at)

    def _count(self, at: int) -> None:
        """Note that the first `at` bytes of the file are there."""
        state = self._state
        index = (at - 1) // state.piece
        state.arrived[index] = at - index * state.piece
        for i in range(index - 1, -1, -1):
            if state.arrived[i] == state.length(i):
                break
            state.arrived[i] = state.length(i)

    def _short(self) -> NetworkError:
        state = self._state
        return NetworkError(
            f"{self._hub.host} ends {state.file} after {state.done_bytes} of {state.size} bytes; "
            "repeat the command later."
        )


class _Busy(Exception):
    """An answer that is worth asking again for, after `wait` seconds if the server names it."""

    def __init__(self, problem: NetworkError, wait: float | None = None) -> None:
        super().__init__(str(problem))
        self.problem, self.wait = problem, wait


class _Answer:
    """A response whose body is still to be read, closed at the end of a `with`."""

    def __init__(self, client: httpx2.Client, url: str, headers: dict[str, str]) -> None:
        self._stream = client.stream("GET", url, headers=headers)
        self.response = self._stream.__enter__()

    def __enter__(self) -> httpx2.Response:
        return self.response

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back."""
        self._stream.__exit__(None, None, None)


def _refuse_page(response: httpx2.Response, host: str) -> None:
    """*Raises*: NetworkError for a page or nothing at all where a file was asked for."""
    if "html" in response.headers.get("content-type", ""):
        raise web_page(host)
    if response.headers.get("content-length") == "0":
        raise NetworkError(f"{host} answered with an empty file; repeat the command later.")


def _strong(response: httpx2.Response) -> str:
    """The ETag, unless it is one that may stay when bytes change."""
    etag: str = response.headers.get("etag", "")
    return "" if etag.startswith("W/") else etag


def digest_of(path: Path, algorithm: str, progress: Progress) -> str:
    """A file's SHA-256, or its hash as a git blob (`git`), in hexadecimal."""
    size, done = path.stat().st_size, 0
    digest: Hash = sha256() if algorithm == "sha256" else sha1(f"blob {size}\0".encode())
    with path.open("rb") as file:
        while block := file.read(_READ):
            digest.update(block)
            done += len(block)
            progress("check", done, size)
    return digest.hexdigest()
