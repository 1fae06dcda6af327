"""TLS on real sockets of this machine: clients, and the contexts and names of mesh links."""

import os
import pty
import signal
import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import argon2
import pytest
import trio
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from qmq.config import Address, ListenerSettings, TlsSettings, User
from qmq.engine.runtime.certificates import Certificates
from qmq.engine.runtime.sockets import TcpNetwork, TlsPipe
from qmq.environment import Pipe, PipeListener, Tls
from qmq.errors import ConfigError, MeshError
from qmq.wire.stomp import Connection, Role
from tests.node.rig import Rig

HOST = "127.0.0.1"
SECONDS_MAX = 60.0


class Papers:
    """Certificates of one authority, as files."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))

    def of(self, name: str, *more: str, key_type: trustme.KeyType = trustme.KeyType.ECDSA) -> TlsSettings:
        return self.written(name, self.authority.issue_cert(name, *more, key_type=key_type))

    def written(self, name: str, paper: trustme.LeafCert) -> TlsSettings:
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        for number, part in enumerate(paper.cert_chain_pems):
            part.write_to_path(str(certificate), append=number > 0)
        paper.private_key_pem.write_to_path(str(key))
        return TlsSettings(certificate=certificate, key=key, ca=self.ca)

    def revoke(self, *certificates: Path) -> Path:
        """A list of the authority that names these certificates, in a file beside them."""
        issuer = x509.load_pem_x509_certificate(self.ca.read_bytes())
        key = serialization.load_pem_private_key(self.authority.private_key_pem.bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        now = datetime.now(UTC)
        made = x509.CertificateRevocationListBuilder(issuer.subject, now, now + timedelta(days=9))
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
        made = made.add_extension(own, critical=False).add_extension(x509.CRLNumber(1), critical=False)
        for file in certificates:
            serial = x509.load_pem_x509_certificate(file.read_bytes()).serial_number
            made = made.add_revoked_certificate(x509.RevokedCertificateBuilder(serial, now).build())
        (self._folder / "crl.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return self._folder / "crl.pem"

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca))


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path / "papers")


async def both_ends(listening: Tls, dialling: Tls, server_name: str) -> tuple[Pipe, Pipe, bytes]:
    """A dialled and an accepted pipe, and the first bytes that the latter received."""
    network = TcpNetwork()
    listener: PipeListener = await network.listen(HOST, 0, listening)
    ends: list[Pipe] = []
    first = b""
    try:
        with trio.fail_after(SECONDS_MAX):
            async with trio.open_nursery() as nursery:

                async def accept() -> None:
                    nonlocal first
                    pipe = await listener.accept()
                    ends.append(pipe)
                    first = await pipe.receive_some(100)

                nursery.start_soon(accept)
                dialled = await network.connect(HOST, listener.address[1], dialling, server_name)
                ends.append(dialled)
                await dialled.send_all(b"hello")
    except BaseException:
        for end in ends:
            end.close()
        raise
    finally:
        listener.close()
    accepted = ends[0] if ends[1] is dialled else ends[1]
    return dialled, accepted, first


async def certificate_shown(listening: Tls, papers: Papers) -> bytes:
    """What a client sees that dials now."""
    dialled, accepted, _ = await both_ends(listening, papers.trusting, "node")
    assert isinstance(dialled, TlsPipe)
    shown: bytes = dialled._stream.getpeercert(binary_form=True)
    dialled.close()
    accepted.close()
    return shown


async def test_a_client_speaks_stomp_over_tls_and_its_connection_ends_without_delay(papers: Papers) -> None:
    rig = Rig()
    async with rig.run():
        node = rig.alive
        settings = rig.settings.stomp[0].replace(
            {
                "address": rig.settings.stomp[0].address._replace(port=0),
                "tls": papers.of("node").replace({"ca": None}),
            }
        )
        node.environment.network = TcpNetwork()
        limits = node.settings.limits.replace({"farewell_seconds": 1000.0})
        node.settings = node.settings.replace({"limits": limits})
        with trio.fail_after(SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                listen, stomp = node.session_parts.listeners.listen, node.protocols.of("stomp")
                address, stop = await nursery.start(listen, settings, stomp)
                client = await TcpNetwork().connect(*address, papers.trusting, "node")
                connection = Connection(Role.CLIENT)
                body = b"x" * 900_000
                await client.send_all(
                    b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"
                    b"SUBSCRIBE\nid:0\ndestination:/topic/t\n\n\0"
                    b"SEND\ndestination:/topic/t\ncontent-length:900000\n\n" + body + b"\0DISCONNECT\nreceipt:r\n\n\0"
                )
                frames = []
                while data := await client.receive_some(65536):
                    frames += connection.receive(data)
                stop()
                client.close()

    assert [frame.head.command for frame in frames] == ["CONNECTED", "MESSAGE", "RECEIPT"]
    assert frames[1].body == body


@pytest.mark.parametrize(
    ("has_users", "written_down", "login", "said"),
    [
        (True, None, "", "login-required"),
        (True, True, "", "CONNECTED"),
        (True, None, "login:ann\npasscode:secret\n", "CONNECTED"),
        (False, None, "", "CONNECTED"),
    ],
)
async def test_a_certificate_that_a_client_must_show_is_no_login(
    papers: Papers, has_users: bool, written_down: bool | None, login: str, said: str
) -> None:
    password_hash = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
    rig = Rig(users=(User(name="ann", password_hash=password_hash, groups=("client",)),) if has_users else ())
    async with rig.run():
        node = rig.alive
        listener = ListenerSettings(address=Address(HOST, 0), tls=papers.of("node"), anonymous=written_down)
        _, shown = Certificates().for_links(papers.of("client"))
        node.environment.network = TcpNetwork()
        with trio.fail_after(SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                listen, stomp = node.session_parts.listeners.listen, node.protocols.of("stomp")
                address, stop = await nursery.start(listen, listener, stomp)
                client = await TcpNetwork().connect(*address, shown, "node")
                await client.send_all(f"CONNECT\naccept-version:1.2\nhost:x\n{login}\n\0".encode())
                connection = Connection(Role.CLIENT)
                frames = []
                while not frames:
                    frames += connection.receive(await client.receive_some(65536))
                client.close()
                stop()

    assert frames[0].head.headers.get("error-code", frames[0].head.command) == said


@pytest.mark.parametrize(
    ("source", "names", "users", "login", "said"),
    [
        ("san", ("ann",), ("ann",), "", "ann"),
        ("san", ("ann", "ann.example"), ("ann",), "", "ann"),
        ("san", ("ann", "bob"), ("ann", "bob"), "", "login-failed"),
        ("san", ("eve",), ("ann",), "", "login-failed"),
        ("subject", ("eve", "the ann of operations"), ("the ann of operations", "eve"), "", "the ann of operations"),
        ("san", ("eve",), ("ann",), "login:ann\npasscode:secret\n", "ann"),
        ("san", ("ann",), ("ann", "bob"), "login:bob\npasscode:\n", "login-failed"),
    ],
)
async def test_a_certificate_names_the_user_where_the_listener_asks_for_one(
    papers: Papers, source: str, names: tuple[str, ...], users: tuple[str, ...], login: str, said: str
) -> None:
    password_hash = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
    hashes = {"ann": password_hash}
    listed = tuple(User(name=name, password_hash=hashes.get(name), groups=("client",)) for name in users)
    listener = ListenerSettings.read(
        {"address": Address(HOST, 0), "tls": papers.of("node"), "certificate_user": source}
    )
    made = papers.authority.issue_cert(names[0], common_name=names[1]) if source == "subject" else None
    shown = client_context(papers, papers.of(*names) if made is None else papers.written("client", made))
    rig = Rig(
        users=tuple(user for user in listed if user.password_hash) or (User(name="x", password_hash=password_hash),)
    )
    async with rig.run():
        node = rig.alive
        node.session_parts.login_path.logins.change(listed, node.settings.limits)
        node.session_parts.login_path.access.change(listed, ())
        node.environment.network = TcpNetwork()
        with trio.fail_after(SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                listen, stomp = node.session_parts.listeners.listen, node.protocols.of("stomp")
                address, stop = await nursery.start(listen, listener, stomp)
                client = await TcpNetwork().connect(*address, shown, "node")
                await client.send_all(f"CONNECT\naccept-version:1.2\nhost:x\n{login}\n\0".encode())
                connection = Connection(Role.CLIENT)
                frames = []
                while not frames:
                    frames += connection.receive(await client.receive_some(65536))
                client.close()
                stop()

    headers = frames[0].head.headers
    assert headers.get("error-code", headers.get("user-name")) == said


def client_context(papers: Papers, tls: TlsSettings) -> Tls:
    _, shown = Certificates().for_links(tls)
    return shown


async def test_a_client_that_speaks_no_tls_ends_only_its_connection(papers: Papers) -> None:
    rig = Rig()
    async with rig.run():
        node = rig.alive
        settings = rig.settings.stomp[0].replace(
            {
                "address": rig.settings.stomp[0].address._replace(port=0),
                "tls": papers.of("node").replace({"ca": None}),
            }
        )
        node.environment.network = TcpNetwork()
        with trio.fail_after(SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                listen, stomp = node.session_parts.listeners.listen, node.protocols.of("stomp")
                address, stop = await nursery.start(listen, settings, stomp)
                plain = await TcpNetwork().connect(*address, None, "")
                await plain.send_all(b"CONNECT\naccept-version:1.2\n\n\0")
                with pytest.raises(trio.BrokenResourceError):
                    while await plain.receive_some(1000):
                        pass
                    raise trio.BrokenResourceError  # an orderly end is as good
                plain.close()
                with pytest.raises(MeshError, match="not trusted"):
                    await TcpNetwork().connect(*address, papers.trusting, "another-name")
                good = await TcpNetwork().connect(*address, papers.trusting, "node")
                await good.send_all(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
                assert (await good.receive_some(1000)).startswith(b"CONNECTED")
                good.close()
                stop()


async def test_both_ends_of_a_mesh_link_see_the_name_in_the_certificate(papers: Papers) -> None:
    listening, _ = Certificates().for_links(papers.of("a"))
    _, dialling = Certificates().for_links(papers.of("b"))

    dialled, accepted, first = await both_ends(listening, dialling, "a")

    assert first == b"hello"
    assert (dialled.peer_certificate_names, accepted.peer_certificate_names) == ({"a"}, {"b"})
    dialled.close()
    assert await accepted.receive_some(10) == b""
    accepted.close()


async def test_a_certificate_of_several_names_shows_all_of_them_to_both_ends(papers: Papers) -> None:
    _, dialling = Certificates().for_links(papers.of("b", "b.example"))
    listening, _ = Certificates().for_links(papers.of("a", "a.example"))

    dialled, accepted, _ = await both_ends(listening, dialling, "a")

    assert dialled.peer_certificate_names == {"a", "a.example"}
    assert accepted.peer_certificate_names == {"b", "b.example"}
    dialled.close()
    accepted.close()


async def test_a_mesh_listener_refuses_nodes_without_a_certificate_of_its_authority(
    papers: Papers, tmp_path: Path
) -> None:
    listening, _ = Certificates().for_links(papers.of("a"))
    strangers = Papers(tmp_path / "strangers")
    _, foreign = Certificates().for_links(strangers.of("b"))
    foreign().load_verify_locations(cafile=str(papers.ca))

    for dialling in (papers.trusting, foreign):
        with pytest.raises((ExceptionGroup, trio.BrokenResourceError)):
            await both_ends(listening, dialling, "a")


def with_uses(papers: Papers, name: str, *uses: x509.ObjectIdentifier) -> TlsSettings:
    """A certificate of that DNS name that may be used so; for everything without `uses`."""
    issuer = x509.load_pem_x509_certificate(papers.ca.read_bytes())
    signing = serialization.load_pem_private_key(papers.authority.private_key_pem.bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    made = x509.CertificateBuilder(issuer.subject, x509.Name([]), key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=9))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
    if uses:
        made = made.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
    certificate, file = papers.ca.with_name(f"{name}.pem"), papers.ca.with_name(f"{name}.key")
    certificate.write_bytes(made.sign(signing, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return TlsSettings(certificate=certificate, key=file, ca=papers.ca)


CLIENT, SERVER = x509.ExtendedKeyUsageOID.CLIENT_AUTH, x509.ExtendedKeyUsageOID.SERVER_AUTH


@pytest.mark.parametrize(
    ("uses", "is_node"), [((), True), ((CLIENT, SERVER), True), ((CLIENT,), False), ((SERVER,), False)]
)
async def test_a_link_is_accepted_only_from_a_certificate_for_both_sides_of_it(
    papers: Papers, uses: tuple[x509.ObjectIdentifier, ...], is_node: bool
) -> None:
    listening, _ = Certificates().for_links(papers.of("a"))
    _, dialling = Certificates().for_links(with_uses(papers, "b", *uses))

    if is_node:
        dialled, accepted, _ = await both_ends(listening, dialling, "a")
        assert accepted.peer_certificate_names == {"b"}
        dialled.close()
        accepted.close()
    else:
        with pytest.raises((ExceptionGroup, trio.BrokenResourceError)):
            await both_ends(listening, dialling, "a")


async def test_a_certificate_for_clients_is_no_certificate_of_a_server(papers: Papers) -> None:
    listening, _ = Certificates().for_links(with_uses(papers, "a", CLIENT))
    _, dialling = Certificates().for_links(papers.of("b"))

    with pytest.raises((ExceptionGroup, MeshError)):
        await both_ends(listening, dialling, "a")


async def test_a_client_listener_accepts_a_certificate_for_clients(papers: Papers) -> None:
    listening = Certificates().for_clients(papers.of("node"))
    _, showing = Certificates().for_links(with_uses(papers, "ann", CLIENT))

    dialled, accepted, _ = await both_ends(listening, showing, "node")

    assert accepted.peer_certificate_names == {"ann"}
    dialled.close()
    accepted.close()


async def test_a_mesh_link_is_not_dialled_to_a_node_with_another_name(papers: Papers) -> None:
    listening, _ = Certificates().for_links(papers.of("c"))
    _, dialling = Certificates().for_links(papers.of("b"))

    with pytest.raises((ExceptionGroup, MeshError)):
        await both_ends(listening, dialling, "a")


async def test_a_client_listener_with_an_authority_asks_for_certificates(papers: Papers) -> None:
    listening = Certificates().for_clients(papers.of("node"))

    with pytest.raises((ExceptionGroup, trio.BrokenResourceError)):
        await both_ends(listening, papers.trusting, "node")
    _, showing = Certificates().for_links(papers.of("client"))
    dialled, accepted, _ = await both_ends(listening, showing, "node")

    assert isinstance(accepted, TlsPipe)
    assert accepted.peer_certificate_names == {"client"}
    dialled.close()
    accepted.close()


async def test_a_dialling_that_is_given_up_leaves_no_socket_open(papers: Papers) -> None:
    silent = await TcpNetwork().listen(HOST, 0, None)
    with trio.move_on_after(0.2) as waiting:
        await TcpNetwork().connect(HOST, silent.address[1], papers.trusting, "a")
    assert waiting.cancelled_caught

    accepted = await silent.accept()
    with trio.fail_after(SECONDS_MAX):
        while await accepted.receive_some(1000):
            pass
    accepted.close()
    silent.close()


async def test_a_renewed_certificate_is_shown_to_later_connections(papers: Papers) -> None:
    certificates = Certificates()
    listening = certificates.for_clients(papers.of("node").replace({"ca": None}))
    shown = [await certificate_shown(listening, papers)]

    papers.of("node")
    shown.append(await certificate_shown(listening, papers))
    taken = certificates.take_up(certificates.changed())
    shown.append(await certificate_shown(listening, papers))

    assert [path.name for path in taken] == ["node.pem"]
    assert shown[0] == shown[1] != shown[2]
    assert certificates.changed() == []


@pytest.mark.parametrize("kinds", [("RSA", "ECDSA"), ("ECDSA", "RSA")])
async def test_a_certificate_is_renewed_with_a_key_of_another_kind(papers: Papers, kinds: tuple[str, str]) -> None:
    before, after = (trustme.KeyType[kind] for kind in kinds)
    certificates = Certificates()
    listening = certificates.for_clients(papers.of("node", key_type=before).replace({"ca": None}))

    renewed = papers.of("node", key_type=after)
    certificates.take_up(certificates.changed())

    expected = ssl.PEM_cert_to_DER_cert(renewed.certificate.read_text("utf-8"))
    assert await certificate_shown(listening, papers) == expected


async def test_certificates_of_a_removed_authority_are_refused(papers: Papers, tmp_path: Path) -> None:
    certificates = Certificates()
    listening = certificates.for_clients(papers.of("node"))
    _, showing = Certificates().for_links(papers.of("client"))
    for end in (await both_ends(listening, showing, "node"))[:2]:
        end.close()

    papers.ca.write_bytes(Papers(tmp_path / "others").ca.read_bytes())
    certificates.take_up(certificates.changed())

    with pytest.raises((ExceptionGroup, trio.BrokenResourceError)):
        await both_ends(listening, showing, "node")


async def test_revoked_certificates_are_refused_on_both_sides_from_the_reload_on(papers: Papers) -> None:
    certificates = Certificates()
    own, others = papers.of("a"), papers.of("b")
    listening, dialling = certificates.for_links(own.replace({"crl": papers.revoke()}))
    listening_of_b, dialling_of_b = Certificates().for_links(others)
    for ends in ((listening, dialling_of_b, "a"), (listening_of_b, dialling, "b")):
        for end in (await both_ends(*ends))[:2]:
            end.close()

    papers.revoke(others.certificate)
    certificates.take_up(certificates.changed())

    for ends in ((listening, dialling_of_b, "a"), (listening_of_b, dialling, "b")):
        with pytest.raises((ExceptionGroup, MeshError, trio.BrokenResourceError)):
            await both_ends(*ends)
    listening_of_c, dialling_of_c = Certificates().for_links(papers.of("c"))
    for ends in ((listening, dialling_of_c, "a"), (listening_of_c, dialling, "c")):
        for end in (await both_ends(*ends))[:2]:
            end.close()


async def test_a_renewed_certificate_that_cannot_be_used_changes_nothing(papers: Papers) -> None:
    certificates = Certificates()
    tls = papers.of("node").replace({"ca": None})
    listening = certificates.for_clients(tls)
    before = await certificate_shown(listening, papers)

    key = tls.key.read_bytes()
    papers.of("node")
    tls.key.write_bytes(key)
    with pytest.raises(ConfigError, match="node.key"):
        certificates.changed()

    assert await certificate_shown(listening, papers) == before


@pytest.mark.parametrize("key", ["certificate", "key", "ca", "crl"])
@pytest.mark.parametrize("text", [None, "junk"])
def test_a_file_that_cannot_be_used_is_named(papers: Papers, tmp_path: Path, key: str, text: str | None) -> None:
    file = tmp_path / "wrong.pem"
    if text is not None:
        file.write_text(text, "utf-8")
    tls = papers.of("a").replace({key: file})

    for contexts in (Certificates().for_clients, Certificates().for_links):
        with pytest.raises(OSError, match="wrong.pem"):
            contexts(tls)


def test_certificates_are_no_list_of_revoked_ones(papers: Papers) -> None:
    tls = papers.of("a")

    with pytest.raises(OSError, match="ca.pem: no list of revoked certificates"):
        Certificates().for_clients(tls.replace({"crl": tls.ca}))


def test_a_list_of_revoked_certificates_needs_an_authority(papers: Papers) -> None:
    tls = papers.of("a")

    with pytest.raises(ValueError, match="unless ca is set"):
        TlsSettings(certificate=tls.certificate, key=tls.key, crl=papers.revoke())


def test_no_password_of_a_key_is_asked_for(papers: Papers) -> None:
    tls = papers.of("a")
    plain = serialization.load_pem_private_key(tls.key.read_bytes(), None)
    tls.key.write_bytes(
        plain.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    code = f"""
from qmq.config import Address, ListenerSettings, TlsSettings, User
from qmq.engine.runtime.certificates import Certificates
try:
    Certificates().for_clients(TlsSettings(certificate={str(tls.certificate)!r}, key={str(tls.key)!r}))
except OSError as error:
    print("refused:", error)
"""

    # On a terminal of its own, where OpenSSL could ask.
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    said = b""
    try:
        while b"phrase" not in said and b"refused" not in said:
            said += os.read(terminal, 1000)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)

    assert b"refused" in said
    assert b"phrase" not in said
