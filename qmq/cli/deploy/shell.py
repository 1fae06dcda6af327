"""`qmq completion` and `qmq man`: for shells and for `man`, both from the declarations of the commands."""

import re
import textwrap
from collections.abc import Iterator

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_QMQ_COMPLETE"
"""The shell sets it, and then the command prints completions (click)."""


@click.command
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion of commands and options for a shell.

    \b
    bash  qmq completion bash > ~/.local/share/bash-completion/completions/qmq
    zsh   qmq completion zsh > a file _qmq in a folder of $fpath
    fish  qmq completion fish > ~/.config/fish/completions/qmq.fish
    """
    made = get_completion_class(shell)
    assert made is not None, "click knows all of SHELLS"
    root = click.get_current_context().find_root().command
    completer = made(root, {}, "qmq", VARIABLE)
    click.echo(completer.source_template % completer.source_vars())


@click.command
def man() -> None:
    """Print the manual page of all commands.

    For example: qmq man > /usr/local/share/man/man1/qmq.1
    """
    context = click.get_current_context().find_root()
    click.echo("\n".join(_page(context.command)))


def _page(root: click.Command) -> Iterator[str]:
    first, _, description = str(root.help).partition("\n")
    yield ".TH QMQ 1"
    yield from (
        ".SH NAME",
        rf"qmq \- {_text(first.removeprefix('QMQ: '))}",
        ".SH SYNOPSIS",
        ".B qmq",
        "COMMAND [OPTIONS]",
    )
    yield ".SH DESCRIPTION"
    yield from _paragraphs(description)
    yield ".SH COMMANDS"
    assert isinstance(root, click.Group)
    yield from _commands(root, click.Context(root, info_name="qmq"))


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        own = click.Context(command, info_name=name, parent=context)
        yield f'.SS "{_text(own.command_path)} {_text(" ".join(command.collect_usage_pieces(own)))}"'
        yield from _paragraphs(str(command.help))
        for parameter in command.get_params(own):
            record = parameter.get_help_record(own)
            if record is not None and record[1] and record[0] != "-h, --help":
                yield from (".TP", f".B {_text(record[0])}", _text(record[1]))
        if isinstance(command, click.Group):
            yield from _commands(command, own)


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a help text; those that begin with \\b keep their lines."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        lines = [line for line in paragraph.splitlines() if line.strip() != "\b"]
        is_kept = len(lines) < len(paragraph.splitlines())
        yield ".PP"
        if is_kept:
            yield from (".nf", *map(_text, textwrap.dedent("\n".join(lines)).splitlines()), ".fi")
        else:
            yield from (_text(line.strip()) for line in lines)


def _text(text: str) -> str:
    """As roff: no character of it is a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
