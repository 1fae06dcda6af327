"""What every job's command shares: where to read, what of it, a session, a bar that shows how far it is."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..options import together
from ..output import Failed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...spark.options import Options

F = TypeVar("F", bound=Callable[..., Any])


class _LocalPath(click.types.StringParamType):
    """A path, or a node's host:port; no address of something that is not mounted here."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from ...spark.options import BadOption, local_path

        try:
            return local_path(value)
        except BadOption as error:
            self.fail(str(error), param, ctx)


PATH = _LocalPath()
login_options: Callable[[F], F] = together(
    click.option("--login", metavar="NAME", envvar="QMQ_LOGIN", help="Login name at the servers, also from QMQ_LOGIN."),
    click.option("--passcode", metavar="TEXT", envvar="QMQ_PASSCODE", help="Password, better from QMQ_PASSCODE."),
    click.option("--cafile", metavar="FILE", help="Certificate authorities, for TLS with the servers."),
)
choosing_options: Callable[[F], F] = together(
    click.option("--destination", "destinations", multiple=True, metavar="NAME", help="Only this one; repeatable."),
    click.option("--pattern", metavar="REGEX", help="Only destinations that this matches as a whole."),
    click.option("--from", "begin", metavar="TIME", help="Only what is not older: ISO 8601, or ms since 1970."),
    click.option("--to", "end", metavar="TIME", help="Only what is older."),
)
source_options: Callable[[F], F] = together(
    click.option("--path", "paths", multiple=True, metavar="DIR", help="Data directory of a node; repeatable."),
    click.option("--servers", metavar="HOST:PORT,…", help="Live nodes to read from, instead of --path."),
    login_options,
    choosing_options,
    click.option("--set", "more", multiple=True, metavar="NAME=VALUE", help="Any other option of format('qmq')."),
)


archive_option: Callable[[F], F] = click.option(
    "--archive", type=PATH, metavar="TABLE", help="An archive to read, instead of --path and --servers."
)


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
    """What the command line says, as options of `format("qmq")`; `fixed` are the command's own."""
    from ...spark.options import names_to_text

    given = {
        "path": ",".join(paths) if paths else None,
        "servers": servers,
        "login": login or None,
        "passcode": passcode or None,
        "cafile": cafile or None,
        # One empty name is a mistake, such as a variable of the shell that is not set: it must not mean everything.
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
        given[name] = value
    return {name: value for name, value in given.items() if value is not None}


def read_source(*, archive: str | None = None, **source: Any) -> "Options":
    """The same, checked. Takes what `given_source` takes, and an archive that stands for a path."""
    require_spark()
    from ...spark.options import BadOption, read_options

    given = given_source(**source)
    if archive is not None:
        if source["paths"]:
            raise click.UsageError("say --archive or --path, not both")
        given = {**{key: value for key, value in given.items() if key != "servers"}, "path": archive}
    try:
        return read_options(given)
    except BadOption as error:
        raise click.UsageError(str(error)) from error


def require_spark() -> None:
    """Raises Failed with what to do when the extra is not installed."""
    try:
        import pyarrow  # noqa: F401  # only to see that it is there
        import pyspark  # noqa: F401
    except ImportError as error:
        raise Failed(f"the pipeline needs {error.name}: pip install 'qmq[spark]', then qmq pipeline doctor") from error


@contextmanager
def job(name: str) -> Iterator["SparkSession"]:
    """A session for one job. What cannot be done ends the command with one line."""
    require_spark()
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from ...spark.options import BadOption
    from ...spark.session import running

    try:
        with running(f"qmq {name}") as spark:
            yield spark
    except (BadOption, OSError) as error:
        raise Failed(str(error)) from error
    except (PySparkException, Py4JJavaError) as error:
        raise Failed(_first_line(str(error))) from error


@contextmanager
def progress(label: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr; nothing when `quiet` or when nobody would see it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def tell(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield tell


def _first_line(text: str) -> str:
    """What a person needs of Spark's error: the last line of a worker's traceback, else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith(("qmq.", "pyspark.errors")) and ": " in line:
            return line.partition(": ")[2]
    return lines[0] if lines else "Spark failed without a word"
