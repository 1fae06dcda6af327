"""Passwords of users: read from the standard input, and hashed before they leave this process."""

import sys

import click


def password_on_stdin() -> str:
    """Its first line. Raises UsageError if that is no UTF-8."""
    try:
        line = sys.stdin.buffer.readline().decode()
    except UnicodeDecodeError:
        raise click.UsageError("the password is not UTF-8") from None
    return line.removesuffix("\n").removesuffix("\r")


def hash_of(password: str) -> str:
    """With the parameters of argon2-cffi. Raises UsageError for an empty one."""
    if not password:
        raise click.UsageError("the password is empty")
    from argon2 import PasswordHasher

    return PasswordHasher().hash(password)
