"""The folder of a mesh on the machine of its operator: the keys of its authorities, and a folder to copy to each host.

    authority/ca.pem, ca.key                  the authority of the nodes: it signs what nodes show
    authority/clients-ca.pem, clients-ca.key  that of the clients
    NAME/node.pem, node.key, ca.pem, clients-ca.pem     what the host of node NAME gets
    clients/NAME.pem, NAME.key, ca.pem        what clients get; they trust `ca.pem`

`ca.pem` has one authority, or two while it is replaced: the last one is new, and its key is `ca.key`. Nothing is
overwritten but what is renewed, and each file is replaced as a whole.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from qmq.errors import ConfigError
from qmq.section import NODE_NAME

from . import certificates
from .certificates import Pair
from .writing import AUTHORITY, parsed, read, replace, write_new

CLIENTS: Final = "clients"
OF_NODES: Final = "ca"
OF_CLIENTS: Final = "clients-ca"
NODE_PEM: Final = "node.pem"
RENEWS: Final = "`qmq cert renew` renews it"
CLIENT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
"""Of a certificate: its common name, and its DNS name."""


class MeshFolder:
    """The folder `path`. All errors are ConfigError, with the file that is wrong."""

    def __init__(self, path: Path, now: datetime) -> None:
        self.path = path
        self._now = now

    def make_authorities(self, mesh: str, days: int) -> list[Path]:
        """Both authorities, which must not be there yet."""
        made = []
        for stem in (OF_NODES, OF_CLIENTS):
            pair = self._new_authority(stem, mesh, days)
            made += self._write_pair(self.path / AUTHORITY / stem, pair, "`qmq cert rollover` replaces it")
        return made

    def make_node(self, name: str, addresses: list[str], days: int) -> list[Path]:
        """The certificate of a node, for its links and listeners, and what it trusts. `addresses` are its hosts."""
        if not re.fullmatch(NODE_NAME, name) or name in (AUTHORITY, CLIENTS):
            raise ConfigError([f"{name!r} is no name of a node: {NODE_NAME}, and neither {AUTHORITY} nor {CLIENTS}"])
        for other in self.issued():
            taken = other.parent.name in addresses or name in self._facts(other).names
            if other.parent.name not in (name, CLIENTS) and taken:
                raise ConfigError(
                    [f"{other}: one certificate must not name both nodes, {other.parent.name} and {name}"]
                )
        issued = self._issue(OF_NODES, name, addresses, days)
        made = self._write_pair(self.path / name / "node", issued, f"{RENEWS}; for other names, move it away first")
        self._spread()
        return made

    def make_client(self, name: str, days: int) -> list[Path]:
        """A certificate with which a client logs in as the user `name`."""
        if not CLIENT_NAME.fullmatch(name) or name in (OF_NODES, OF_CLIENTS):
            others = f"neither {OF_NODES} nor {OF_CLIENTS}"
            raise ConfigError([f"{name!r} must be 1 to 63 letters, digits, and -._@, and {others}"])
        issued = self._issue(OF_CLIENTS, name, [], days)
        made = self._write_pair(self.path / CLIENTS / name, issued, RENEWS)
        self._spread()
        return made

    def issued(self) -> Iterator[Path]:
        """The certificates that were issued here, but for the authorities. Their keys may have been moved away."""
        for file in sorted(self.path.glob("*/*.pem")):
            is_of_client = file.parent.name == CLIENTS and file.stem not in (OF_NODES, OF_CLIENTS)
            if file.parent.name != AUTHORITY and (
                is_of_client or file.name == NODE_PEM or file.with_suffix(".key").exists()
            ):
                yield file

    def renew(self, within_days: int | None, days: int) -> list[str]:
        """Issue again what ends within so many days, or everything (None), by the authorities of now.

        Returns a line for each: the file, and whether its old key was missing. The new key is there in any case.
        """
        renewed = []
        for file in self.issued():
            days_left = self._facts(file).days_left
            if within_days is None or days_left <= within_days:
                signing = self._signing(OF_CLIENTS if file.parent.name == CLIENTS else OF_NODES)
                pair = parsed(file, partial(certificates.renew, signing, days=days, now=self._now))
                key = file.with_suffix(".key")
                renewed.append(f"{file}{'' if key.exists() else f': {key.name} was missing, and is new'}")
                replace(key, pair.key)
                replace(file, pair.certificate)
        self._spread()
        return renewed

    def begin_rollover(self, stem: str, mesh: str, days: int) -> None:
        """A second authority beside the first: from now on it signs, and both are trusted."""
        file = self._authority(stem)
        if len(known := self._known(stem)) > 1:
            raise ConfigError([f"{file}: has {len(known)} authorities: a rollover is under way; renew, then end it"])
        new = self._new_authority(stem, mesh, days)
        replace(file.with_suffix(".key"), new.key)
        replace(file, known[0] + new.certificate)
        self._spread()

    def end_rollover(self, stem: str) -> None:
        """Trust the new authority alone. Refused while a certificate here is signed by the old one."""
        file = self._authority(stem)
        if len(known := self._known(stem)) == 1:
            raise ConfigError([f"{file}: has one authority: no rollover is under way"])
        old = [
            f"{issued}: is signed by the authority that ends; renew it with --all first"
            for issued in self.issued()
            if (issued.parent.name == CLIENTS) == (stem == OF_CLIENTS)
            and not certificates.is_signed_by(read(issued), known[-1])
        ]
        if old:
            raise ConfigError(old)
        replace(file, known[-1])
        self._spread()

    def _issue(self, stem: str, name: str, others: list[str], days: int) -> Pair:
        signing = self._signing(stem)
        try:
            return certificates.issue(signing, name, others, days, self._now, for_node=stem == OF_NODES)
        except ValueError as error:
            raise ConfigError([str(error)]) from error

    def _new_authority(self, stem: str, mesh: str, days: int) -> Pair:
        of = "nodes" if stem == OF_NODES else "clients"
        return certificates.new_authority(f"{of} of {mesh}, {self._now:%Y-%m-%d}", days, self._now)

    def _authority(self, stem: str) -> Path:
        return self.path / AUTHORITY / f"{stem}.pem"

    def _known(self, stem: str) -> list[bytes]:
        file = self._authority(stem)
        if not file.exists():
            raise ConfigError([f"{file}: is missing; `qmq cert ca --dir {self.path}` makes the authorities"])
        return parsed(file, certificates.certificates_in)

    def _facts(self, file: Path) -> certificates.CertificateFacts:
        return certificates.facts_of(parsed(file, certificates.certificates_in)[0], self._now)

    def _signing(self, stem: str) -> Pair:
        """The newest authority, with its key."""
        file = self._authority(stem)
        newest, key = self._known(stem)[-1], file.with_suffix(".key")
        if not parsed(key, lambda data: certificates.has_key(newest, data)):
            raise ConfigError([f"{key}: is not the key of the last certificate in {file}"])
        return Pair(newest, read(key))

    def _spread(self) -> None:
        """Each folder has the authorities of now, also one without certificates of its own."""
        copies = [*self.path.glob(f"*/{OF_CLIENTS}.pem"), *self.path.glob(f"{CLIENTS}/{OF_NODES}.pem")]
        for folder in {file.parent for file in [*self.issued(), *copies]} - {self.path / AUTHORITY}:
            for stem in (OF_NODES,) if folder.name == CLIENTS else (OF_NODES, OF_CLIENTS):
                target, data = folder / f"{stem}.pem", read(self._authority(stem))
                if not target.exists() or read(target) != data:
                    replace(target, data)

    def _write_pair(self, stem: Path, pair: Pair, otherwise: str) -> list[Path]:
        key, certificate = stem.parent / f"{stem.name}.key", stem.parent / f"{stem.name}.pem"
        for file in (key, certificate):
            if file.exists():
                raise ConfigError([f"{file}: exists already, and is not overwritten; {otherwise}"])
        write_new(key, pair.key)
        write_new(certificate, pair.certificate)
        return [certificate, key]
