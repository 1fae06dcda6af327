"""TLS of one node: contexts made from files, and replaced if the files have changed (at SIGHUP).

Each new handshake asks for the context (`qmq.environment.Tls`), so all of it is what the files say. OpenSSL removes
nothing from a context once it is loaded. Existing connections keep their context.
"""

import hashlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from qmq.config import TlsSettings
from qmq.config.certificates import expiry_of, last_expiry, no_password, refuse_revoked
from qmq.environment import Tls
from qmq.errors import ConfigError

EXTENSIONS: Final = 0xA3
"""Tag of the extensions in a certificate (RFC 5280, 4.1)."""
EXTENDED_KEY_USAGE: Final = bytes.fromhex("551d25")
SERVER_USES: Final = (bytes.fromhex("2b06010505070301"), bytes.fromhex("551d2500"))
"""serverAuth, and any use (RFC 5280, 4.2.1.12)."""


class _FromNode(ssl.SSLObject):
    """The listening side of a link. OpenSSL checks there that the other certificate may be shown by a client, as those
    of clients may. A node is dialled, too: so a certificate for clients only is refused.
    """

    def do_handshake(self) -> None:
        super().do_handshake()
        if not may_serve(self.getpeercert(binary_form=True) or b""):
            raise ssl.SSLCertVerificationError("the certificate is for clients, not for nodes (extendedKeyUsage)")


@dataclass(slots=True)
class Made:
    """A context, the digest of the files from which it was made, and when its certificate and its authorities expire
    (`expiry_of`, `last_expiry`), by file.
    """

    context: ssl.SSLContext
    purpose: ssl.Purpose
    tls: TlsSettings
    digest: bytes
    expiries: dict[str, float]
    of_links: bool
    users: str
    """What shows the certificate, for a reader."""

    def current(self) -> ssl.SSLContext:
        return self.context


class Certificates:
    """All contexts of one node."""

    def __init__(self) -> None:
        self._all: list[Made] = []

    def for_clients(self, tls: TlsSettings, users: str = "listeners") -> Tls:
        """For client listeners, which are named `users` in reports. With `ca`, only clients with a certificate that it
        has signed are admitted.

        Raises OSError that names the file which cannot be used.
        """
        return self._make(ssl.Purpose.CLIENT_AUTH, tls, users)

    def for_links(self, tls: TlsSettings) -> tuple[Tls, Tls]:
        """For links: (to listen, to dial). Both sides show a certificate signed by `ca`.

        Raises OSError that names the file which cannot be used.
        """
        assert tls.ca is not None, "the configuration was checked"
        listening = self._make(ssl.Purpose.CLIENT_AUTH, tls, "links", of_links=True)
        return listening, self._make(ssl.Purpose.SERVER_AUTH, tls, "links")

    def _make(self, purpose: ssl.Purpose, tls: TlsSettings, users: str, *, of_links: bool = False) -> Tls:
        made = _made(purpose, tls, of_links, users)
        self._all.append(made)
        return made.current

    def changed(self) -> list[tuple[Made, Made]]:
        """The contexts whose files have changed, and their replacements: tried but not yet used. Blocks.

        Raises ConfigError that names what cannot be used.
        """
        found: list[tuple[Made, Made]] = []
        problems: dict[str, None] = {}
        for known in self._all:
            try:
                if _digest(known.tls) != known.digest:
                    found.append((known, _made(known.purpose, known.tls, known.of_links, known.users)))
            except OSError as error:
                problems[str(error)] = None
        if problems:
            raise ConfigError(list(problems))
        return found

    def take_up(self, changed: list[tuple[Made, Made]]) -> list[Path]:
        """Use these from now on; returns their files."""
        for known, renewed in changed:
            known.context, known.digest, known.expiries = renewed.context, renewed.digest, renewed.expiries
        return list(dict.fromkeys(known.tls.certificate for known, _ in changed))

    def expiries(self) -> dict[str, float]:
        """Files of certificates in use, each with what uses it, and when they expire, in seconds since 1970."""
        uses: dict[tuple[str, float], dict[str, None]] = {}
        for made in self._all:
            for one in made.expiries.items():
                uses.setdefault(one, {})[made.users] = None
        return {f"{file} ({', '.join(users)})": at for (file, at), users in uses.items()}


def _made(purpose: ssl.Purpose, tls: TlsSettings, of_links: bool, users: str) -> Made:
    # The digest first: a change in between is then found the next time.
    digest = _digest(tls)
    made = _context(purpose, tls)
    if of_links and purpose is ssl.Purpose.CLIENT_AUTH:
        made.sslobject_class = _FromNode
    expiries = {str(tls.certificate.absolute()): expiry_of(tls)}
    if tls.ca is not None:
        expiries[str(tls.ca.absolute())] = last_expiry(made)
    return Made(made, purpose, tls, digest, expiries, of_links, users)


def _digest(tls: TlsSettings) -> bytes:
    """Raises OSError with the name of a file that cannot be read; OpenSSL's own error does not name it."""
    found = hashlib.sha256()
    for path in (tls.certificate, tls.key, tls.ca, tls.crl):
        if path is not None:
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.digest()


def _context(purpose: ssl.Purpose, tls: TlsSettings) -> ssl.SSLContext:
    """TLS with these files; the other side has to show a certificate where there is a `ca`."""
    try:
        made = ssl.create_default_context(purpose, cafile=tls.ca)
    except ssl.SSLError as error:
        raise OSError(f"{tls.ca}: no certificate in PEM form: {error}") from error
    if tls.ca is not None:
        made.verify_mode = ssl.CERT_REQUIRED
    try:
        refuse_revoked(made, tls)
    except ssl.SSLError as error:
        raise OSError(f"{tls.crl}: no list of revoked certificates in PEM form: {error}") from error
    try:
        made.load_cert_chain(tls.certificate, tls.key, partial(no_password, tls.key))
    except ssl.SSLError as error:
        raise OSError(f"{tls.certificate} and {tls.key}: no certificate with its key in PEM form: {error}") from error
    return made


def may_serve(certificate: bytes) -> bool:
    """Whether a server may show this certificate (DER, as OpenSSL has verified it): all that do not say how they may be
    used, and those that say so.
    """
    for tag, content in _der(certificate, 2):
        if tag == EXTENSIONS:
            for _, extension in _der(content, 1):
                name, *_, value = (part for _, part in _der(extension))
                if name == EXTENDED_KEY_USAGE:
                    return any(use in SERVER_USES for _, use in _der(value, 1))
    return True


def _der(data: bytes, depth: int = 0) -> Iterator[tuple[int, bytes]]:
    """Tags and contents of what follows each other in `data`, or in the first content of it, and so on."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size > 0x7F:  # so many bytes have the size
            at, size = at + size % 0x80, int.from_bytes(data[at : at + size % 0x80])
        content = data[at : at + size]
        if depth:
            yield from _der(content, depth - 1)
            return
        yield tag, content
        at += size
