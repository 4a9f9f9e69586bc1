"""What the scripts share: the project's virtual environment, made on first use.

Only the standard library: these run on a machine that has nothing but Python. The work is
remembered in a stamp file inside `.venv`, so that a second run costs a few milliseconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
_BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
_EXE = ".exe" if os.name == "nt" else ""
PYTHON = _BIN / f"python{_EXE}"
KINETIC = _BIN / f"kinetic{_EXE}"
_STAMP = VENV / "kinetic-setup.json"

# The kinetic package needs no dependency for its settings, so the scripts may use them.
sys.path.insert(0, str(ROOT))


def stop(sentence: str) -> NoReturn:
    """End the script with one sentence."""
    sys.exit(f"{Path(sys.argv[0]).name}: {sentence}")


def say(text: str) -> None:
    """Tell what is being done, apart from the output that others may read."""
    print(f"· {text}", file=sys.stderr, flush=True)


def need_python() -> None:
    """Stop where Python is too old to go on."""
    if sys.version_info < (3, 11):  # noqa: UP036 (older ones are who this is for)
        found = ".".join(map(str, sys.version_info[:3]))
        stop(f"Kinetic needs Python 3.11 or newer, and this is {found}; run it with a newer one.")


def ensure_venv(*extras: str) -> Path:
    """Make `.venv` hold Kinetic, editable, with these extras; return its Python.

    Does nothing when the stamp says that this pyproject.toml, this Python and these extras
    were set up before.
    """
    need_python()
    if _is_set_up(extras):
        return PYTHON
    with _one_at_a_time():
        if _is_set_up(extras):  # another run did it while this one waited
            return PYTHON
        if _venv_works():
            wanted = sorted({*extras, *_extras(_read_stamp())})
        else:
            _make_venv()
            wanted = sorted(extras)
        what = f".[{','.join(wanted)}]" if wanted else "."
        say(f"installing Kinetic into .venv ({what})")
        if _pip("install", "-q", "-e", what) != 0:
            stop("the installation failed (pip's words are above); with a network, run it again.")
        stamp = {**_key(), "extras": wanted}
        _write_atomically(_STAMP, json.dumps(stamp).encode())
    return PYTHON


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> int:
    """Run a command in the project's folder and return its exit code."""
    try:
        return subprocess.call([str(part) for part in command], cwd=ROOT, env=env)
    except KeyboardInterrupt:
        return 130


def download(requirement: str, folder: Path) -> Path:
    """Fetch one package's wheel into `folder` with the environment's own pip."""
    quiet = ("--no-deps", "--no-cache-dir", "--only-binary", ":all:", "-q")
    if _pip("download", *quiet, "-d", folder, requirement) != 0:
        stop(f"{requirement} could not be fetched (pip's words are above); try again later.")
    return next(Path(folder).glob("*.whl"))


def ensure_software_vulkan() -> None:
    """Install the software Vulkan driver where that can be done without asking anybody.

    Only as root on a system with apt-get, which is what a build machine is; elsewhere the
    tests that need the driver say so and are skipped.
    """
    if any(Path("/usr/share/vulkan/icd.d").glob("lvp_icd*.json")):
        return
    packages = ("mesa-vulkan-drivers", "libvulkan1")
    _apt_install("the software Vulkan driver", packages, "tests that need Vulkan")


def ensure_chromium() -> None:
    """Install Chromium and its driver where that can be done without asking anybody.

    As `ensure_software_vulkan`: the tests of the page are skipped where they are absent.
    """
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return
    _apt_install("Chromium", ("chromium", "chromium-driver"), "the tests of the server's page")


def _apt_install(what: str, packages: tuple[str, ...], else_skipped: str) -> None:
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if not is_root or not shutil.which("apt-get"):
        return
    say(f"installing {what} ({' '.join(packages)}) for the tests")

    def apt(*command: str) -> int:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        nothing = subprocess.DEVNULL
        return subprocess.call(("apt-get", "-qq", *command), env=env, stdin=nothing, stdout=nothing)

    apt("update")  # may fail without a network, where the install below may still succeed
    if apt("install", "-y", "--no-install-recommends", *packages) != 0:
        say(f"apt-get could not install it: {else_skipped} will be skipped")


def _is_set_up(extras: tuple[str, ...]) -> bool:
    done = _read_stamp()
    if any(done.get(name) != value for name, value in _key().items()):
        return False
    return set(extras) <= _extras(done) and PYTHON.exists()


def _extras(stamp: dict[str, object]) -> set[str]:
    names = stamp.get("extras")
    return set(names) if isinstance(names, list) else set()


def _key() -> dict[str, str]:
    """What an environment depends on; the version file gives the installed metadata."""
    digest = hashlib.sha256()
    for file in ("pyproject.toml", "kinetic/_version.py"):
        digest.update((ROOT / file).read_bytes())
    return {"project": digest.hexdigest(), "python": sys.version, "root": str(ROOT)}


def _read_stamp() -> dict[str, object]:
    try:
        stamp = json.loads(_STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _venv_works() -> bool:
    """Whether `.venv` is there, runs, is new enough and has pip.

    An environment outlives neither the Python it was made with nor a move of its folder.
    """
    test = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    try:
        done = subprocess.run([str(PYTHON), "-c", test], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def _make_venv() -> None:
    """Make an empty `.venv` with what this machine has for that: venv, virtualenv or uv."""
    say(f"making .venv with Python {sys.version.split()[0]}")
    makers = []
    if _has_module("venv") and _has_module("ensurepip"):
        makers.append([sys.executable, "-m", "venv", "--clear", str(VENV)])
    if _has_module("virtualenv"):
        makers.append([sys.executable, "-m", "virtualenv", "--clear", "-q", str(VENV)])
    if shutil.which("uv"):
        uv = ["uv", "venv", "-q", "--seed", "--clear", "--python", sys.executable, str(VENV)]
        makers.append(uv)
    for command in makers:
        if subprocess.call(command) == 0 and _venv_works():
            return
    stop(
        "this Python cannot make a virtual environment (its venv or ensurepip module is "
        "missing or broken); on Debian and Ubuntu: sudo apt install python3-venv."
    )


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _pip(*arguments: str | Path) -> int:
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    # A user's --user or --target setting has no meaning inside an environment.
    for name in ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PYTHONPATH", "PYTHONHOME"):
        env.pop(name, None)
    return run(PYTHON, "-m", "pip", *arguments, env=env)


def _write_atomically(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(data)
    os.replace(part, path)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold a lock, so that two scripts started together do not both fill `.venv`."""
    try:
        import fcntl
    except ImportError:  # Windows: pip's own file replacement has to do
        yield
        return
    with open(ROOT / ".venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
