"""`qmq serve`: one node in this process."""

import json
import logging
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import click

from qmq.engine.runtime.log_events import facts_of

from ..address import Address
from ..config import load
from ..config.certificates import FATAL, REFUSED, check_certificates
from ..config.node import MEMORY
from ..errors import ConfigError
from ..protocols import declarations
from .lazy import without_collections
from .options import node_options, overrides, read_optional_address
from .output import INVISIBLE

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

log = logging.getLogger("qmq.node")

NO_TEXT: Final = re.compile(rf"[\x00-\x1f{INVISIBLE}]")
escaped: Final = partial(NO_TEXT.sub, lambda found: ascii(found[0])[1:-1])
"""As one line that a terminal only shows."""


class LineFormatter(logging.Formatter):
    """One line for each message, and traceback lines are indented: no name that a client chose looks like a line of the
    node, or controls a terminal.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(f"  {escaped(line)}" for line in super().formatException(ei).splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object for each line: `time` (RFC 3339, UTC), `level`, `logger`, `node`, `message`.

    A line about an event also has the fields of the event as on `/system/events`; its `message` is that of the event. A
    failure has its traceback in `exception`. All else than ASCII is escaped.
    """

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "node": self._node,
            "message": record.getMessage(),
            **facts_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as_json(node: str, handler: logging.Handler) -> Callable[[str], None]:
    """From now on all lines of this process are JSON, also warnings of Python and the failure that ends it.

    Returns a function that logs an error.
    """
    handler.setFormatter(JsonFormatter(node))
    logging.captureWarnings(True)

    def log_failure(kind: type[BaseException], failure: BaseException, trace: TracebackType | None) -> None:
        log.critical("the node failed", exc_info=(kind, failure, trace))

    sys.excepthook = log_failure
    return partial(log.critical, "%s")


@click.command
@node_options
@click.option(
    "--memory",
    is_flag=True,
    help="Write no file: keep everything in memory, and lose it when the node stops. Excludes --data.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=read_optional_address,
    help="Serve clients at this address. Not allowed if the node file has [[stomp]].",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    show_default=True,
    help="Lowest level of log lines on stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    show_default=True,
    help="Format of log lines: text, or one JSON object for each.",
)
@click.option("--until-eof", is_flag=True, help="Also stop when standard input, a pipe, ends.")
@click.option(
    "--trust-clock",
    is_flag=True,
    help="Trust the clock of this machine, even if its disk and peers disagree.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Apply all entries of [definitions], also those that operators have changed or deleted since.",
)
def serve(
    config_file: Path | None,
    peers_file: Path | None,
    node_name: str | None,
    data: Path | None,
    memory: bool,
    listen: Address | None,
    log_level: str,
    log_format: str,
    until_eof: bool,
    trust_clock: bool,
    force: bool,
) -> None:
    """Run one node until it is stopped.

    Without options, this is a single node without login: STOMP on 127.0.0.1:61613, HTTP on 127.0.0.1:61680, and its
    data in ./qmq-data.
    With a peers file, --node (or the name in the node file) selects the node of the file.

    SIGTERM or Ctrl-C drains the node: it takes no new connections, records what it has accepted, and stops.
    SIGHUP reads the files again and applies all changes, or none of them and logs the reason.
    """
    if memory and data is not None:
        raise click.UsageError("--memory excludes --data")
    given = overrides(data, listen) | ({"data": MEMORY} if memory else {})
    if config_file is None and peers_file is None and listen is None:
        given |= {one.name: ({"address": str(one.default)},) for one in declarations() if one.default is not None}
    read = partial(load, config_file, peers_file, node_name, given)
    settings, peers = read()
    papers = check_certificates(settings, config_file, peers)
    if unusable := [one.text for one in papers if one.severity == FATAL]:
        raise ConfigError(unusable)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    for one in papers:
        if one.severity == REFUSED:
            log.warning("! %s", one.text)
    # Imported last: an error in a file is printed without waiting until the whole server is loaded.
    with without_collections():
        from qmq.node.main import print_error
        from qmq.node.main import serve as run

    report = log_as_json(settings.name, handler) if log_format == "json" else print_error
    has_files = config_file is not None or peers_file is not None
    read_again = read if has_files else None
    sys.exit(
        run(
            settings,
            peers,
            read_again,
            report=report,
            until_eof=until_eof,
            trusts_clock=trust_clock,
            forces_definitions=force,
        )
    )
