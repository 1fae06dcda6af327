"""TLS of one node: contexts made of files, which take up what has changed in the files (at SIGHUP).

A context that is in use shows a renewed certificate in the handshakes that follow; connections that are there keep
theirs. What a changed `ca` adds is trusted from then on; what it leaves out is trusted until a restart, because OpenSSL
takes nothing back.
"""

import hashlib
import ssl
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from qmq.config import TlsSettings
from qmq.errors import ConfigError


@dataclass(slots=True)
class Made:
    """A context, and the digest of the files that it was made of."""

    context: ssl.SSLContext
    purpose: ssl.Purpose
    tls: TlsSettings
    digest: bytes


class Certificates:
    """All contexts of one node."""

    def __init__(self) -> None:
        self._made: list[Made] = []

    def for_clients(self, tls: TlsSettings) -> ssl.SSLContext:
        """To let clients in; with `ca`, only those that show a certificate it has signed.

        Raises OSError that names the file which cannot be used.
        """
        return self._make(ssl.Purpose.CLIENT_AUTH, tls)

    def for_links(self, tls: TlsSettings) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """For links: (to listen, to dial). Both sides show a certificate signed by `ca`.

        Raises OSError that names the file which cannot be used.
        """
        assert tls.ca is not None, "the configuration was checked"
        return self._make(ssl.Purpose.CLIENT_AUTH, tls), self._make(ssl.Purpose.SERVER_AUTH, tls)

    def _make(self, purpose: ssl.Purpose, tls: TlsSettings) -> ssl.SSLContext:
        digest = _digest(tls)
        context = _context(purpose, tls)
        self._made.append(Made(context, purpose, tls, digest))
        return context

    def changed(self) -> list[tuple[Made, bytes]]:
        """Whose files say something else now, and their digest: tried but not taken up. Blocks.

        Raises ConfigError with what cannot be used.
        """
        found: list[tuple[Made, bytes]] = []
        mistakes: dict[str, None] = {}
        for made in self._made:
            try:
                digest = _digest(made.tls)
                if digest != made.digest:
                    _context(made.purpose, made.tls)
                    found.append((made, digest))
            except OSError as error:
                mistakes[str(error)] = None
        if mistakes:
            raise ConfigError(list(mistakes))
        return found

    def take_up(self, changed: list[tuple[Made, bytes]]) -> list[Path]:
        """Show these from now on; returns their files.

        Raises OSError when these have changed once more, and cannot be used now.
        """
        for made, digest in changed:
            if made.tls.ca is not None:
                made.context.load_verify_locations(made.tls.ca)
            _show(made.context, made.tls)
            made.digest = digest
        return list(dict.fromkeys(made.tls.certificate for made, _ in changed))


def _digest(tls: TlsSettings) -> bytes:
    """Raises OSError with the name of a file that cannot be read; what OpenSSL says lacks it."""
    found = hashlib.sha256()
    for path in (tls.certificate, tls.key, tls.ca):
        if path is not None:
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.digest()


def _context(purpose: ssl.Purpose, tls: TlsSettings) -> ssl.SSLContext:
    """TLS with these files; the other side has to show a certificate where there is a `ca`."""
    try:
        context = ssl.create_default_context(purpose, cafile=tls.ca)
    except ssl.SSLError as error:
        raise OSError(f"{tls.ca}: no certificate in PEM form: {error}") from error
    if tls.ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    _show(context, tls)
    return context


def _show(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Let a context show the certificate that is in the files."""
    try:
        context.load_cert_chain(tls.certificate, tls.key, partial(_no_password, tls.key))
    except ssl.SSLError as error:
        raise OSError(f"{tls.certificate} and {tls.key}: no certificate with its key in PEM form: {error}") from error


def _no_password(key: Path) -> str:
    """Asked for by OpenSSL, which else would ask at the terminal and keep the whole node waiting."""
    raise OSError(f"{key}: is encrypted; a node has nobody who could type a password")
