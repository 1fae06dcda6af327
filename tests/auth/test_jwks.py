"""Which keys of a JWKS verify which algorithms."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from qmq.auth import jwks
from qmq.auth.jwks import ASYMMETRIC, key_for, load_keys, read_keys
from tests.auth.keys import EC_KEY, OTHER_RSA_KEY, RSA_KEY, SECRET, jwk, write_jwks


def algorithms_of(*entries: dict[str, Any], allowed: tuple[str, ...] = ASYMMETRIC) -> list[set[str]]:
    return [set(key.algorithms) for key in read_keys(json.dumps({"keys": entries}).encode(), allowed)]


def test_a_key_verifies_the_algorithms_of_its_kind_and_curve() -> None:
    assert algorithms_of(jwk(RSA_KEY), jwk(EC_KEY)) == [
        {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"},
        {"ES256"},
    ]
    assert algorithms_of(jwk(RSA_KEY, alg="PS256")) == [{"PS256"}]
    assert algorithms_of(jwk(RSA_KEY), allowed=("RS256", "ES256")) == [{"RS256"}]
    assert algorithms_of(jwk(RSA_KEY, alg="PS256"), jwk(EC_KEY), allowed=("RS256", "ES256")) == [{"ES256"}]


def test_a_symmetric_key_counts_only_if_its_algorithm_is_listed() -> None:
    assert algorithms_of(jwk(SECRET), allowed=("HS256", "HS512")) == [{"HS256"}]
    assert algorithms_of(jwk(SECRET), jwk(RSA_KEY), allowed=("RS256",)) == [{"RS256"}]


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([], "has no key that verifies one of the algorithms RS256, "),
        ([jwk(RSA_KEY, use="enc")], "has no key that verifies"),
        ([jwk(RSA_KEY, key_ops=["sign"])], "has no key that verifies"),
        ([jwk(SECRET)], "has no key that verifies"),
        ([jwk(RSA_KEY, alg="HS256")], "has no key that verifies"),
        ([{"kty": "EC", "crv": "P-257", "x": "AA", "y": "AA"}], "has no key that verifies"),
        ([jwk(RSA_KEY), {"kty": "RSA", "n": "AQAB", "e": 7}], r"keys\[1\]: is not a key of kind RSA"),
        ([{**jwk(RSA_KEY), "d": "AQAB"}], r"keys\[0\]: is a private key"),
        ([jwk(rsa.generate_private_key(65537, 1024))], r"keys\[0\]: has fewer than 2048 bits"),
        ([{"kty": "oct"}], r"keys\[0\]: has no k in base64url"),
        ([jwk(RSA_KEY, alg=["RS256"])], "has no key that verifies"),
        ([{"kty": ["RSA"]}], "has no key that verifies"),
        ([{"kty": "EC", "crv": ["P-256"]}], r"keys\[0\]: has a value of a wrong type"),
        ([jwk(RSA_KEY, key_ops=5)], r"keys\[0\]: has a value of a wrong type"),
        ([jwk(RSA_KEY)] * (jwks.KEYS_MAX + 1), "has more than 100 keys"),
    ],
)
def test_keys_that_cannot_be_used_are_refused_with_the_reason(entries: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}"):
        algorithms_of(*entries)


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"1", b"{}", b'{"keys": 1}', b'{"keys": [1]}', b"[" * 100_000])
def test_what_is_no_jwks_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="is not a JWKS"):
        read_keys(data, ASYMMETRIC)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(b" " * (jwks.FILE_BYTES_MAX + 1))

    with pytest.raises(ValueError, match="is larger than 1048576 bytes"):
        load_keys(path, ASYMMETRIC)


def test_a_token_without_key_id_gets_a_key_only_if_no_other_fits(tmp_path: Path) -> None:
    one = load_keys(write_jwks(tmp_path / "one", jwk(RSA_KEY), jwk(EC_KEY, "k2")), ASYMMETRIC)
    two = load_keys(write_jwks(tmp_path / "two", jwk(RSA_KEY), jwk(OTHER_RSA_KEY, "k2")), ASYMMETRIC)

    assert key_for(one, None, "RS256") is one[0]
    assert key_for(two, None, "RS256") is None
    assert key_for(two, "k2", "RS256") is two[1]
    assert key_for(two, "k2", "HS256") is None


def test_two_keys_of_one_id_are_none(tmp_path: Path) -> None:
    keys = load_keys(write_jwks(tmp_path / "keys", jwk(RSA_KEY), jwk(OTHER_RSA_KEY)), ASYMMETRIC)

    assert key_for(keys, "k1", "RS256") is None


def test_no_key_is_shown() -> None:
    (key,) = read_keys(json.dumps({"keys": [jwk(SECRET)]}).encode(), ("HS256",))

    assert "material" not in repr(key)
