"""Seals and signatures of a receipt: which field was changed, and who made it.

The seal has a short hash for every field, so that a damaged or edited receipt can say which of
them it is. Whoever edits on purpose can make the seal anew: only a signature stops that, and
only a rerun shows that a receipt is true.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from blake3 import blake3

from kinetic.errors import ModelFileError
from kinetic.receipts.canonical import Json, canonical, leaves
from kinetic.receipts.signing import sign_bytes, signature_is_good

if TYPE_CHECKING:
    from nacl.signing import SigningKey

Record = dict[str, Json]


def token_hash(ids: Sequence[int]) -> str:
    """The BLAKE3 of token ids as little-endian 32-bit integers."""
    return blake3(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


def sealed(record: Mapping[str, Json]) -> Record:
    """The record with a hash of each of its fields."""
    return {**record, "seal": cast(Json, _hashes(record))}


def signed(record: Mapping[str, Json], key: SigningKey) -> Record:
    """The record with a signature over all of it."""
    public, signature = sign_bytes(canonical(_unsigned(record)), key)
    return {**record, "signature": {"public_key": public, "ed25519": signature}}


def check_seals(record: Record, where: str) -> None:
    """Compare every field with its seal, and the hashes of tokens with the tokens.

    *Raises*: ModelFileError that names the field.
    """
    seal = cast(dict[str, str], record["seal"])
    hashes = _hashes(record)
    for name, found in hashes.items():
        if name not in seal:
            raise ModelFileError(f"{where}: the field {name} has no seal; the receipt was changed")
        if seal[name] != found:
            raise ModelFileError(
                f"{where}: the field {name} does not match its seal; one of them was changed"
            )
    extra = next((name for name in seal if name not in hashes), None)
    if extra is not None:
        raise ModelFileError(
            f"{where}: the seal names the field {extra[:80]}, which is not there; "
            "the receipt was changed"
        )
    output = cast(Record, record["output"])
    for name, tokens in (("prompt", record["prompt"]), ("output.tokens", output["tokens"])):
        _check_tokens(name, cast(Record, tokens), where)


def check_signature(record: Record, where: str) -> str | None:
    """The public key that a signed receipt was made with; None for one without a signature.

    *Raises*: ModelFileError where the signature is of something else.
    """
    signature = cast(dict[str, str] | None, record.get("signature"))
    if signature is None:
        return None
    public = signature["public_key"]
    if not signature_is_good(canonical(_unsigned(record)), public, signature["ed25519"]):
        raise ModelFileError(
            f"{where}: the signature is not valid: a field, signature.public_key or "
            "signature.ed25519 was changed after signing"
        )
    return public


def _check_tokens(name: str, tokens: Record, where: str) -> None:
    ids = cast(list[int], tokens["ids"])
    if tokens["count"] != len(ids):
        raise ModelFileError(
            f"{where}: the field {name}.count says {tokens['count']} and there are {len(ids)} ids"
        )
    if tokens["blake3"] != token_hash(ids):
        raise ModelFileError(f"{where}: the field {name}.blake3 is not the hash of {name}.ids")


def _hashes(record: Mapping[str, Json]) -> dict[str, str]:
    inner = {k: v for k, v in record.items() if k not in ("seal", "signature")}
    return {
        name: blake3(name.encode() + b"\0" + canonical(value)).hexdigest()[:16]
        for name, value in leaves(inner)
    }


def _unsigned(record: Mapping[str, Json]) -> Record:
    return {k: v for k, v in record.items() if k != "signature"}
