"""What the declaration of a control verb says, and how a request is read by it.

A verb is a subclass of `Verb`. Its fields are the options: headers over STOMP, with hyphens; the query over HTTP;
options of its command. Their types, bounds and descriptions are in the annotations. Its class variables say the rest,
and its docstring is the help. `table` finds it; the router, permissions, audit, OpenAPI and commands follow from it.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta, Struct

from qmq.access.rights import KINDS, Need
from qmq.access.rules import Action, Principal
from qmq.errors import Refused

CONTROL: Final = "/control/"
NO_HEADERS: Final[Mapping[str, str]] = {}
NUMBER: Final = re.compile("[0-9]{1,13}", re.ASCII)
TRUTH: Final = {"true": True, "false": False}


class Effect(NamedTuple):
    """What a request does beyond what it says, as the node finds out."""

    is_change: bool = True
    """False: what it declares or binds is so already."""
    is_private: bool = False
    """The queue that it binds is exclusive to this connection: nothing is sent to another client."""
    is_replacing: bool = False
    """It gives other rules to a queue that another user has declared, or none that has a name; or other bindings to
    that of another user's durable subscription.
    """
    is_taking: bool = False
    """It takes messages out of the destination: dead letters, or rules for messages that others have sent already."""
    sends_to: str = ""
    """Where those go, or those that no binding matches."""
    found: str = ""
    """The destination of the message that it shows."""


def option(help: str, *, metavar: str = "", word: str = "", audited: str = "", of: str = "", **bounds: Any) -> Meta:
    """The description of an option, its bounds, and where they differ: the `word` of the command for it, the field of
    the audit that has it, and of what it is a number.
    """
    return Meta(description=help, extra={"metavar": metavar, "word": word, "audited": audited, "of": of}, **bounds)


Scope = Annotated[
    Literal["node", "mesh"],
    option("Only what the node that answers has, not the whole mesh.", word="one-node"),
]
DryRun = Annotated[bool, option("Show what would happen, and change nothing.")]
Quorum = Annotated[bool, option("Wait until a majority of the nodes has the change.")]
Rates = Annotated[
    int, option("Measure for 1 to 5 seconds; show rates per second.", word="rates", metavar="SECONDS", ge=1, le=5)
]
Limit = Annotated[int, option("Most rows of one response.", of=" of rows", ge=1, le=1000)]
After = Annotated[str, option("Continue behind this row, which `next` of the page before names.")]


class Verb(Struct, kw_only=True, rename="kebab"):
    """A request that is not declared: it needs `administer`."""

    form: ClassVar[str] = ""
    """The request without /control/: its word, or two of them, and what follows."""
    right: ClassVar[Action] = Action.ADMINISTER
    subject: ClassVar[str] = "destination"
    """The field of the response and the audit that has what the request is about."""
    command: ClassVar[str] = ""
    """The command of `qmq` that asks it and shows the facts; "" for none, or one that shows them in its own way."""
    changes: ClassVar[bool] = False
    """Whether it changes something: an event of the audit, and over HTTP a POST."""
    takes_body: ClassVar[bool] = False
    is_job: ClassVar[bool] = False
    """Whether it may take long, and stops when its client leaves."""

    @classmethod
    def word(cls) -> str:
        """What names the verb."""
        first, second = (*re.split(r"\[?/", cls.form), "")[:2]
        return f"{first}/{second}" if first == "definitions" else first

    @classmethod
    def summary(cls) -> str:
        """The first line of its help."""
        return str(cls.__doc__).partition("\n")[0]

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """Of the destinations that it is about; none for a verb about something else."""
        found = re.search(r"/((queue|topic|fanout|exchange)[a-z|]*)/", cls.form)
        return () if found is None else tuple(found[1].split("|"))

    @classmethod
    def destination_of(cls, name: str) -> str:
        """The destination that a request is about, of what follows the word; "": none. What follows a verb that is
        about something else may look like one: a node may be named `queue`.
        """
        is_about_destination = not cls.form or cls.kinds()
        return f"/{name}" if is_about_destination and f"/{name}".startswith(KINDS) else ""

    @classmethod
    def needs(cls, about: str, headers: Mapping[str, str], effect: Effect | None) -> list[Need]:
        """The rights that a request needs; `effect` as for `needs_of`."""
        return [Need(cls.right, about)]

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> Self:
        """The options in the headers of a request. Raises Refused."""
        options = options_of(cls)
        given = {name: one.value(headers[name]) for name, one in options.items() if name in headers}
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            name = str(error).rpartition("`$.")[2].rstrip("`")
            code = "bad-header" if options[name].kind is bool else f"bad-{name}"
            raise Refused(code, f"The header {name} {options[name].rule}.") from None


class Showing(Verb):
    """A verb that changes nothing."""

    right = Action.OBSERVE


class Changing(Verb):
    """A verb that changes something."""

    changes = True

    dry_run: DryRun = False


class Defining(Changing):
    """A verb that changes definitions."""

    takes_body = True

    quorum: Quorum = False
    dry_run: Annotated[bool, option("Check everything, and change nothing.")] = False


class Option(NamedTuple):
    """One option of a verb: its type in Python, and what `option` says of it."""

    kind: Any
    meta: Meta
    word: str
    metavar: str
    audited: str
    of: str

    def value(self, text: str) -> Any:
        """What a header says; its text if that is no value of this type."""
        if self.kind is int:
            return int(text) if NUMBER.fullmatch(text) else text
        return TRUTH.get(text.lower(), text) if self.kind is bool else text

    @property
    def values(self) -> tuple[str, ...]:
        """All that there are; none where any text is one."""
        return get_args(self.kind)

    @property
    def rule(self) -> str:
        """What a header must be, for a refusal."""
        if self.kind is bool:
            return "is true or false"
        if self.kind is int:
            return f"is a number{self.of} from {self.meta.ge} to {self.meta.le}"
        if len(self.values) == 2:
            return f"is {' or '.join(self.values)}"
        return (
            f"is one of {', '.join(self.values)}" if self.values else f"has at most {self.meta.max_length} characters"
        )


@cache
def options_of(verb: type[Verb]) -> Mapping[str, Option]:
    """Header → its option, in the order of the declaration."""
    hints = get_type_hints(verb, include_extras=True)
    found: dict[str, Option] = {}
    for field in sorted(msgspec.structs.fields(verb), key=lambda field: field.name in ("quorum", "dry_run")):
        hint = hints[field.name]
        kind, meta = get_args(hint if get_origin(hint) is Annotated else get_args(hint)[0])
        found[field.encode_name] = Option(kind, meta, **meta.extra)
    return found


Options = TypeVar("Options", bound=Verb, covariant=True)


class VerbRequest(NamedTuple, Generic[Options]):
    """One SEND to `/control/VERB/…`. `about` is what follows the verb, with its slash; `principal` None: without
    login.
    """

    options: Options
    about: str
    headers: Mapping[str, str]
    principal: Principal | None = None
    address: str = ""
    session: int = 0
    body: bytes = b""
    value: Mapping[str, Any] | None = None
    """In place of a body, what a request says that is no text: one of another protocol than STOMP and HTTP."""

    @property
    def verb(self) -> str:
        return self.options.word()

    @property
    def user(self) -> str | None:
        return None if self.principal is None else self.principal.name

    @property
    def destination(self) -> str:
        """The control destination."""
        return f"{CONTROL}{self.verb}{self.about}"

    @property
    def is_mesh(self) -> bool:
        """Whether all nodes are asked."""
        return getattr(self.options, "scope", "node") == "mesh"

    @property
    def is_dry_run(self) -> bool:
        """Whether the response says what would happen, and nothing changes."""
        return getattr(self.options, "dry_run", False)
