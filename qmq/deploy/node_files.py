"""The texts of a new mesh: peers file, node files, unit, README, and what containers need. Pure: names in, texts out.

The templates are files beside this one. A `$name` in them is replaced.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

from qmq.address import Address, ip_of, parse_address
from qmq.section import NODE_NAME

TEMPLATES: Final = Path(__file__).with_name("templates")
STOMP_PORT: Final = 61613
PORTS: Final[Mapping[str, int]] = {"client": 61613, "http": 61680, "amqp": 61672, "mesh": 61713}
"""Key of the peers file → port. All listeners of clients have a login, so beanstalkd is none of them."""
LISTENERS: Final[Mapping[str, str]] = {"stomp": "client", "http": "http", "amqp": "amqp"}
"""Section of the node file → key of the peers file."""
ALERTS: Final = "alerts.yaml"
"""Rules for any mesh. In a checkout, `cluster` shows them."""
EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node to be: its host, and the port for STOMP. Its other ports keep their usual distance from that."""

    name: str
    host: str
    port: int = STOMP_PORT
    more_names: tuple[str, ...] = ()
    """Other names by which clients reach it, for its certificate."""

    @classmethod
    def read(cls, text: str) -> "NewNode":
        """`NAME=HOST` or `NAME=HOST:PORT`. Raises ValueError with the reason."""
        name, _, host = text.partition("=")
        if not host or not re.fullmatch(NODE_NAME, name):
            raise ValueError("must be NAME=HOST, and NAME 1 to 32 characters out of a-z, 0-9 and -")
        if ":" in host and ip_of(host) is not None:
            host = f"[{host}]"
        address = parse_address(f"{host}:{STOMP_PORT}" if ":" not in host or host.endswith("]") else host)
        if address.is_wildcard:
            raise ValueError("must be an address that other nodes can dial")
        return cls(name, address.host, address.port)

    def address(self, key: str) -> Address:
        return Address(self.host, PORTS[key] + self.port - STOMP_PORT)

    def peer(self) -> str:
        """Its entry of the peers file."""
        return "\n".join(
            ["", "[[nodes]]", f'name = "{self.name}"', *(f'{key} = "{self.address(key)}"' for key in PORTS), ""]
        )


@dataclass(frozen=True, slots=True)
class NewMesh:
    """What `qmq init` was asked for."""

    name: str
    nodes: Sequence[NewNode]
    with_tls: bool
    admin: str | None = None
    password_hash: str | None = None
    listen_everywhere: bool = False
    """In a container, whose address only its network knows."""

    def peers_file(self) -> str:
        """The same for all nodes."""
        lines = [
            f"# The nodes of the mesh {self.name}: the same file on all of them. Raise `version` with each",
            "# change, which adds or removes one node (docs/operations.md).",
            "# Firewall: other nodes connect to `mesh`, clients to the other addresses.",
            f"mesh = {json.dumps(self.name)}",
            "version = 1",
        ]
        if not self.with_tls:
            lines.append('secret_file = "mesh.secret"')
        return "\n".join([*lines, "".join(node.peer() for node in self.nodes)])

    def node_file(self, node: NewNode) -> str:
        """With TLS, the listeners are here; without, they are those of the peers file."""
        tls = ""
        if self.with_tls:
            tls = _filled("tls.toml")
            for protocol, key in LISTENERS.items():
                address = node.address(key)
                if self.listen_everywhere:
                    address = Address(EVERY_ADDRESS, address.port)
                tls += _filled("listener.toml", protocol=protocol, address=address)
        return _filled("node.toml", name=node.name, mesh=self.name, tls=tls, definitions=self._definitions())

    def unit(self, node: NewNode) -> str:
        """For systemd on the host of the node."""
        return _filled("qmq.service", name=node.name, mesh=self.name)

    def compose(self, user: str) -> str:
        """All nodes in containers of one machine; `user` is UID:GID. Clients reach them at different ports."""
        found = _filled("compose.yaml", mesh=self.name, user=user)
        for number, node in enumerate(self.nodes):
            ports = ", ".join(f'"127.0.0.1:{PORTS[key] + number}:{PORTS[key]}"' for key in LISTENERS.values())
            found += _filled("compose-node.yaml", name=node.name, ports=ports)
        return found

    def kubernetes(self) -> str:
        """A StatefulSet whose pods are the nodes, in this order, with its services."""
        names = [node.name for node in self.nodes]
        files = ("node.toml", "peers.toml", "node.pem", "node.key", "ca.pem", "clients-ca.pem")
        sources = []
        for name in names:
            sources += ["              - secret:", f"                  name: {name}", "                  items:"]
            sources += [f"                    - {{key: {file}, path: {name}/{file}}}" for file in files]
        text = "\n".join(sources)
        return _filled("kubernetes.yaml", mesh=self.name, names=" ".join(names), count=len(names), sources=text)

    def prometheus(self) -> str:
        """A file of Prometheus that scrapes all nodes; `ALERTS`, which it names, lies beside it."""
        return _filled("prometheus.yml", mesh=self.name, targets=scraped(node.address("http") for node in self.nodes))

    def readme(self) -> str:
        """What to do with the folder."""
        template = "README.md" if self.with_tls else "README-loopback.md"
        return _filled(template, mesh=self.name, folders=listed(node.name for node in self.nodes))

    def _definitions(self) -> str:
        if self.admin is None:
            return '# [definitions.policy."/queue/jobs.*"]\n# delivery_limit = 5\n'
        key = json.dumps(self.admin)
        return f'[definitions.user.{key}]\npassword_hash = "{self.password_hash}"\ngroups = ["administrator"]\n'


def listed(names: Iterable[str]) -> str:
    """As the README names the folders of the nodes."""
    return f"folders {', '.join(names)}"


def scraped(addresses: Iterable[Address | None]) -> str:
    """As the file of Prometheus names the nodes."""
    return ", ".join(f'"{address}"' for address in addresses)


def compose_nodes(names: Sequence[str] = ("a", "b", "c")) -> list[NewNode]:
    """Each is the host of its container; clients of the machine use its loopback."""
    return [NewNode(name, name, more_names=("localhost", "127.0.0.1")) for name in names]


def kubernetes_nodes(count: int, namespace: str) -> list[NewNode]:
    """The pods of the StatefulSet `qmq`, by the names that its service gives them."""
    service = f"{namespace}.svc.cluster.local"
    clients = ("qmq-clients", f"qmq-clients.{namespace}.svc", f"qmq-clients.{service}")
    return [
        NewNode(f"qmq-{at}", f"qmq-{at}.qmq.{service}", more_names=(f"qmq-{at}.qmq", *clients)) for at in range(count)
    ]


def _filled(template: str, **values: object) -> str:
    return Template((TEMPLATES / template).read_text("utf-8")).substitute(values)
