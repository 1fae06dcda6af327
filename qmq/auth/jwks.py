"""The keys that sign tokens: a JSON Web Key Set (RFC 7517).

A key decides which algorithms verify with it. So a token that names another algorithm than its key has (the public key
of an issuer used as the secret of HS256) finds no key. Private keys do not belong into the file, and are refused. A
symmetric key counts only if the configuration lists HS256, HS384 or HS512; then the file itself is a secret.
"""

import base64
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ASYMMETRIC: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
SYMMETRIC: Final[Mapping[str, int]] = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Algorithm → least bytes of its key (RFC 7518, 3.2)."""

BY_CURVE: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA", "Ed448": "EdDSA"}

FILE_BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One key that verifies signatures. `material` is what PyJWT takes for it."""

    id: str | None
    algorithms: frozenset[str]
    material: Any = field(repr=False)
    is_symmetric: bool = False


def load_keys(path: Path, algorithms: Collection[str]) -> list[SigningKey]:
    """The keys of the file that may be used with `algorithms`; at least one.

    Raises OSError for a file that cannot be read, ValueError with a sentence for one that cannot be used.
    """
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"is larger than {FILE_BYTES_MAX} bytes")
    return read_keys(data, algorithms)


def read_keys(data: bytes, algorithms: Collection[str]) -> list[SigningKey]:
    """The same, from the content of the file."""
    try:
        entries = json.loads(data)["keys"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError('is not a JWKS: a JSON object with a list "keys"') from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError('is not a JWKS: "keys" must be a list of objects')
    if len(entries) > KEYS_MAX:
        raise ValueError(f"has more than {KEYS_MAX} keys")
    keys = []
    for number, entry in enumerate(entries):
        try:
            key = _key(entry, algorithms)
        except TypeError as error:
            raise ValueError(f"keys[{number}]: has a value of a wrong type") from error
        except ValueError as error:
            raise ValueError(f"keys[{number}]: {error}") from error
        if key is not None:
            keys.append(key)
    if not keys:
        raise ValueError(f"has no key that verifies one of the algorithms {', '.join(algorithms)}")
    return keys


def key_for(keys: Collection[SigningKey], id: str | None, algorithm: str) -> SigningKey | None:
    """The one key of this id and algorithm; a token without key id gets a key only if no other fits."""
    fitting = [key for key in keys if algorithm in key.algorithms and (id is None or key.id == id)]
    return fitting[0] if len(fitting) == 1 else None


def _key(entry: Mapping[str, Any], allowed: Collection[str]) -> SigningKey | None:
    """The key of one entry; None if it verifies nothing that is allowed. Raises ValueError."""
    kind, id = entry.get("kty"), entry.get("kid")
    if kind in ("RSA", "EC", "OKP") and "d" in entry:
        raise ValueError("is a private key: the file must have public keys only")
    if entry.get("use", "sig") != "sig" or "verify" not in entry.get("key_ops", ("verify",)):
        return None
    secret = _secret(entry) if kind == "oct" else b""
    if kind == "RSA":
        possible = {name for name in ASYMMETRIC if name.startswith(("RS", "PS"))}
    elif kind == "oct":
        possible = {name for name, least in SYMMETRIC.items() if len(secret) >= least}
    else:
        possible = {BY_CURVE[entry["crv"]]} if entry.get("crv") in BY_CURVE else set()
    possible = {name for name in possible if name in allowed and name == entry.get("alg", name)}
    if not possible:
        return None
    if kind == "oct":
        return SigningKey(id, frozenset(possible), secret, is_symmetric=True)
    return SigningKey(id, frozenset(possible), _public(entry, min(possible)))


def _secret(entry: Mapping[str, Any]) -> bytes:
    try:
        return base64.urlsafe_b64decode(entry["k"] + "==")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("has no k in base64url") from error


def _public(entry: Mapping[str, Any], algorithm: str) -> Any:
    try:
        import jwt
    except ImportError as error:
        raise ValueError("needs PyJWT to be read: pip install 'qmq[tokens]'") from error
    try:
        key = jwt.PyJWK(dict(entry), algorithm=algorithm).key
    except Exception as error:  # of several libraries, for numbers that are no key
        raise ValueError(f"is not a key of kind {entry.get('kty')}") from error
    if entry["kty"] == "RSA" and key.key_size < RSA_BITS_MIN:
        raise ValueError(f"has fewer than {RSA_BITS_MIN} bits")
    return key
