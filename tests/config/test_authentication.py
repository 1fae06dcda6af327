"""`[[authentication]]`: its keys by kind, and errors of the files that it names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from qmq.config import load, load_node
from qmq.config.show import effective
from qmq.errors import ConfigError
from tests.auth.keys import RSA_KEY, SECRET, jwk, write_jwks

HASH = "$argon2id$v=19$m=65536,t=3,p=4$rIZkf2r0BOgSJIHMhh1F6w$BqqNGrp1o7YEvQMCcvmzZjzpeuGHXTctXHU5i2Ada/8"
TOKEN = 'kind = "token"\njwks = "keys.json"\nissuer = "i"\naudience = "a"'
HTTP = 'kind = "http"\nurl = "https://h/p"'

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A node file with these entries, beside a file of keys."""
    write_jwks(tmp_path / "keys.json", jwk(RSA_KEY))

    def write(*entries: str, more: str = "") -> Path:
        path = tmp_path / "node.toml"
        path.write_text("".join(f"[[authentication]]\n{entry}\n" for entry in entries) + more, "utf-8")
        return path

    return write


def mistakes_of(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as wrong:
        load(path, None)
    return [one.replace(str(path.parent), "DIR") for one in wrong.value.diagnostics]


def test_entries_keep_their_order_and_show_the_keys_of_their_kind(write: Write) -> None:
    path = write('kind = "users"', TOKEN, HTTP)

    settings, _ = load(path, None)
    text = effective(settings)

    assert [one.kind for one in settings.authentication] == ["users", "token", "http"]
    assert settings.authentication[1].jwks == path.parent / "keys.json"
    assert text.count("timeout_seconds = 2.0") == text.count("leeway_seconds = 30.0") == 1
    path.write_text(text, "utf-8")
    assert load(path, None)[0].authentication == settings.authentication


@pytest.mark.parametrize(
    ("entry", "mistake"),
    [
        (
            'kind = "ldap"',
            'kind = \'ldap\': must be "users", "token", "http", or an entry point of the group qmq.auth, '
            "and none is installed",
        ),
        ('issuer = "i"', "kind: is required"),
        (
            "kind = { name = 1 }",
            'kind: must be "users", "token", "http", or an entry point of the group qmq.auth, and none is installed',
        ),
        (
            f"{TOKEN}\nalgorithms = [{{}}]",
            "algorithms[0]: must be one of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA, "
            "HS256, HS384, HS512",
        ),
        ('kind = "users"\nissuer = "i"', "issuer = 'i': must be left out for the kind \"users\""),
        (f'{TOKEN}\nurl = "https://h/"', 'url: must be left out for the kind "token"'),
        (f"{HTTP}\nleeway_seconds = 5.0", 'leeway_seconds = 5.0: must be left out for the kind "http"'),
        (TOKEN.replace('jwks = "keys.json"\n', ""), 'jwks: is required for the kind "token"'),
        (TOKEN.replace('audience = "a"', ""), 'audience: is required for the kind "token"'),
        (TOKEN.replace('"i"', '""'), "issuer = '': must be text of at least one printable character"),
        ('kind = "http"', 'url: is required for the kind "http"'),
        (f"{TOKEN}\nalgorithms = []", "algorithms: must have at least one algorithm"),
        (f"{TOKEN}\nleeway_seconds = 601.0", "leeway_seconds = 601.0: must be at most 600.0"),
        (f"{HTTP}\nchecks_at_once = 65", "checks_at_once = 65: must be at most 64"),
        (f"{HTTP}\ntimeout_seconds = 61.0", "timeout_seconds = 61.0: must be at most 60.0"),
    ],
)
def test_a_mistake_names_its_key_and_what_is_allowed(write: Write, entry: str, mistake: str) -> None:
    (found,) = mistakes_of(write(entry))

    assert found.partition("authentication[0].")[2] == mistake


@pytest.mark.parametrize("algorithm", ["none", "RS1", "hs256"])
def test_only_known_algorithms_can_be_listed(write: Write, algorithm: str) -> None:
    (found,) = mistakes_of(write(f'{TOKEN}\nalgorithms = ["{algorithm}"]'))

    assert f"algorithms[0] = {algorithm!r}: must be one of RS256, " in found


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://login.example/", "insecure: must be true, unless url begins with https"),
        ("http://127.0.0.1.example/", "insecure: must be true"),
        ("ftp://login.example/", "url: must be the URL of a service"),
        ("https:///p", "url: must be the URL of a service"),
        ("https://h/a b", "url: must be the URL of a service"),
        ("https://h/\\r\\nX: y", "url: must be the URL of a service"),
        ("https://user:hunter2@h/", "url: must have no user"),
        ("https://h/?key=hunter2", "url: must have no user"),
        ("https://h:99999/", "url: must have a port"),
    ],
)
def test_a_url_is_safe_to_ask_and_to_show(write: Write, url: str, why: str) -> None:
    (found,) = mistakes_of(write(f'kind = "http"\nurl = "{url}"'))

    assert why in found.replace(" = false", "")
    assert "hunter2" not in found


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/p", "http://localhost/", "http://[::1]/", "https://h"])
def test_this_machine_needs_no_tls(write: Write, url: str) -> None:
    assert load(write(f'kind = "http"\nurl = "{url}"'), None)[0].authentication[0].url == url


def test_a_service_elsewhere_without_tls_must_be_written_down(write: Write) -> None:
    assert load(write('kind = "http"\nurl = "http://h/"\ninsecure = true'), None)


# Files


def test_a_file_of_keys_is_checked(write: Write, tmp_path: Path) -> None:
    path = write('kind = "users"', TOKEN)
    keys = tmp_path / "keys.json"

    write_jwks(keys)
    (found,) = mistakes_of(path)
    assert found.startswith("DIR/node.toml: authentication[1]: DIR/keys.json: has no key that verifies one of")

    keys.unlink()
    assert mistakes_of(path) == [
        "DIR/node.toml: authentication[1]: DIR/keys.json: cannot be read: No such file or directory"
    ]


def test_a_ca_is_checked(write: Write) -> None:
    assert mistakes_of(write(f'{HTTP}\nca = "ca.pem"')) == [
        "DIR/node.toml: authentication[0]: DIR/ca.pem: cannot be read: No such file or directory"
    ]


def test_a_secret_key_is_for_the_user_of_the_node_alone(write: Write, tmp_path: Path) -> None:
    path = write(f'{TOKEN}\nalgorithms = ["HS256"]')
    keys = write_jwks(tmp_path / "keys.json", jwk(SECRET))
    assert load(path, None)

    keys.chmod(0o644)
    assert mistakes_of(path) == [
        "DIR/keys.json: contains a secret key, and other users can read or write it: chmod 600 DIR/keys.json"
    ]

    write_jwks(keys, jwk(RSA_KEY))
    path.write_text(path.read_text("utf-8").replace("HS256", "RS256"), "utf-8")
    assert load(path, None)


# Together with users and permissions


def test_users_need_the_kind_users(write: Write) -> None:
    users = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\n'

    assert load(write(TOKEN, 'kind = "users"', more=users), None)
    (found,) = mistakes_of(write(TOKEN, more=users))
    assert 'must be without users, or [[authentication]] must have an entry of the kind "users"' in found


def test_a_listener_for_other_machines_needs_no_users_if_others_are_asked(write: Write) -> None:
    listener = '[[stomp]]\naddress = "0.0.0.0:1"\ninsecure = true\n'

    assert load(write(TOKEN, more=listener), None)
    (found,) = mistakes_of(write('kind = "users"', more=listener))
    assert "definitions: must name at least one user" in found


def test_permissions_name_any_group_but_administrators(write: Write) -> None:
    row = '[[permissions]]\ngroup = "{}"\nallow = ["send"]\ndestinations = ["/*"]\n'

    assert load(write(TOKEN, more=row.format("billing")), None)
    (found,) = mistakes_of(write(TOKEN, more=row.format("administrator")))
    assert "must be another group" in found


def test_options_are_never_shown(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qmq.auth.plugins.installed", lambda: ["ldap"])
    path = write('kind = "ldap"\noptions = { password = "hunter2" }')

    settings = load_node(path)

    assert settings.authentication[0].options == {"password": "hunter2"}
    assert "hunter2" not in effective(settings) + repr(settings)
    assert "hunter2" not in mistakes_of(write('kind = "ldap"\noptions = "hunter2"'))[0]


def test_a_change_needs_a_restart_and_shows_no_options(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from qmq.config.difference import difference

    monkeypatch.setattr("qmq.auth.plugins.installed", lambda: ["ldap"])
    first, second = (load_node(write(f'kind = "ldap"\noptions = {{ p = "hunter{n}" }}')) for n in (2, 3))

    for old, new in ((first, second), (load_node(None), first)):
        (change,) = difference(old, new)
        assert change.needs_restart and "hunter" not in f"{change} {change.old} {change.new}"
