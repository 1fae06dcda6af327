"""Commands of control verbs: their arguments, options and help are those of the declaration (`qmq.verbs`).

A command that shows its response in its own way decorates what does so. For a verb without such a function,
`plain_command` makes one that shows the facts of the response, one in a line.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final

import click

from qmq.verbs.verb import Defining, Option, Verb, options_of

from ..client import Endpoint, Headers, ask, headers_of
from ..options import KEY, check_kind, client_options, json_option
from ..output import print_json, printable
from .request import JOB_SECONDS, check_quorum, show_left_behind

NOT_HERE: Final = ("about", "after", "limit")
"""Options that commands give by themselves."""

SHOWN_MAX: Final = 10**9
"""A larger bound is the node's, and is not shown in a help."""


@dataclass(slots=True)
class Asked:
    """One request of a command: the verb, what it is about, and its options as the command line has them."""

    node: Endpoint
    verb: type[Verb]
    about: str = ""
    given: dict[str, Any] = field(default_factory=dict)
    as_json: bool = False

    @property
    def is_dry_run(self) -> bool:
        return bool(self.given.get("dry_run"))

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The options as headers; `scope:mesh` unless an option of the command says otherwise."""
        values = dict(self.given)
        if "scope" in values:
            is_asked_for = options_of(self.verb)["scope"].word == "mesh"
            values["scope"] = "mesh" if values["scope"] == is_asked_for else None
        return headers_of(**values)

    @property
    def request(self) -> str:
        """The control destination, without /control/."""
        return f"{self.verb.word()}{self.about}"

    def facts(self, *more: tuple[str, str], body: bytes = b"") -> dict[str, Any]:
        """The JSON response. Raises Failed or ServerError."""
        return self.ask(self.request, more, body)

    def ask(self, request: str, headers: Headers = (), body: bytes = b"") -> dict[str, Any]:
        """The JSON response to another request with these options. Raises Failed or ServerError."""
        return ask(self.node, request, [*headers, *self.headers], body)

    def put(self, name: str, value: Mapping[str, Any] | bytes, done: str = "set") -> None:
        """Set the definition `name`, `KIND/NAME`, and show it."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.show_definition(self.ask(f"definitions/put/{name}", body=body), done)

    def delete(self, name: str) -> None:
        """Delete the definition `name`, and show it."""
        self.show_definition(self.ask(f"definitions/delete/{name}"), "deleted")

    def show_definition(self, facts: Mapping[str, Any], done: str) -> None:
        """As `show_change`, with the name that the response has."""
        self.show_change(facts, f"{facts['kind']} {facts['name']}", done)

    def show_change(self, facts: Mapping[str, Any], name: str, done: str, more: str = "") -> None:
        """Print what has happened to `name`. Raises Failed as `check_quorum` does."""
        if self.as_json:
            print_json(facts)
        else:
            will_be = f"would be {done}" if self.is_dry_run else f"is {done}"
            result = will_be if facts["changed"] else "was so before"
            click.echo(printable(f"{name} {result}{more}"))
            show_left_behind(facts)
        check_quorum(facts)

    def outcome(self) -> dict[str, Any]:
        """As `facts`, of a request that may take long."""
        return ask(self.node, self.request, self.headers, seconds_min=JOB_SECONDS)


def verb_options(
    verb: type[Verb], *without: str, key: Collection[str] = KEY
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of `verb`, but for those in `without`; the command gets them in an `Asked`, as `asked`."""
    options = {
        name.replace("-", "_"): one
        for name, one in options_of(verb).items()
        if name.replace("-", "_") not in (*NOT_HERE, *without)
    }

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_asked(*args: Any, node: Endpoint, as_json: bool, **given: Any) -> Any:
            values = {name: given.pop(name) for name in options}
            return command(*args, asked=Asked(node, verb, "", values, as_json), **given)

        decorated = json_option(with_asked)
        for name, option in reversed(options.items()):
            decorated = _parameter(name, option, getattr(verb(), name))(decorated)
        return client_options(decorated, key)

    return decorate


change_options: Final = verb_options(Defining)
"""Of a command that changes definitions."""


def _parameter(name: str, option: Option, default: Any) -> Callable[[Any], Any]:
    if option.word.isupper():
        return click.argument(name, metavar=option.word)
    words = [f"--{option.word or name.replace('_', '-')}", name]
    about: dict[str, Any] = {"help": option.meta.description}
    if option.kind is bool or name == "scope":
        return click.option(*words, is_flag=True, **about)
    if option.metavar:
        about["metavar"] = option.metavar
    if option.kind is int:
        least, most = int(option.meta.ge or 0), int(option.meta.le or 0)
        about["type"] = click.IntRange(least, most if most < SHOWN_MAX else None)
    elif option.values:
        about["type"] = click.Choice(option.values)
    elif option.audited in ("selector", "ids"):
        about["callback"] = read_chosen
    return click.option(*words, **about)


def read_chosen(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A variable of the shell that is not set must not mean all messages."""
    if value is not None and not value.strip():
        raise click.BadParameter("is empty; leave it out for all messages")
    return value


def verb_command(
    verb: type[Verb],
    *without: str,
    name: str = "",
    help: str | None = None,
    kinds: tuple[str, ...] = (),
    more: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda command: command,
) -> Callable[[Callable[..., None]], click.Command]:
    """Decorates what shows the response to `asked`: the command of `verb`, with the argument that its form names.

    `help` is that of the verb. `kinds`: of destinations, where these are not all of the form. `more`: options that the
    function gets by itself.
    """
    kinds = kinds or verb.kinds()
    last = verb.form.rpartition("/")[2]
    argument = ("destination" if len(kinds) > 1 else kinds[0]) if kinds else last.strip("[]").lower().replace("-", "_")
    is_plain = "/" not in verb.form.partition("[/")[0]

    def decorate(show: Callable[..., None]) -> click.Command:
        @wraps(show)
        def command(asked: Asked, **given: Any) -> None:
            about = None if is_plain else given.pop(argument)
            if kinds:
                check_kind(str(about), kinds)
            asked.about = "" if about is None else about if kinds else f"/{about}"
            show(asked, **given)

        command.__doc__ = help or verb.__doc__
        decorated = more(verb_options(verb, *without)(command))
        if not is_plain:
            is_optional = last.startswith("[")
            decorated = click.argument(argument, required=not is_optional, metavar=last if is_optional else None)(
                decorated
            )
        return click.command(name or verb.word())(decorated)

    return decorate


def plain_commands() -> dict[str, click.Command]:
    """Those of verbs that name a command, by this name."""
    from qmq.verbs.table import VERBS  # All verbs: a command that has its own output starts without them.

    return {verb.command: plain_command(verb) for verb in VERBS.values() if verb.command}


def plain_command(verb: type[Verb]) -> click.Command:
    """The command of a verb that has no other one."""

    def show(asked: Asked) -> None:
        facts = asked.facts()
        if asked.as_json:
            print_json(facts)
        for name, fact in () if asked.as_json else facts.items():
            click.echo(printable(f"{name}: {fact if isinstance(fact, str) else json.dumps(fact)}"))

    return verb_command(verb, name=verb.command)(show)
