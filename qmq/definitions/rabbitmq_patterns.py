"""Regular expressions of RabbitMQ as names and prefixes, which are the patterns of QMQ.

RabbitMQ searches: an expression without `^` also matches inside a name. So only these have a counterpart: a literal
between `^` and `$`, one behind `^` (a prefix), everything (`.*`), and alternations of these, with or without
parentheses: `^(orders|invoices\\.eu)$`, `^a$|^b\\..*`.
"""

from typing import Final, NamedTuple

PATTERNS_MAX: Final = 64
"""Of one expression; one with more has no counterpart."""

DEPTH_MAX: Final = 8
"""Parentheses inside each other; likewise."""

_SPECIAL: Final = frozenset(".^$*+?()[]{}|")
_ESCAPED: Final = _SPECIAL | frozenset("\\-_/ :@#&~,;=!<>%\"'")


class NamePattern(NamedTuple):
    """A name, or with `is_prefix` all names that begin so."""

    text: str
    is_prefix: bool

    def matches(self, name: str) -> bool:
        """Whether `name` is meant."""
        return name.startswith(self.text) if self.is_prefix else name == self.text

    @property
    def pattern(self) -> str:
        """Behind `/queue/` or `/exchange/`."""
        return f"{self.text}*" if self.is_prefix else self.text


class _NoCounterpart(Exception):
    """The expression means something that no list of names and prefixes does."""


def parts_of(expression: str) -> list[NamePattern] | None:
    """What `expression` matches, none twice; empty for `^$`. None: it has no counterpart."""
    try:
        found = [part for branch in _branches(expression) for part in _branch(branch)]
    except _NoCounterpart:
        return None
    # A part that another one covers says nothing.
    kept = [
        part
        for part in dict.fromkeys(found)
        if not any(other.is_prefix and other.matches(part.text) and other != part for other in found)
    ]
    names = [part for part in kept if part.text or part.is_prefix]
    if len(names) > PATTERNS_MAX or any("*" in part.text or "#" in part.text for part in names):
        return None
    return names


def _branches(expression: str) -> list[str]:
    """The alternatives of `expression`, outside of parentheses."""
    found: list[str] = []
    depth = begin = at = 0
    while at < len(expression):
        character = expression[at]
        if character == "\\":
            at += 1
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "|" and depth == 0:
            found.append(expression[begin:at])
            begin = at + 1
        at += 1
    if depth:
        raise _NoCounterpart
    return [*found, expression[begin:]]


def _branch(branch: str) -> list[NamePattern]:
    if branch in ("", ".*", ".*$"):
        return [NamePattern("", True)]
    if not branch.startswith("^"):
        raise _NoCounterpart
    parts = _sequence(branch[1:], 0)
    if _ends(branch):
        return parts
    return [NamePattern(part.text, True) for part in parts]


def _ends(branch: str) -> bool:
    """Whether a `$` that is none of the name ends it."""
    stem = branch.removesuffix("$")
    return stem != branch and (len(stem) - len(stem.rstrip("\\"))) % 2 == 0


def _sequence(text: str, depth: int) -> list[NamePattern]:
    """What a sequence of literals, groups and a last `.*` stands for, a `$` at its end left out."""
    if depth > DEPTH_MAX:
        raise _NoCounterpart
    if depth == 0 and _ends(text):
        text = text[:-1]
    parts = [NamePattern("", False)]
    at = 0
    while at < len(text):
        if any(part.is_prefix for part in parts):
            raise _NoCounterpart
        character = text[at]
        if text.startswith(".*", at):
            parts = [NamePattern(part.text, True) for part in parts]
            at += 2
        elif character == "(":
            end = _group_end(text, at)
            inside = text[at + 1 : end].removeprefix("?:")
            tails = [part for branch in _branches(inside) for part in _sequence(branch, depth + 1)]
            parts = [NamePattern(part.text + tail.text, tail.is_prefix) for part in parts for tail in tails]
            at = end + 1
        elif character == "\\" and at + 1 < len(text) and text[at + 1] in _ESCAPED:
            parts = [NamePattern(part.text + text[at + 1], False) for part in parts]
            at += 2
        elif character == "\\" or character in _SPECIAL or not character.isprintable():
            raise _NoCounterpart
        else:
            parts = [NamePattern(part.text + character, False) for part in parts]
            at += 1
        if at < len(text) and text[at] in "*+?{":
            raise _NoCounterpart
        if len(parts) > PATTERNS_MAX:
            raise _NoCounterpart
    return parts


def _group_end(text: str, begin: int) -> int:
    depth = 0
    at = begin
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "(":
            depth += 1
        elif text[at] == ")":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise _NoCounterpart
