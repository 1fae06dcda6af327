"""Authenticators of other packages, and the one of the page."""

import re
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from qmq.auth import Credentials, Principal, Refused, plugins
from qmq.auth.credentials import GROUPS_MAX, Grant
from qmq.auth.plugins import PluginAuthenticator, installed
from qmq.errors import AuthenticationUnavailable, ConfigError, LoginRefused

PAGE = (Path(__file__).parents[2] / "docs" / "authentication.md").read_text("utf-8")
ANN = Credentials("ann", "s3cret", address="10.0.0.1", node="a")


class Scripted:
    """Does what its option says."""

    def __init__(self, *, answer: Any = None) -> None:
        self.answer = answer

    def authenticate(self, credentials: Credentials) -> Any:
        return self.answer(credentials) if callable(self.answer) else self.answer


@pytest.fixture(autouse=True)
def entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of this test has one authenticator, and another name twice."""
    rows = [EntryPoint("scripted", "tests.auth.test_plugins:Scripted", "qmq.auth")]
    rows += [EntryPoint("twice", "tests.auth.test_plugins:Scripted", "qmq.auth")] * 2
    rows += [EntryPoint("broken", "tests.auth.no_such_module:Scripted", "qmq.auth")]
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: EntryPoints(rows).select(**wanted))


def answered(answer: Any) -> Grant | None:
    return PluginAuthenticator("scripted", {"answer": answer}).authenticate(ANN, 0)


def test_its_principal_is_granted() -> None:
    ann = Principal("ann", frozenset({"client"}))

    assert answered(ann) == Grant(ann, "scripted")
    assert answered(lambda credentials: Principal(credentials.passcode)) == Grant(Principal("s3cret"), "scripted")
    assert answered(None) is None


def raising(error: Exception) -> Callable[[Credentials], None]:
    def fail(credentials: Credentials) -> None:
        raise error

    return fail


def test_what_it_refuses_is_refused_without_its_words() -> None:
    with pytest.raises(LoginRefused) as refused:
        answered(raising(Refused("locked", "the passcode s3cret is locked")))

    assert refused.value.code == "login-failed"
    assert "s3cret" not in f"{refused.value} {refused.value.why}"


def test_of_another_exception_only_the_kind_is_said() -> None:
    with pytest.raises(AuthenticationUnavailable, match="^it raised KeyError$"):
        answered(raising(KeyError("s3cret")))


@pytest.mark.parametrize(
    "answer",
    [
        True,
        "ann",
        ("ann", ["client"]),
        Principal(""),
        Principal("a\nb"),
        Principal("ann", frozenset({""})),
        Principal("ann", frozenset(str(number) for number in range(GROUPS_MAX + 1))),
    ],
)
def test_another_answer_is_an_outage(answer: object) -> None:
    with pytest.raises(AuthenticationUnavailable, match="^it returned "):
        answered(answer)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("absent", {}, "no package has it"),
        ("twice", {}, "more than one package has it"),
        ("broken", {}, "cannot be used: ModuleNotFoundError"),
        ("scripted", {"unknown": "s3cret"}, "cannot be used: TypeError"),
    ],
)
def test_one_that_cannot_be_had_is_an_error_of_the_configuration(name: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        PluginAuthenticator(name, options)

    assert str(wrong.value) == f"authentication: the entry point {name!r} of qmq.auth: {why}".replace(
        ": cannot", " cannot"
    )


def test_all_names_are_listed_once() -> None:
    assert installed() == ["broken", "scripted", "twice"]


def test_the_example_of_the_page_works(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    file = tmp_path / "badges"
    file.write_text("4711 ann client,billing\n", "utf-8")

    badges = names["Badges"](file=str(file))

    assert badges.authenticate(Credentials("badge", "4711")) == Principal("ann", frozenset({"client", "billing"}))
    assert badges.authenticate(Credentials("ann", "4711")) is None
    with pytest.raises(Refused):
        badges.authenticate(Credentials("badge", "4712"))
