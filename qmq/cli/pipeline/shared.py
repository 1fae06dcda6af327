"""Shared by the commands of all jobs: options of the source, a Spark session."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...address import table_place
from ...config.archives import read_iceberg_name
from ..options import together
from ..output import Failed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...spark.archive.iceberg import IcebergTable
    from ...spark.reading.options import Options

F = TypeVar("F", bound=Callable[..., Any])


class _LocalPath(click.types.StringParamType):
    """A path, or the host:port of a node."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from ...spark.reading.options import BadOption, local_path

        try:
            return local_path(value)
        except BadOption as error:
            self.fail(str(error), param, ctx)


class _Table(click.types.StringParamType):
    """A path, or an address of an object store."""

    name = "table"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return table_place(value)
        except ValueError as error:
            self.fail(f"it {error}", param, ctx)  # without the value, which may have keys


def _set_storage(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> None:
    """Options of a store are variables of the environment, where deltalake looks for those that are not given."""
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9_]+", name):
            raise click.UsageError("--storage-option must be NAME=VALUE, such as AWS_REGION=eu-west-1")
        os.environ[name.upper()] = value


def _iceberg_name(value: str | None) -> str | None:
    try:
        return None if value is None else read_iceberg_name(value)
    except ValueError as error:
        raise click.BadParameter(f"it {error}") from None


PATH = _LocalPath()
TABLE = _Table()
storage_option: Callable[[F], F] = click.option(
    "--storage-option",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_set_storage,
    expose_value=False,
    help="Of an object store, such as AWS_REGION=eu-west-1; the same as this variable of the environment.",
)
iceberg_option: Callable[[F], F] = click.option(
    "--iceberg",
    metavar="CATALOG.NAMESPACE.TABLE",
    callback=lambda ctx, param, value: _iceberg_name(value),
    help="Register the files of TABLE in this table of Iceberg, too.",
)
login_options: Callable[[F], F] = together(
    click.option(
        "--login", metavar="NAME", envvar="QMQ_LOGIN", help="Login name at the servers; by default from QMQ_LOGIN."
    ),
    click.option("--passcode", metavar="TEXT", envvar="QMQ_PASSCODE", help="Password; safer in QMQ_PASSCODE."),
    click.option("--cafile", metavar="FILE", help="Certificate authorities, for TLS with the servers."),
)
choosing_options: Callable[[F], F] = together(
    click.option(
        "--destination", "destinations", multiple=True, metavar="NAME", help="Only this destination; repeatable."
    ),
    click.option("--pattern", metavar="REGEX", help="Only destinations whose whole name matches."),
    click.option("--from", "begin", metavar="TIME", help="Only from this time on: ISO 8601, or ms since 1970."),
    click.option("--to", "end", metavar="TIME", help="Only before this time."),
)
source_options: Callable[[F], F] = together(
    click.option("--path", "paths", multiple=True, metavar="DIR", help="Data directory of a node; repeatable."),
    click.option("--servers", metavar="HOST:PORT,…", help="Live nodes to read, in place of --path."),
    login_options,
    choosing_options,
    click.option("--set", "more", multiple=True, metavar="NAME=VALUE", help="Any other option of format('qmq')."),
)


archive_option: Callable[[F], F] = together(
    click.option(
        "--archive", type=TABLE, metavar="TABLE", help="An archive to read, in place of --path and --servers."
    ),
    storage_option,
)


def removed_option(option: str, successor: str) -> Callable[[F], F]:
    """An option that there was: an error says what to do in its place."""

    def refuse(ctx: click.Context, param: click.Parameter, is_given: bool) -> None:
        if is_given:
            raise click.UsageError(f"{option} is gone: {successor}")

    text = f"Gone: {successor}."
    return click.option(option, is_flag=True, hidden=True, expose_value=False, callback=refuse, help=text)


def given_source(
    *,
    paths: tuple[str, ...],
    servers: str | None,
    login: str | None,
    passcode: str | None,
    cafile: str | None,
    destinations: tuple[str, ...],
    pattern: str | None,
    begin: str | None,
    end: str | None,
    more: tuple[str, ...],
    **fixed: str,
) -> dict[str, str]:
    """The command line as options of `format("qmq")`; `fixed` are those of the command itself."""
    from ...spark.reading.options import names_to_text

    given = {
        "path": ",".join(paths) if paths else None,
        "servers": servers,
        "login": login or None,
        "passcode": passcode or None,
        "cafile": cafile or None,
        # One empty name is an error, such as a shell variable that is not set: it must not mean all destinations.
        "subscribe": names_to_text(destinations) if any(destinations) else "" if destinations else None,
        "subscribePattern": pattern,
        "startingTimestamp": begin,
        "endingTimestamp": end,
        **fixed,
    }
    for text in more:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--set {text!r} must be NAME=VALUE")
        if given.get(name) not in (None, value):
            raise click.UsageError(f"--set {name} and another option of the command say this differently: give one")
        given[name] = value
    return {name: value for name, value in given.items() if value is not None}


def read_source(
    *,
    archive: str | None = None,
    needs_spark: bool = True,
    is_for_table: bool = False,
    **source: Any,
) -> "Options":
    """The options of `given_source`, checked; an archive takes the place of a path.

    Options of streams are refused, and so are those of a frame if it `is_for_table`: a table has its own columns, and
    begins where it ended.
    """
    if needs_spark:
        require_spark()
    from ...spark.reading.options import FRAME, ONE_READ, STREAMING, BadOption, read_options, refuse

    given = given_source(**source)
    if archive is not None:
        if source["paths"]:
            raise click.UsageError("give --archive or --path, not both")
    try:
        refuse(given, STREAMING, ONE_READ)
        if is_for_table:
            refuse(given, FRAME, "the table decides that")
        return read_options(given, of_archive=archive is not None)
    except BadOption as error:
        raise click.UsageError(str(error)) from error


def require(extra: str, *modules: str, then: str = "") -> None:
    """Raise Failed, with what to do, if one of the modules of the extra is not installed."""
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise Failed(f"this needs {error.name}: pip install 'qmq[{extra}]'{then}") from error


def iceberg_table(name: str | None, table: str) -> "IcebergTable | None":
    """The table of Iceberg with the files of `table`, if one is named."""
    if name is None:
        return None
    require("iceberg", "pyiceberg")
    from ...spark.archive.iceberg import IcebergTable

    return IcebergTable(name, table)


def require_spark() -> None:
    """The same for what most jobs need."""
    require("spark", "pyarrow", "pyspark", then=", then qmq pipeline doctor")


@contextmanager
def job(name: str, *sources: "Options | str") -> Iterator["SparkSession"]:
    """A session for one job. An error ends the command with one line.

    `sources`: the logs, nodes and archives that it reads. They are asked before a JVM starts, which takes seconds.
    """
    require_spark()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from ...spark.archive.table import open_table
    from ...spark.reading.place import open_place
    from ...spark.session import running

    try:
        with failures_in_one_line():
            for source in sources:
                if isinstance(source, str):
                    open_table(source)
                else:
                    open_place(source).close()
            with running(f"qmq {name}") as spark:
                yield spark
    except (PySparkException, Py4JError) as error:
        raise Failed(first_line(str(error))) from error


def first_line(text: str) -> str:
    """The useful part of an error of Spark: what a worker has raised last, else the first line."""
    raised = _RAISED.findall(text.partition("Traceback (most recent call last):\n")[2])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return in_one_line(raised[-1] if raised else lines[0] if lines else "Spark failed without a message")


_RAISED = re.compile(r"^(?!org\.|java\.)[A-Za-z_][\w.]*: (.+(?:\n.*↳.*)*)", re.MULTILINE)
"""The end of a traceback of Python, with the causes that an object store adds."""
_ARROW = re.compile(r"\s*(?:\x1b\[[0-9;]*m)?↳(?:\x1b\[[0-9;]*m)?\s*")
_KEYS = re.compile(r"(?<=://)(?<!abfss://)[^\s/@]*@|(?<=\bhttp)(s?://[^\s?]+)\?\S*")


def in_one_line(error: BaseException | str) -> str:
    """What an error says, also one of an object store. Without what addresses may have of keys: user and password, and
    queries, which may be signed.
    """
    text = " ".join(_ARROW.sub(": ", str(error)).split())
    return _KEYS.sub(r"\1", text) or type(error).__name__


@contextmanager
def failures_in_one_line() -> Iterator[None]:
    """Errors of Delta and of the system as errors of a command."""
    from deltalake.exceptions import DeltaError

    from ...spark.reading.options import BadOption

    try:
        yield
    except (BadOption, OSError, DeltaError) as error:
        raise Failed(in_one_line(Failed.by(error).message)) from error
