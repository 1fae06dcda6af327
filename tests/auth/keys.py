"""Keys, JWKS files and tokens for tests."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

RSA_KEY = rsa.generate_private_key(65537, 2048)
OTHER_RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
SECRET = b"a secret of thirty-two bytes or more"

ISSUER = "https://issuer.example"
AUDIENCE = "qmq"


def jwk(key: Any, id: str | None = "k1", **more: Any) -> dict[str, Any]:
    """The public part of a key, or a secret, as an entry of a JWKS."""
    if isinstance(key, bytes):
        found: dict[str, Any] = {"kty": "oct", "k": base64.urlsafe_b64encode(key).rstrip(b"=").decode()}
    elif isinstance(key, rsa.RSAPrivateKey):
        found = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        found.pop("key_ops")
    else:
        found = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**found, **({} if id is None else {"kid": id}), **more}


def write_jwks(path: Path, *entries: dict[str, Any]) -> Path:
    """A file of keys that its user alone can read."""
    path.touch(0o600)
    path.write_text(json.dumps({"keys": entries}), "utf-8")
    return path


def claims(now: float | None = None, **changes: Any) -> dict[str, Any]:
    """Those of a good token of ann; a change to None removes one."""
    at = time.time() if now is None else now
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": at + 3600, "groups": ["client"], **changes}
    return {name: value for name, value in found.items() if value is not None}


def token(payload: dict[str, Any], key: Any = RSA_KEY, algorithm: str = "RS256", id: str | None = "k1") -> str:
    """A signed token."""
    return jwt.encode(payload, key, algorithm=algorithm, headers=None if id is None else {"kid": id})


def forged(header: dict[str, Any], payload: dict[str, Any] | str, signature: bytes = b"") -> str:
    """A token whose parts are what they are, right or wrong."""
    body = payload if isinstance(payload, str) else json.dumps(payload)
    parts = (json.dumps(header).encode(), body.encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
