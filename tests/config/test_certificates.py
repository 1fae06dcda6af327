"""What is wrong with the TLS files of a node file: found before a node starts, with file, line and key."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import Run as Run
from tests.cli.conftest import run as run
from tests.sessions.clients.test_tls import Papers

PEERS = """
mesh = "m"
version = 1
[[nodes]]
name = "a"
client = "127.0.0.1:1"
mesh = "127.0.0.1:2"
[[nodes]]
name = "b"
client = "127.0.0.1:3"
mesh = "127.0.0.1:4"
"""


class Files:
    """A node file of node a, a peers file, and the certificates of both nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.papers = Papers(folder)
        for name in ("a", "b"):
            self.papers.of(name)
        for key in folder.glob("*.key"):
            key.chmod(0o600)
        (folder / "peers.toml").write_text(PEERS, "utf-8")

    def write(
        self, certificate: str = "a.pem", key: str = "a.key", ca: str = "ca.pem", more: str = "", crl: str = ""
    ) -> list[str]:
        """The options for a node file with this `[mesh.tls]`: the certificate is on line 4, key 5, ca 6, crl 7."""
        more = f'crl = "{crl}"\n{more}' if crl else more
        head = 'name = "a"\n\n[mesh.tls]\n'
        text = f'{head}certificate = "{certificate}"\nkey = "{key}"\nca = "{ca}"\n{more}'
        (self.folder / "node.toml").write_text(text, "utf-8")
        return ["--config", str(self.folder / "node.toml"), "--peers", str(self.folder / "peers.toml")]

    def issue(self, name: str, days: float) -> None:
        """A certificate of this name that ends after so many days from now on."""
        until = datetime.now(UTC) + timedelta(days=days)
        paper = self.papers.authority.issue_cert(name, not_before=until - timedelta(days=9), not_after=until)
        self.papers.written(name, paper)
        (self.folder / f"{name}.key").chmod(0o600)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "papers")


def other_authority(files: Files) -> None:
    Papers(files.folder / "other")


def garbage(files: Files) -> None:
    (files.folder / "garbage.pem").write_text("no PEM", "utf-8")


def revoked(files: Files) -> None:
    files.papers.revoke(files.folder / "a.pem")


def nothing(files: Files) -> None:
    pass


def late(files: Files) -> None:
    files.issue("late.a", -1)


def early(files: Files) -> None:
    files.issue("early.a", 20)


BAD = {
    "certificate missing": (nothing, {"certificate": "nope.pem"}, "4: mesh.tls.certificate", "cannot be read: No such"),
    "key missing": (nothing, {"key": "nope.key"}, "5: mesh.tls.key", "cannot be read: No such file"),
    "authority missing": (nothing, {"ca": "nope.pem"}, "6: mesh.tls.ca", "cannot be read: No such file"),
    "key of another": (nothing, {"key": "b.key"}, "5: mesh.tls.key", "is not the key of "),
    "no certificate": (garbage, {"certificate": "garbage.pem"}, "5: mesh.tls.key", "is no key in PEM form, or "),
    "no authority": (garbage, {"ca": "garbage.pem"}, "6: mesh.tls.ca", "is no certificate in PEM form"),
    "of another node": (nothing, {"certificate": "b.pem", "key": "b.key"}, "4: mesh.tls.certificate", "not the node a"),
    "no list": (garbage, {"crl": "garbage.pem"}, "7: mesh.tls.crl", "is no list of revoked certificates"),
    "revoked": (revoked, {"crl": "crl.pem"}, "4: mesh.tls.certificate", "peers refuse it: certificate revoked"),
    "other authority": (other_authority, {"ca": "other/ca.pem"}, "4: mesh.tls.certificate", "peers refuse it: "),
    "expired": (late, {"certificate": "late.a.pem", "key": "late.a.key"}, "4: mesh.tls.certificate", "has expired"),
    "not yet valid": (
        early,
        {"certificate": "early.a.pem", "key": "early.a.key"},
        "4: mesh.tls.certificate",
        "not valid yet",
    ),
}


@pytest.mark.parametrize(("prepare", "change", "place", "why"), BAD.values(), ids=BAD)
def test_check_finds_a_certificate_of_links_that_does_not_do(
    run: Run, files: Files, prepare: Callable[[Files], None], change: dict[str, str], place: str, why: str
) -> None:
    prepare(files)

    result = run("config", "check", *files.write(**change))

    assert result.exit_code == 2, result.output
    assert f"{files.folder}/node.toml:{place}: " in result.stderr.splitlines()[0]
    assert why in result.stderr.splitlines()[0]


def test_certificates_that_do_are_ok_also_in_a_file_that_all_nodes_share(run: Run, files: Files) -> None:
    assert run("config", "check", *files.write()).exit_code == 0

    options = files.write("b.pem", "b.key")
    shared = files.folder / "node.toml"
    shared.write_text(shared.read_text("utf-8").replace('name = "a"', "# for all"), "utf-8")
    assert run("config", "check", *options).exit_code == 0
    assert "not the node a" in run("config", "check", *options, "--node", "a").stderr


def test_certificates_of_listeners_are_checked_and_a_name_that_differs_is_noted(run: Run, files: Files) -> None:
    listener = '[[stomp]]\naddress = "10.1.2.3:1"\ntls = {{ certificate = "{0}.pem", key = "{0}.key" }}\n'
    users = '[[users]]\nname = "root"\ngroups = ["administrator", "keepers"]\npassword_hash = "$argon2id${}"\n'
    users = users.replace("{}", "v=19$m=8,t=1,p=1$v8umVTv/w1PdCilmZO4cww$ekPflGkocKjlthYotI73oOy3diUSJKwUKqr0bCyE9/o")
    files.papers.of("10.1.2.3")
    (files.folder / "10.1.2.3.key").chmod(0o600)

    missing = run("config", "check", *files.write(more=listener.format("none") + users))
    other = run("config", "check", *files.write(more=listener.format("a") + users))
    good = run("config", "check", *files.write(more=listener.format("10.1.2.3") + users))
    files.papers.of("fd00:0::2")
    (files.folder / "fd00:0::2.key").chmod(0o600)
    ipv6 = listener.replace("10.1.2.3", "[fd00::2]").format("fd00:0::2")
    any_address = listener.replace("10.1.2.3", "[::]").format("a")

    assert missing.exit_code == 2
    assert f"node.toml:9: stomp[0].tls.certificate: {files.folder}/none.pem: cannot be read" in missing.stderr
    assert other.exit_code == 0
    assert "clients that use the address 10.1.2.3 refuse it" in other.output
    assert "refuse it" not in good.output
    assert "refuse it" not in run("config", "check", *files.write(more=ipv6 + users)).output
    assert "the address :: refuse it" not in run("config", "check", *files.write(more=any_address + users)).output
    assert "root is in the group keepers, which no permission names" in good.output


def test_a_start_names_file_line_and_key_of_a_certificate_that_cannot_be_used(run: Run, files: Files) -> None:
    result = run("serve", *files.write(certificate="nope.pem"), "--data", str(files.folder / "data"))

    assert result.exit_code == 2
    assert "node.toml:4: mesh.tls.certificate: " in result.stderr
    assert not (files.folder / "data").exists()
