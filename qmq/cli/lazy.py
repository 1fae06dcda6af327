"""A group of commands that are imported only when they run, so that its `--help` is fast."""

import gc
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from ..errors import ConfigError, QmqError
from .output import ConfigFailed, Failed

Table = Mapping[str, tuple[str, str]]
"""Name → the command as `module:attribute`, and its first line of help."""


@contextmanager
def without_collections() -> Iterator[None]:
    """Around imports: what they make stays, and to examine it again and again is 7 % of a node's start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class LazyGroup(click.Group):
    """Finds commands in its table, and turns errors of the package into a message and an exit code."""

    def __init__(self, *arguments: Any, table: Table, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self._table = table

    def summaries(self) -> dict[str, str]:
        """Name → first line of help."""
        return {name: summary for name, (_, summary) in self._table.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module, _, attribute = self._table[cmd_name][0].partition(":")
        with without_collections():
            command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries().items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise ConfigFailed(error.diagnostics) from error
        except QmqError as error:
            raise Failed(str(error)) from error
