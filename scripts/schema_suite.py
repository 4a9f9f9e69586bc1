"""What the JSON-Schema-Test-Suite says of answers held to a schema.

    python scripts/schema_suite.py                      # the copy in golden/
    python scripts/schema_suite.py jsonschema-4.23.0.tar.gz [--write golden/grammar/suite.json]
    python scripts/schema_suite.py --list wrong         # the groups of one kind

Each group of the suite (draft 2020-12) is one schema with documents that fit it and documents that
do not. A group is

    enforced    every document that fits may be written, and none that does not
    narrower    none that does not fit may be written, nor may some that do
    refused     the schema is refused with a sentence that says why
    wrong       a document that does not fit may be written: there must be none

Documents are tried in every order of their keys. Narrower is mostly a wish of ours: nothing can be
written that is not a JSON text of bounded white space, and some keywords narrow more than they say.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "golden" / "grammar" / "json_schema_suite.json"
_DRAFT = "/json/tests/draft2020-12/"
MOST_ORDERS = 24


def groups_of_sdist(path: Path) -> Iterator[dict[str, object]]:
    """The groups of draft 2020-12 in the sdist of the `jsonschema` package."""
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            _, found, name = member.name.partition(_DRAFT)
            optional = name.startswith("optional/") and not name.startswith("optional/format/")
            stream = archive.extractfile(member) if found and name.endswith(".json") else None
            if stream is None or optional:
                continue
            for group in json.load(stream):
                schema = group["schema"]
                if isinstance(schema, dict):
                    schema.pop("$schema", None)
                tests = [[t["data"], t["valid"]] for t in group["tests"]]
                yield {
                    "file": name.removesuffix(".json"),
                    "group": group["description"],
                    "schema": schema,
                    "tests": tests,
                }


def spellings(value: object) -> Iterator[object]:
    """A document with its keys in every order, up to a limit."""
    if isinstance(value, dict):
        keys = itertools.islice(itertools.permutations(value), MOST_ORDERS)
        for order in keys:
            yield from (
                {**dict(zip(order, parts, strict=True))} for parts in _products(value, order)
            )
    elif isinstance(value, list):
        yield from (list(parts) for parts in _products(value, range(len(value))))
    else:
        yield value


def _products(value: object, places: Iterable[object]) -> Iterator[tuple[object, ...]]:
    parts = [list(itertools.islice(spellings(value[p]), 6)) for p in places]  # type: ignore[index]
    return itertools.islice(itertools.product(*parts), MOST_ORDERS)


def texts(value: object) -> Iterator[str]:
    """Ways to write a document."""
    for spelled in itertools.islice(spellings(value), MOST_ORDERS):
        yield json.dumps(spelled, ensure_ascii=False)
        yield json.dumps(spelled, separators=(",", ":"))


def judged(group: dict[str, object]) -> tuple[str, str]:
    """A group's kind, and what shows it."""
    from support.bytes_vocabulary import VOCABULARY, follows

    from kinetic.errors import UsageError
    from kinetic.text.grammar import json_schema

    try:
        constraint = json_schema(VOCABULARY, group["schema"])
    except UsageError as error:
        return "refused", str(error)
    missed = ""
    for data, valid in group["tests"]:  # type: ignore[attr-defined]
        try:
            fits = next((t for t in texts(data) if follows(constraint.clone(), t)), None)
        except UnicodeEncodeError:  # a lone surrogate is in no model's words
            continue
        if fits is not None and not valid:
            return "wrong", fits
        if fits is None and valid:
            missed = missed or json.dumps(data)
    return ("narrower", missed) if missed else ("enforced", "")


def main() -> int:
    """Judge every group; 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sdist", nargs="?", type=Path, help="the sdist of jsonschema")
    parser.add_argument("--write", type=Path, help="write the suite as one compact file")
    parser.add_argument("--list", default="wrong", help="the kind of group to list")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    groups = (
        list(groups_of_sdist(options.sdist))
        if options.sdist
        else json.loads(GOLDEN.read_text("utf-8"))
    )
    if options.write:
        lines = ",\n".join(json.dumps(g, separators=(",", ":")) for g in groups)
        options.write.write_text(f"[\n{lines}\n]\n", "utf-8")
    counts: dict[str, Counter[str]] = {"keywords": Counter(), "formats": Counter()}
    for group in groups:
        kind, shown = judged(group)
        part = "formats" if str(group["file"]).startswith("optional/") else "keywords"
        counts[part][kind] += 1
        if kind in options.list.split(","):
            print(f"{kind}: {group['file']}: {group['group']}: {shown}")
    for part, count in counts.items():
        total = count.total()
        print(f"{part}: {total} groups, " + ", ".join(
            f"{count[k]} {k} ({count[k] / total:.1%})"
            for k in ("enforced", "narrower", "refused", "wrong")
        ))  # fmt: skip
    return 1 if any(count["wrong"] for count in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
