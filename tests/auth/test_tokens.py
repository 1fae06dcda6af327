"""JSON Web Tokens: what is accepted, and each way to forge one."""

import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from qmq.access.rules import Principal
from qmq.auth.credentials import GROUPS_MAX, Credentials, Grant
from qmq.auth.jwks import ASYMMETRIC
from qmq.auth.tokens import CHARACTERS_MAX, TokenAuthenticator, TokenRules
from qmq.errors import LoginRefused
from tests.auth.keys import (
    AUDIENCE,
    EC_KEY,
    ISSUER,
    OTHER_RSA_KEY,
    RSA_KEY,
    SECRET,
    claims,
    forged,
    jwk,
    token,
    write_jwks,
)

NOW = 1_800_000_000
NOW_US = NOW * 1_000_000
LEEWAY = 30


def rules(**changes: Any) -> TokenRules:
    given: dict[str, Any] = {
        "issuer": ISSUER,
        "audience": AUDIENCE,
        "algorithms": ASYMMETRIC,
        "leeway_seconds": float(LEEWAY),
        "name_claim": "sub",
        "groups_claim": "groups",
        "groups_prefix": "",
    }
    return TokenRules(**{**given, **changes})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_jwks(tmp_path / "keys.json", jwk(RSA_KEY), jwk(EC_KEY, "k2"))


def good(**changes: Any) -> dict[str, Any]:
    return claims(NOW, **changes)


def grant_of(file: Path, text: str, login: str | None = None, now_us: int = NOW_US, **changes: Any) -> Grant | None:
    authenticator = TokenAuthenticator(rules(**changes), file)
    return authenticator.authenticate(Credentials(login, text), now_us)


def refusal(file: Path, text: str, **more: Any) -> str:
    with pytest.raises(LoginRefused) as refused:
        grant_of(file, text, **more)
    assert (refused.value.code, refused.value.message) == ("login-failed", "Unknown user or wrong passcode.")
    return refused.value.why


@pytest.mark.parametrize("login", [None, "", "token", "ann"])
def test_a_good_token_names_the_principal_and_when_it_ends(file: Path, login: str | None) -> None:
    grant = grant_of(file, token(good(groups=["client", "billing"])), login)

    principal = Principal("ann", frozenset({"client", "billing"}))
    assert grant == Grant(principal, "token", (NOW + 3600 + LEEWAY) * 1_000_000)


def test_the_header_token_counts_before_the_passcode(file: Path) -> None:
    shown = Credentials("token", "nonsense", token(good()))

    assert TokenAuthenticator(rules(), file).authenticate(shown, NOW_US) is not None


@pytest.mark.parametrize("algorithm", ["RS256", "PS384", "RS512"])
def test_a_key_without_algorithm_verifies_all_of_its_kind(file: Path, algorithm: str) -> None:
    assert grant_of(file, token(good(), algorithm=algorithm)) is not None


def test_a_token_of_another_curve_or_key_is_signed_right_too(file: Path) -> None:
    assert grant_of(file, token(good(), EC_KEY, "ES256", "k2")) is not None
    assert grant_of(file, token(good(), EC_KEY, "ES256", None)) is not None


@pytest.mark.parametrize(
    "text",
    [
        "secret",
        "",
        "a.b",
        "a.b.c",
        "eyJ.eyJ.eyJ.eyJ",
        forged({"alg": "RS256"}, "[1]"),
        forged({"alg": "RS256"}, "[" * 5000),
        forged({"alg": "RS256"}, {"iss": "https://another.example"}),
        forged({"alg": "RS256"}, {"iss": ["https://issuer.example"]}),
        token(claims(NOW, iss="https://another.example")),
        "x" * (CHARACTERS_MAX + 1),
        "eyJ." + "x" * CHARACTERS_MAX + ".x",
    ],
    ids=lambda text: text[:30],
)
def test_other_text_and_tokens_of_other_issuers_are_left_to_the_next_authenticator(file: Path, text: str) -> None:
    assert grant_of(file, text) is None


# Signatures


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "HS256", "RS257", "", None, 5, ["RS256"], {"a": 1}])
def test_an_algorithm_that_is_not_listed_is_refused(file: Path, algorithm: object) -> None:
    header = {"kid": "k1"} if algorithm is None else {"alg": algorithm, "kid": "k1"}

    for signature in (b"", b"x" * 256):
        assert refusal(file, forged(header, good(), signature)) == "its algorithm is not allowed"


def test_the_public_key_as_a_secret_signs_nothing(file: Path) -> None:
    """Key confusion: HS256 with what everyone may read, also where HS256 is allowed for another key."""
    public = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = [jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign]
    for secret in (public, public.rstrip(b"\n"), file.read_bytes()):
        start = forged({"alg": "HS256", "kid": "k1"}, good()).rpartition(".")[0]
        text = f"{start}.{jwt.utils.base64url_encode(signed[0](start.encode(), secret)).decode()}"

        assert refusal(file, text) == "its algorithm is not allowed"
        both = write_jwks(file.with_name("both"), jwk(RSA_KEY), jwk(SECRET, "k2"))
        assert refusal(both, text, algorithms=("RS256", "HS256")).startswith("no key fits")


def test_a_secret_of_the_file_signs_where_its_algorithm_is_listed(tmp_path: Path) -> None:
    file = write_jwks(tmp_path / "keys", jwk(SECRET))

    assert grant_of(file, token(good(), SECRET, "HS256"), algorithms=("HS256",)) is not None
    assert refusal(file, token(good(), b"another" * 8, "HS256"), algorithms=("HS256",)) == "its signature is wrong"


def test_a_token_of_another_key_or_with_another_content_is_refused(file: Path) -> None:
    head, _, signature = token(good()).split(".")
    changed = forged({}, good(sub="root")).split(".")[1]

    assert refusal(file, token(good(), OTHER_RSA_KEY)) == "its signature is wrong"
    assert refusal(file, f"{head}.{changed}.{signature}") == "its signature is wrong"
    assert refusal(file, forged({"alg": "RS256", "kid": "k1"}, good())) == "its signature is wrong"
    assert refusal(file, forged({"alg": "ES256", "kid": "k2"}, good(), b"\0" * 64)) == "its signature is wrong"


@pytest.mark.parametrize(("algorithm", "id"), [("RS256", "k2"), ("ES256", "k1"), ("RS256", "k3")])
def test_a_key_that_does_not_fit_is_not_used(file: Path, algorithm: str, id: str) -> None:
    key = RSA_KEY if algorithm == "RS256" else EC_KEY

    assert refusal(file, token(good(), key, algorithm, id)).startswith("no key fits")


def test_a_token_without_key_id_is_refused_if_two_keys_fit(tmp_path: Path) -> None:
    file = write_jwks(tmp_path / "keys", jwk(RSA_KEY), jwk(OTHER_RSA_KEY, "k2"))

    assert refusal(file, token(good(), id=None)).startswith("no key fits")


@pytest.mark.parametrize("id", [5, ["k1"], {"a": 1}])
def test_a_key_id_that_is_no_text_finds_no_key(file: Path, id: object) -> None:
    assert refusal(file, forged({"alg": "RS256", "kid": id}, good(), b"x")).startswith("no key fits")


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"b64": False, "crit": ["b64"]}])
def test_a_header_with_extensions_is_refused(file: Path, header: dict[str, Any]) -> None:
    text = jwt.encode(good(), RSA_KEY, algorithm="RS256", headers={"kid": "k1"})
    head = forged({"alg": "RS256", "kid": "k1", **header}, "")

    assert "not understood" in refusal(file, f"{head.split('.')[0]}.{text.split('.', 1)[1]}")


def test_a_header_that_is_no_json_is_refused(file: Path) -> None:
    text = token(good())

    for head in ("AAAA", "W10", "W" * 6000):
        assert "not understood" in refusal(file, f"{head}.{text.split('.', 1)[1]}")


@pytest.mark.parametrize("header", ["jku", "jwk", "x5u", "x5c"])
def test_a_key_that_the_token_itself_names_is_not_used(file: Path, header: str) -> None:
    value: object = jwk(OTHER_RSA_KEY) if header == "jwk" else "https://evil.example/keys"
    text = jwt.encode(good(), OTHER_RSA_KEY, algorithm="RS256", headers={"kid": "k1", header: value})

    assert refusal(file, text) == "its signature is wrong"


# Claims


@pytest.mark.parametrize("audience", [None, "other", ["other"], [], "qmq2", {"qmq": 1}, 5, [["qmq"]]])
def test_a_token_for_another_audience_is_refused(file: Path, audience: object) -> None:
    assert refusal(file, token(good(aud=audience))) == "it is for another audience"


def test_one_of_several_audiences_is_enough(file: Path) -> None:
    assert grant_of(file, token(good(aud=["other", AUDIENCE]))) is not None


def test_a_token_counts_for_the_leeway_longer_and_then_has_expired(file: Path) -> None:
    text = token(good(exp=NOW))

    assert grant_of(file, text, now_us=(NOW + LEEWAY) * 1_000_000 - 1) is not None
    with pytest.raises(LoginRefused) as refused:
        grant_of(file, text, now_us=(NOW + LEEWAY) * 1_000_000)
    assert refused.value.code == "token-expired"


def test_only_a_signed_token_is_said_to_have_expired(file: Path) -> None:
    assert refusal(file, token(good(exp=1), OTHER_RSA_KEY)) == "its signature is wrong"


def test_a_token_that_is_not_valid_yet_is_refused(file: Path) -> None:
    assert refusal(file, token(good(nbf=NOW + LEEWAY + 1))) == "it is not valid yet"
    assert grant_of(file, token(good(nbf=NOW + LEEWAY))) is not None


@pytest.mark.parametrize("claim", ["exp", "nbf"])
@pytest.mark.parametrize("time", ["NaN", "Infinity", "-1", "1e400", '"1900000000"', "true", "[]", "9" * 400])
def test_a_time_that_is_none_is_refused(file: Path, claim: str, time: str) -> None:
    payload = json.dumps(good()).removesuffix("}") + f', "{claim}": {time}}}'
    text = jwt.PyJWS().encode(payload.encode(), RSA_KEY, algorithm="RS256", headers={"kid": "k1"})

    assert refusal(file, text) == "it has no exp, or one of its times is no time"


def test_a_token_that_never_expires_is_refused(file: Path) -> None:
    assert refusal(file, token(good(exp=None))) == "it has no exp, or one of its times is no time"


@pytest.mark.parametrize("name", [None, "", "a\nb", "x" * 129, 5, ["ann"], "a\0"])
def test_a_name_that_no_user_may_have_is_refused(file: Path, name: object) -> None:
    payload = good() | {"sub": name}
    text = jwt.PyJWS().encode(json.dumps(payload).encode(), RSA_KEY, algorithm="RS256", headers={"kid": "k1"})

    assert refusal(file, text) == "its claim sub is no name of a user"


def test_a_login_of_another_name_is_refused(file: Path) -> None:
    assert refusal(file, token(good()), login="root") == "it is about another user than the login"


@pytest.mark.parametrize(
    ("groups", "claim", "prefix", "expected"),
    [
        (None, "groups", "", set()),
        (["a", "b", "a"], "groups", "", {"a", "b"}),
        ("a b", "groups", "", {"a", "b"}),
        (["qmq-client", "administrator"], "groups", "qmq-", {"client"}),
        ({"roles": ["a"]}, "groups.roles", "", {"a"}),
        ({"roles": ["a"]}, "groups.none", "", set()),
    ],
)
def test_groups_come_from_their_claim(file: Path, groups: object, claim: str, prefix: str, expected: set[str]) -> None:
    grant = grant_of(file, token(good(groups=groups)), groups_claim=claim, groups_prefix=prefix)

    assert grant is not None and grant.principal.groups == expected


def test_a_claim_whose_name_has_dots_comes_before_objects(file: Path) -> None:
    payload = good(groups={"roles": ["wrong"]}) | {"groups.roles": ["right"]}

    grant = grant_of(file, token(payload), groups_claim="groups.roles")

    assert grant is not None and grant.principal.groups == {"right"}


@pytest.mark.parametrize("groups", [5, {"a": 1}, [5], ["a", None], [""], ["a\n"], [str(i) for i in range(101)]])
def test_groups_that_are_none_are_refused(file: Path, groups: object) -> None:
    assert GROUPS_MAX == 100

    assert refusal(file, token(good(groups=groups))).startswith("its claim groups ")


# The file of keys


def test_changed_keys_count_at_the_next_token(tmp_path: Path) -> None:
    file = write_jwks(tmp_path / "keys", jwk(RSA_KEY))
    authenticator = TokenAuthenticator(rules(), file)
    late = Credentials("token", token(good(), OTHER_RSA_KEY, id="k2"))
    with pytest.raises(LoginRefused, match="login-failed"):
        authenticator.authenticate(late, NOW_US)

    write_jwks(file, jwk(OTHER_RSA_KEY, "k2"))

    assert authenticator.authenticate(late, NOW_US) is not None
    with pytest.raises(LoginRefused, match="login-failed"):
        authenticator.authenticate(Credentials("token", token(good())), NOW_US)


@pytest.mark.parametrize("content", [None, "", '{"keys": []}'])
def test_a_file_that_cannot_be_used_any_more_leaves_the_keys_of_before(tmp_path: Path, content: str | None) -> None:
    file = write_jwks(tmp_path / "keys", jwk(RSA_KEY))
    authenticator = TokenAuthenticator(rules(), file)
    shown = Credentials("token", token(good()))
    if content is None:
        file.unlink()
    else:
        file.write_text(content, "utf-8")

    assert authenticator.authenticate(shown, NOW_US) is not None
    problem = authenticator.problem()
    assert problem is not None and problem.startswith(str(file)) and problem.endswith("its earlier keys count")

    write_jwks(file, jwk(RSA_KEY))
    assert authenticator.authenticate(shown, NOW_US) is not None
    assert authenticator.problem() is None


def test_a_secret_of_credentials_is_not_shown() -> None:
    assert "pw" not in repr(Credentials("ann", "pw", "pw"))
