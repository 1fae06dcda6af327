"""Authorities and certificates in memory, as PEM. Keys are on the curve P-256, which all clients of TLS 1.2 know.

There are two authorities: one of the nodes and one of the clients. So a listener that asks for certificates of clients
refuses those of nodes. `extendedKeyUsage` keeps them apart, too, where one authority has signed both.

The caller says what time it is. This needs `cryptography`, which only the extra `cert` brings.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLOCKS_APART: Final = timedelta(hours=1)
"""A certificate is valid from so long ago: the clocks of the machines differ."""

FOR_CLIENT: Final = (ExtendedKeyUsageOID.CLIENT_AUTH,)
FOR_NODE: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
"""A node shows its certificate when it is dialled and when it dials."""

COMMON_NAME_MAX: Final = 64  # RFC 5280, appendix A.1


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """What a person wants to know of one certificate."""

    subject: str
    names: list[str]
    use: str
    """node, client, authority, or any."""
    issuer: str
    ends: str
    """ISO 8601, in UTC."""
    days_left: int
    """Negative if it has expired."""


def new_authority(title: str, days: int, now: datetime) -> Pair:
    """An authority that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(title)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # keyCertSign, cRLSign
    made = _builder(name, name, key.public_key(), now + timedelta(days=days), now)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = made.add_extension(usage, critical=True)
    return _signed(made, key, key)


def issue(authority: Pair, name: str, others: Sequence[str], days: int, now: datetime, *, for_node: bool) -> Pair:
    """A certificate of `name`, which is also its first DNS name. `others` are DNS names and IP addresses of it.

    It ends with its authority at the latest. Raises ValueError for a name that is neither, and if the authority has
    expired.
    """
    names = list(dict.fromkeys([name, *others]))
    alternatives = x509.SubjectAlternativeName([_alternative(one) for one in names])
    return _issue(authority, _name(name), alternatives, FOR_NODE if for_node else FOR_CLIENT, days, now)


def renew(authority: Pair, old: bytes, days: int, now: datetime) -> Pair:
    """A certificate for the same name, names and use as the first one in `old`, with a new key. Raises ValueError if it
    does not say what it is for.
    """
    before = x509.load_pem_x509_certificate(old)
    try:
        alternatives = before.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uses = before.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound as error:
        raise ValueError("has no subjectAltName or no extendedKeyUsage, so `qmq cert` has not issued it") from error
    return _issue(authority, before.subject, alternatives, tuple(uses), days, now)


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    """Whether the first certificate is signed by the first one in `authority`."""
    try:
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):  # another issuer, another kind of key, another key
        return False
    return True


def certificates_in(bundle: bytes) -> list[bytes]:
    """Each certificate of a file. Raises ValueError if there is none."""
    try:
        found = x509.load_pem_x509_certificates(bundle)
    except ValueError as error:
        raise ValueError("is no certificate in PEM form") from error
    return [one.public_bytes(serialization.Encoding.PEM) for one in found]


def has_key(certificate: bytes, key: bytes) -> bool:
    """Whether `key` is the private key of the certificate. Raises ValueError if it is no key."""
    try:
        public = serialization.load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError) as error:
        raise ValueError("is no private key in PEM form, or it is encrypted") from error
    return public == x509.load_pem_x509_certificate(certificate).public_key()


def facts_of(certificate: bytes, now: datetime) -> CertificateFacts:
    """Of one certificate, which `certificates_in` has read."""
    read = x509.load_pem_x509_certificate(certificate)
    extensions = {type(one.value): one.value for one in read.extensions}
    names = extensions.get(x509.SubjectAlternativeName)
    found = [] if not isinstance(names, x509.SubjectAlternativeName) else [str(one.value) for one in names]
    return CertificateFacts(
        read.subject.rfc4514_string(),
        found,
        _use(extensions),
        read.issuer.rfc4514_string(),
        read.not_valid_after_utc.isoformat(),
        (read.not_valid_after_utc - now).days,
    )


def _use(extensions: dict[type, x509.ExtensionType]) -> str:
    limits, uses = extensions.get(x509.BasicConstraints), extensions.get(x509.ExtendedKeyUsage)
    if isinstance(limits, x509.BasicConstraints) and limits.ca:
        return "authority"
    if not isinstance(uses, x509.ExtendedKeyUsage):
        return "any"
    return "node" if ExtendedKeyUsageOID.SERVER_AUTH in uses else "client"


def _issue(
    authority: Pair,
    name: x509.Name,
    alternatives: x509.SubjectAlternativeName,
    uses: Sequence[x509.ObjectIdentifier],
    days: int,
    now: datetime,
) -> Pair:
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signing = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    ends = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    if ends <= now:
        raise ValueError("cannot be signed: the authority has expired; `qmq cert rollover begin` makes another one")
    made = _builder(name, issuer.subject, key.public_key(), ends, now)
    made = made.add_extension(alternatives, critical=False)
    made = made.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
    return _signed(made, signing, key)


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, ends: datetime, now: datetime
) -> x509.CertificateBuilder:
    made = x509.CertificateBuilder(issuer, name, key, x509.random_serial_number())
    made = made.not_valid_before(now - CLOCKS_APART).not_valid_after(ends)
    return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _signed(made: x509.CertificateBuilder, by: ec.EllipticCurvePrivateKey, key: ec.EllipticCurvePrivateKey) -> Pair:
    form, encoding = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    certificate = made.sign(by, hashes.SHA256()).public_bytes(encoding)
    return Pair(certificate, key.private_bytes(encoding, form, serialization.NoEncryption()))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:COMMON_NAME_MAX])])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        text = name.encode("idna").decode()
    except UnicodeError:
        text = ""
    if not re.fullmatch(r"[A-Za-z0-9*@._-]+", text) or re.fullmatch(r"([0-9]+\.){3}[0-9]+", text):
        raise ValueError(f"{name!r} is no host name and no address")
    return x509.DNSName(text)
