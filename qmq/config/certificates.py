"""The TLS files that a node file names: whether a node can use them, and whether other sides will accept them.

Python shows a certificate only to a connection that has verified it. So these checks make handshakes in memory. All of
this blocks.
"""

import ssl
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from qmq.address import ip_of
from qmq.protocols.declaration import TlsSettings

from .node import LISTENERS, NodeSettings
from .peers import PeersFile
from .toml_lines import LineIndex

HANDSHAKE_STEPS: Final = 3
"""Of each side. TLS 1.2 needs the most."""

X509_NOT_YET_VALID: Final = 9
X509_EXPIRED: Final = 10
"""X509_V_ERR_CERT_… (OpenSSL, verify(1))."""

FATAL: Final = "fatal"
"""A node cannot start with it."""
REFUSED: Final = "refused"
"""A node starts, and its peers or clients refuse the certificate."""
DOUBTFUL: Final = "doubtful"
"""Clients that use this address refuse the certificate; they may all use another name."""


class CertificateFinding(NamedTuple):
    """Something wrong with a file; `text` names file, line and key."""

    text: str
    severity: str


class _TlsProblem(NamedTuple):
    key: str
    why: str
    severity: str = REFUSED


def check_certificates(settings: NodeSettings, file: Path | None, peers: PeersFile | None) -> list[CertificateFinding]:
    """What is wrong with the TLS files of `file`, whose settings these are.

    A file without the name of a node is for all nodes of `peers`: then a certificate has to name one of them.
    """
    has_name = "name" in settings.set_keys or peers is None
    nodes = [settings.name] if has_name or peers is None else [peer.name for peer in peers.nodes]
    clients = {peer.client.host for peer in peers.nodes if peer.name in nodes} if peers is not None else set()
    lines = LineIndex(file.read_text("utf-8")) if file is not None else None
    found = []
    for place, tls, problems in _sections(settings, nodes, clients):
        for problem in problems:
            location = (*place, "tls", problem.key)
            line = lines.find(location) if lines is not None else None
            key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
            where = f"{file or 'settings'}{f':{line}' if line is not None else ''}"
            found.append(
                CertificateFinding(f"{where}: {key}: {getattr(tls, problem.key)}: {problem.why}", problem.severity)
            )
    return found


def _sections(
    settings: NodeSettings, nodes: Collection[str], clients: Collection[str]
) -> Iterator[tuple[tuple[str | int, ...], TlsSettings, list[_TlsProblem]]]:
    """Each `tls` of the file: where it is, and what is wrong."""
    if settings.mesh.tls is not None:
        yield ("mesh",), settings.mesh.tls, _link_problems(settings.mesh.tls, nodes)
    for key in LISTENERS:
        for number, one in enumerate(getattr(settings, key)):
            if one.tls is not None:
                hosts = clients if one.address.is_wildcard else {one.address.host}
                if one.address.is_loopback:
                    hosts = ()
                yield (key, number), one.tls, _listener_problems(one.tls, hosts)


def _link_problems(tls: TlsSettings, nodes: Collection[str]) -> list[_TlsProblem]:
    """As a node checks the certificate of a peer, on both sides of a link."""
    problems = _file_problems(tls)
    if problems:
        return problems
    assert tls.ca is not None, "the configuration was checked"
    # As strict as the links are, which differs between versions of Python.
    purposes = (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH)
    sides = [ssl.create_default_context(purpose, cafile=tls.ca) for purpose in purposes]
    refuse_revoked(sides[0], tls)
    for side in sides:
        side.check_hostname = False
        side.verify_mode = ssl.CERT_REQUIRED
        side.load_cert_chain(tls.certificate, tls.key, partial(no_password, tls.key))
    try:
        shown = handshake(*sides)
    except ssl.SSLCertVerificationError as error:
        return [_TlsProblem("certificate", f"peers refuse it: {error.verify_message} (checked with {tls.ca})")]
    except ssl.SSLError as error:
        return [_TlsProblem("certificate", f"peers refuse it: {error.reason or error}")]
    names = _names(shown, "DNS")
    if names.isdisjoint(nodes):
        wanted = f"the node {nodes[0]}" if isinstance(nodes, list) and len(nodes) == 1 else "a node of the peers file"
        return [_TlsProblem("certificate", f"names {', '.join(sorted(names)) or 'no DNS name'}, not {wanted}")]
    return []


def _listener_problems(tls: TlsSettings, hosts: Collection[str]) -> list[_TlsProblem]:
    """As clients check the certificate that use an address with one of these hosts."""
    problems = _file_problems(tls)
    if problems or not hosts:
        return problems
    try:
        shown = _shown(tls)
    except ssl.SSLCertVerificationError:
        shown = None
    if shown is None:
        return []
    names = _names(shown, "DNS") | _names(shown, "IP Address")
    if any(_matches(host, name) for host in hosts for name in names):
        return []
    why = f"names {', '.join(sorted(names)) or 'nothing'}: clients that use the address {sorted(hosts)[0]} refuse it"
    return [_TlsProblem("certificate", why, DOUBTFUL)]


def _matches(host: str, name: str) -> bool:
    if (ip := ip_of(host)) is not None:
        return ip == ip_of(name)
    return host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:])


def _file_problems(tls: TlsSettings) -> list[_TlsProblem]:
    """What is wrong with the files themselves."""
    problems = []
    for key in ("certificate", "key", "ca", "crl"):
        path = getattr(tls, key)
        if path is not None:
            try:
                path.open("rb").close()
            except OSError as error:
                problems.append(_TlsProblem(key, f"cannot be read: {error.strerror}", FATAL))
    if problems:
        return problems
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.key, partial(no_password, tls.key))
    except ssl.SSLError as error:
        is_other = error.reason == "KEY_VALUES_MISMATCH"
        why = (
            f"is not the key of {tls.certificate}" if is_other else f"is no key in PEM form, or {tls.certificate} none"
        )
        problems.append(_TlsProblem("key", why, FATAL))
    except OSError as error:
        problems.append(_TlsProblem("key", str(error).removeprefix(f"{tls.key}: "), FATAL))
    else:
        try:
            _shown(tls)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code in (X509_EXPIRED, X509_NOT_YET_VALID):
                is_over = error.verify_code == X509_EXPIRED
                problems.append(_TlsProblem("certificate", "has expired" if is_over else "is not valid yet"))
    if tls.ca is not None:
        try:
            context.load_verify_locations(tls.ca)
        except ssl.SSLError:
            problems.append(_TlsProblem("ca", "is no certificate in PEM form", FATAL))
        else:
            if last_expiry(context) <= time.time():
                problems.append(_TlsProblem("ca", "has expired"))
    try:
        refuse_revoked(context, tls)
    except ssl.SSLError:
        problems.append(_TlsProblem("crl", "is no list of revoked certificates in PEM form", FATAL))
    return problems


def refuse_revoked(side: ssl.SSLContext, tls: TlsSettings) -> None:
    """Refuse certificates of the other side that `crl` names, if there is one. Raises SSLError if it is no list."""
    if tls.crl is not None:
        before = side.cert_store_stats()["crl"]
        side.load_verify_locations(tls.crl)
        if side.cert_store_stats()["crl"] == before:
            raise ssl.SSLError("no list of revoked certificates")  # certificates alone are no error to OpenSSL
        side.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _names(shown: Mapping[str, Any], kind: str) -> set[str]:
    return {name for of, name in shown.get("subjectAltName", ()) if of == kind}


def expiry_of(tls: TlsSettings) -> float:
    """When this certificate expires, in seconds since 1970; 0 if it has; infinity if OpenSSL does not verify it.

    Raises OSError if the files cannot be used.
    """
    try:
        shown = _shown(tls)
    except ssl.SSLCertVerificationError as error:
        return 0.0 if error.verify_code == X509_EXPIRED else float("inf")
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"]))) if shown else float("inf")


def _shown(tls: TlsSettings) -> Mapping[str, Any] | None:
    """The certificate as a client sees it that trusts this one alone; None if it is in no form that OpenSSL verifies.

    Raises SSLCertVerificationError if it is not valid, and OSError if the files cannot be used.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tls.certificate, tls.key, partial(no_password, tls.key))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(tls.certificate)
    try:
        return handshake(server, client)
    except ssl.SSLCertVerificationError:
        raise
    except (ssl.SSLError, ValueError):
        return None


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, Any]:
    """A handshake in memory; returns the certificate of the server. Raises SSLError when a side refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(HANDSHAKE_STEPS):
        for side in sides:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return sides[0].getpeercert() or {}


def last_expiry(context: ssl.SSLContext) -> float:
    """When no authority that `context` trusts is valid any more; infinity if it has none. While one is replaced, a file
    has the old one and the new one.
    """
    ends = [str(one["notAfter"]) for one in context.get_ca_certs()]
    return max(map(ssl.cert_time_to_seconds, ends), default=float("inf"))


def no_password(key: Path) -> str:
    """Called by OpenSSL, which else would prompt at the terminal and block the whole node."""
    raise OSError(f"{key}: is encrypted; a node cannot ask for a password")
