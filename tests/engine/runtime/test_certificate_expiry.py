"""Certificates that expire: found in the files of a node, and reported until they are renewed."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from trio.testing import MockClock

from qmq.config import TlsSettings
from qmq.config.certificates import expiry_of
from qmq.engine.runtime.certificate_expiry import CHECK_SECONDS, EXPIRES_SOON_SECONDS
from tests.node.rig import Rig
from tests.node.test_reload import reloader
from tests.sessions.clients.test_tls import Papers
from tests.support.conditions import present
from tests.support.network import HostNetwork


def issued(folder: Path, until: datetime, key_type: trustme.KeyType = trustme.KeyType.ECDSA) -> TlsSettings:
    papers = Papers(folder)
    paper = papers.authority.issue_cert(
        "node", not_before=until - timedelta(days=400), not_after=until, key_type=key_type
    )
    return papers.written("node", paper)


def in_days(days: float) -> datetime:
    return (datetime.now(UTC) + timedelta(days=days)).replace(microsecond=0)


def codes(rig: Rig) -> list[str]:
    return [one["code"] for one in present(rig.alive)]


@pytest.mark.parametrize("key_type", trustme.KeyType)
def test_the_end_of_a_certificate_is_read_from_its_file(tmp_path: Path, key_type: trustme.KeyType) -> None:
    until = in_days(200)

    assert expiry_of(issued(tmp_path, until, key_type)) == until.timestamp()


def test_what_has_expired_has_no_date_any_more(tmp_path: Path) -> None:
    assert expiry_of(issued(tmp_path, in_days(-1))) == 0


def test_a_certificate_that_is_not_valid_yet_is_none_that_expires(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    paper = papers.authority.issue_cert("node", not_before=in_days(10), not_after=in_days(20))

    assert expiry_of(papers.written("node", paper)) == float("inf")


def authority(until: datetime) -> bytes:
    """A certificate that signs others, in PEM form."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mesh")])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(until - timedelta(days=400)).not_valid_after(until)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


async def test_the_last_authority_of_a_file_that_expires_is_reported(autojump_clock: MockClock, tmp_path: Path) -> None:
    tls = issued(tmp_path, in_days(200))
    assert tls.ca is not None
    async with Rig().run() as rig:
        node = rig.alive
        node.environment.now_us = lambda: int(datetime.now(UTC).timestamp() * 1e6)

        async def found(*days: int) -> list[tuple[str, str]]:
            tls.ca.write_bytes(b"".join([authority(in_days(one)) for one in days]))
            node.certificates.for_clients(tls)
            node.certificate_expiry.wake()
            await trio.testing.wait_all_tasks_blocked()
            return [(one["code"], one["message"].split()[0]) for one in present(node)]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.certificate_expiry.run)
            assert await found(-1, 300) == []
            assert await found(-1, 3) == [("certificate-expires", str(tls.ca))]
            assert await found(-1) == [("certificate-expired", str(tls.ca))]
            nursery.cancel_scope.cancel()


def test_a_key_of_another_certificate_is_an_error(tmp_path: Path) -> None:
    tls, other = issued(tmp_path / "one", in_days(10)), issued(tmp_path / "other", in_days(10))

    with pytest.raises(ssl.SSLError):
        expiry_of(tls.replace({"key": other.key}))


async def test_it_is_reported_before_it_expires_and_afterwards(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = issued(tmp_path, in_days(200))
    async with Rig().run() as rig:
        node = rig.alive
        node.certificates.for_clients(tls)
        now = datetime.now(UTC).timestamp()
        monkeypatch.setattr(node.environment, "now_us", lambda: int(now * 1e6))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.certificate_expiry.run)
            await trio.testing.wait_all_tasks_blocked()
            assert codes(rig) == []

            now = expiry_of(tls) - EXPIRES_SOON_SECONDS
            await trio.sleep(CHECK_SECONDS + 1)
            (one,) = present(rig.alive)
            assert one["code"] == "certificate-expires"
            assert str(tls.certificate) in one["message"]

            now = expiry_of(tls)
            await trio.sleep(CHECK_SECONDS + 1)
            assert codes(rig) == ["certificate-expired"]
            nursery.cancel_scope.cancel()


async def test_a_node_checks_the_certificates_of_its_listeners(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = HostNetwork.listen
    monkeypatch.setattr(HostNetwork, "listen", lambda network, host, port, tls: listen(network, host, port, None))
    rig = Rig()
    (listener,) = rig.settings.stomp
    with_tls = listener.replace({"tls": issued(tmp_path, in_days(-1))})
    rig.settings = rig.settings.replace({"stomp": (with_tls,)})
    async with rig.run():
        await trio.testing.wait_all_tasks_blocked()

        assert codes(rig) == ["certificate-expired"]
        (one,) = present(rig.alive)
        assert one["message"] == f"{with_tls.tls.certificate} (listener on {listener.address}) has expired"


async def test_the_report_ends_when_a_renewed_certificate_is_read(autojump_clock: MockClock, tmp_path: Path) -> None:
    tls = issued(tmp_path, in_days(3))
    async with Rig().run() as rig:
        node = rig.alive
        node.certificates.for_clients(tls)
        node.environment.now_us = lambda: int(datetime.now(UTC).timestamp() * 1e6)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.certificate_expiry.run)
            await trio.testing.wait_all_tasks_blocked()
            assert codes(rig) == ["certificate-expires"]

            issued(tmp_path, in_days(300))
            await trio.sleep(CHECK_SECONDS + 1)
            assert codes(rig) == ["certificate-expires"], "the old one is in use"
            assert await reloader(rig).reload()
            await trio.testing.wait_all_tasks_blocked()

            assert codes(rig) == []
            nursery.cancel_scope.cancel()
