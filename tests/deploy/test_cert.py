"""`qmq cert`: authorities, certificates of nodes and clients, their renewal, and a new authority."""

import json
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from qmq.config.certificates import handshake, no_password
from qmq.deploy.folder import MeshFolder
from qmq.errors import ConfigError
from tests.cli.conftest import Run as Run
from tests.cli.conftest import run as run


@pytest.fixture
def mesh(run: Run, tmp_path: Path) -> Path:
    """The folder of a mesh with node a, which ends in ten days, node b, and the client ann."""
    folder = tmp_path / "mesh"
    for words in (["ca"], ["node", "a", "--address", "127.0.0.1", "--days", "10"], ["node", "b"], ["client", "ann"]):
        done = run("cert", *words, "--dir", str(folder))
        assert done.exit_code == 0, done.output
    return folder


def side(purpose: ssl.Purpose, pair: Path, ca: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cafile=str(ca))
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # as by default from Python 3.13 on
    context.load_cert_chain(pair, pair.with_suffix(".key"), partial(no_password, pair))
    return context


def shown(server: Path, server_ca: Path, client: Path, client_ca: Path) -> list[str]:
    """The names that the client sees, when each side checks the other with its `ca`. Raises SSLError."""
    found: dict[str, Any] = dict(
        handshake(side(ssl.Purpose.CLIENT_AUTH, server, server_ca), side(ssl.Purpose.SERVER_AUTH, client, client_ca))
    )
    return [name for _, name in found["subjectAltName"]]


def facts(run: Run, folder: Path, *words: str) -> dict[str, Any]:
    """File in the folder → what `show` says of its first certificate."""
    rows = json.loads(run("cert", "show", "--dir", str(folder), "--json", *words).stdout)
    return {str(Path(row["file"]).relative_to(folder)): row for row in reversed(rows)}


def test_two_nodes_accept_each_other_and_clients_accept_the_addresses_of_a_node(mesh: Path) -> None:
    a, b, ann = mesh / "a" / "node.pem", mesh / "b" / "node.pem", mesh / "clients" / "ann.pem"

    assert shown(a, mesh / "a" / "ca.pem", b, mesh / "b" / "ca.pem") == ["a", "127.0.0.1"]
    assert shown(b, mesh / "b" / "clients-ca.pem", ann, mesh / "clients" / "ca.pem") == ["b"]


def test_no_certificate_passes_for_another_kind(mesh: Path) -> None:
    a, b, ann = mesh / "a" / "node.pem", mesh / "b" / "node.pem", mesh / "clients" / "ann.pem"

    with pytest.raises(ssl.SSLError):  # a node as a client
        shown(a, mesh / "a" / "clients-ca.pem", b, mesh / "b" / "ca.pem")
    with pytest.raises(ssl.SSLError):  # a client as a node
        shown(a, mesh / "a" / "ca.pem", ann, mesh / "clients" / "ca.pem")
    with pytest.raises(ssl.SSLError, match="purpose"):  # a client as a server, even where its authority is trusted
        shown(ann, mesh / "a" / "ca.pem", b, mesh / "a" / "clients-ca.pem")


def test_keys_are_for_this_user_alone_and_only_the_authority_folder_has_those_of_authorities(mesh: Path) -> None:
    keys = sorted(str(file.relative_to(mesh)) for file in mesh.rglob("*.key"))

    assert keys == ["a/node.key", "authority/ca.key", "authority/clients-ca.key", "b/node.key", "clients/ann.key"]
    assert all(file.stat().st_mode & 0o077 == 0 for file in mesh.rglob("*"))


@pytest.mark.parametrize("words", [["ca"], ["node", "a"], ["client", "ann"]])
def test_nothing_is_overwritten(run: Run, mesh: Path, words: list[str]) -> None:
    before = {file: file.read_bytes() for file in mesh.rglob("*.*")}

    done = run("cert", *words, "--dir", str(mesh))

    assert done.exit_code == 2
    assert "exists already, and is not overwritten" in done.stderr
    assert {file: file.read_bytes() for file in mesh.rglob("*.*")} == before


@pytest.mark.parametrize(
    ("words", "otherwise"),
    [
        (["ca"], "`qmq cert rollover` replaces it"),
        (["node", "a"], "`qmq cert renew` renews it; for other names, move it away first"),
        (["client", "ann"], "`qmq cert renew` renews it"),
    ],
)
def test_what_exists_already_is_refused_with_what_to_do(run: Run, mesh: Path, words: list[str], otherwise: str) -> None:
    assert f"is not overwritten; {otherwise}\n" in run("cert", *words, "--dir", str(mesh)).stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["node", "A B"], "'A B' is no name of a node"),
        (["node", "clients"], "'clients' is no name of a node"),
        (["client", "../ann"], "'../ann' must be 1 to 63 letters, digits, and -._@"),
        (["client", "a..b"], "'a..b' is no host name and no address"),
        (["client", "ca"], "and neither ca nor clients-ca"),
        (["client", "clients-ca"], "and neither ca nor clients-ca"),
        (["node", "c", "--address", "two words"], "'two words' is no host name and no address"),
        (["node", "c", "--address", "010.0.0.1"], "'010.0.0.1' is no host name and no address"),
        (["node", "c", "--address", "b"], "one certificate must not name both nodes, b and c"),
    ],
)
def test_a_name_that_cannot_be_one_is_refused(run: Run, mesh: Path, words: list[str], why: str) -> None:
    done = run("cert", *words, "--dir", str(mesh))

    assert done.exit_code == 2
    assert why in done.stderr


def test_a_folder_without_authorities_says_how_to_make_them(run: Run, tmp_path: Path) -> None:
    done = run("cert", "node", "a", "--dir", str(tmp_path))

    assert done.exit_code == 2
    assert (
        f"{tmp_path}/authority/ca.pem: is missing; `qmq cert ca --dir {tmp_path}` makes the authorities" in done.stderr
    )


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("authority/ca.pem", "is no certificate in PEM form"),
        ("authority/ca.key", "is no private key in PEM form, or it is encrypted"),
        ("a/node.pem", "is no certificate in PEM form"),
    ],
)
def test_a_file_that_is_damaged_is_named(run: Run, mesh: Path, file: str, why: str) -> None:
    (mesh / file).write_text("no PEM")

    done = run("cert", "renew", "--all", "--dir", str(mesh))

    assert done.exit_code == 2
    assert f"{mesh / file}: {why}" in done.stderr


def test_a_key_of_another_authority_signs_nothing(run: Run, mesh: Path) -> None:
    (mesh / "authority" / "ca.key").write_bytes((mesh / "authority" / "clients-ca.key").read_bytes())

    done = run("cert", "node", "c", "--dir", str(mesh))

    assert f"{mesh}/authority/ca.key: is not the key of the last certificate in" in done.stderr
    assert not (mesh / "c").exists()


def test_without_the_library_the_error_says_how_to_install_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("cryptography", "qmq.deploy"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)

    done = run("cert", "ca", "--dir", str(tmp_path))

    assert done.exit_code == 1
    assert done.stderr == "qmq: certificates need the library cryptography: pip install 'qmq[cert]'\n"


def test_show_says_what_each_certificate_is_for_and_when_it_ends(run: Run, mesh: Path) -> None:
    found = facts(run, mesh)

    assert {file: (row["use"], row["days_left"]) for file, row in found.items() if file.count("ca") == 0} == {
        "a/node.pem": ("node", 9),
        "b/node.pem": ("node", 364),
        "clients/ann.pem": ("client", 364),
    }
    assert found["authority/ca.pem"]["use"] == "authority"
    assert "CN=nodes of qmq, 2" in run("cert", "show", "--dir", str(mesh)).stdout
    assert run("cert", "show", "--dir", str(mesh)).stdout.splitlines()[0].split() == "FILE USE NAMES ENDS DAYS".split()


def test_show_fails_if_one_ends_soon(run: Run, mesh: Path) -> None:
    assert run("cert", "show", "--dir", str(mesh), "--within", "8").exit_code == 0

    done = run("cert", "show", "--dir", str(mesh), "--within", "9")

    assert done.exit_code == 1
    assert done.stderr == "qmq: 1 certificate with an end in the next 9 days\n"


def test_show_reads_what_a_node_file_names(run: Run, mesh: Path) -> None:
    file = mesh / "node.toml"
    file.write_text('[mesh.tls]\ncertificate = "a/node.pem"\nkey = "a/node.key"\nca = "a/ca.pem"\n')

    assert facts(run, mesh, "--config", str(file)).keys() == {"a/node.pem", "a/ca.pem"}

    file.write_text("")
    assert "names no certificate" in run("cert", "show", "--config", str(file)).stderr


def test_renew_issues_again_only_what_ends_soon_for_the_same_names(run: Run, mesh: Path) -> None:
    before = {file: file.read_bytes() for file in mesh.rglob("*.*")}

    done = run("cert", "renew", "--dir", str(mesh))

    changed = {file for file in mesh.rglob("*.*") if file.read_bytes() != before[file]}
    assert changed == {mesh / "a" / "node.pem", mesh / "a" / "node.key"}
    assert done.stdout.splitlines()[0] == str(mesh / "a" / "node.pem")
    row = facts(run, mesh)["a/node.pem"]
    assert (row["names"], row["use"], row["days_left"]) == (["a", "127.0.0.1"], "node", 364)
    assert run("cert", "renew", "--dir", str(mesh)).stdout == "none ends within 30 days\n"


@pytest.mark.parametrize("words", [[], ["--all"]])
def test_a_folder_with_nothing_to_renew_is_an_error(run: Run, tmp_path: Path, words: list[str]) -> None:
    run("cert", "ca", "--dir", str(tmp_path / "new"))
    for folder in (tmp_path / "nowhere", tmp_path, tmp_path / "new"):
        done = run("cert", "renew", *words, "--dir", str(folder))

        assert done.exit_code == 1
        assert done.stderr == f"qmq: {folder}: no certificates of nodes or clients in its folders\n"


def test_a_certificate_whose_key_is_elsewhere_is_renewed_with_a_key_here(run: Run, mesh: Path) -> None:
    (mesh / "b" / "node.key").unlink()

    done = run("cert", "renew", "--all", "--dir", str(mesh))

    assert f"{mesh}/b/node.pem: node.key was missing, and is new" in done.stdout.splitlines()
    a, b = mesh / "a" / "node.pem", mesh / "b" / "node.pem"
    assert shown(a, mesh / "a" / "ca.pem", b, mesh / "b" / "ca.pem") == ["a", "127.0.0.1"]


def test_a_rollover_leaves_out_no_folder_without_keys(run: Run, mesh: Path) -> None:
    (mesh / "b" / "node.key").unlink()
    (mesh / "clients" / "ann.pem").unlink()
    (mesh / "clients" / "ann.key").unlink()

    assert run("cert", "rollover", "begin", "--dir", str(mesh)).exit_code == 0

    both = (mesh / "authority" / "ca.pem").read_bytes()
    assert {(mesh / name / "ca.pem").read_bytes() for name in ("a", "b", "clients")} == {both}
    early = run("cert", "rollover", "end", "--dir", str(mesh))
    assert f"{mesh}/b/node.pem: is signed by the authority that ends" in early.stderr
    assert run("cert", "renew", "--all", "--dir", str(mesh)).exit_code == 0
    assert run("cert", "rollover", "end", "--dir", str(mesh)).exit_code == 0


def test_no_certificate_outlives_its_authority(run: Run, tmp_path: Path) -> None:
    run("cert", "ca", "--days", "20", "--dir", str(tmp_path))
    run("cert", "node", "a", "--dir", str(tmp_path))

    assert {row["ends"] for row in facts(run, tmp_path).values()} == {facts(run, tmp_path)["a/node.pem"]["ends"]}


def test_an_authority_that_has_expired_signs_nothing(run: Run, mesh: Path) -> None:
    now = datetime.now(UTC) + timedelta(days=3651)

    with pytest.raises(ConfigError, match="the authority has expired; `qmq cert rollover begin` makes another one"):
        MeshFolder(mesh, now).make_node("c", [], 1)


def test_a_rollover_never_has_two_nodes_that_refuse_each_other(run: Run, mesh: Path) -> None:
    """In each step one node is behind the other by that step."""

    def accept_each_other(old: Path, new: Path) -> None:
        for one, other in ((old / "a", new / "b"), (new / "b", old / "a"), (new / "a", old / "b")):
            shown(one / "node.pem", one / "ca.pem", other / "node.pem", other / "ca.pem")

    was = mesh.with_name("was")
    for step in (["rollover", "begin"], ["renew", "--all"], ["rollover", "end"]):
        was = was.with_name(f"{was.name}-")
        for file in mesh.rglob("*.*"):
            copy = was / file.relative_to(mesh)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
        done = run("cert", *step, "--dir", str(mesh))
        assert done.exit_code == 0, done.output
        accept_each_other(was, mesh)

    first = mesh.with_name("was-")
    with pytest.raises(ssl.SSLError):  # the first authority is over
        shown(mesh / "a" / "node.pem", mesh / "a" / "ca.pem", first / "b" / "node.pem", mesh / "b" / "ca.pem")


def test_the_steps_of_a_rollover_are_refused_out_of_order(run: Run, mesh: Path) -> None:
    assert "no rollover is under way" in run("cert", "rollover", "end", "--dir", str(mesh)).stderr
    assert run("cert", "rollover", "begin", "--dir", str(mesh)).exit_code == 0

    again = run("cert", "rollover", "begin", "--dir", str(mesh))
    early = run("cert", "rollover", "end", "--dir", str(mesh))

    assert "a rollover is under way" in again.stderr
    assert early.exit_code == 2
    assert f"{mesh}/b/node.pem: is signed by the authority that ends; renew it with --all first" in early.stderr
    assert "ann" not in early.stderr, "the authority of clients is another one"


def test_the_authority_of_clients_rolls_over_by_itself(run: Run, mesh: Path) -> None:
    for step in (["rollover", "begin", "--clients"], ["renew", "--all"], ["rollover", "end", "--clients"]):
        assert run("cert", *step, "--dir", str(mesh)).exit_code == 0

    a, ann = mesh / "a" / "node.pem", mesh / "clients" / "ann.pem"
    assert shown(a, mesh / "a" / "clients-ca.pem", ann, mesh / "clients" / "ca.pem") == ["a", "127.0.0.1"]


def test_show_asks_listeners_for_what_they_use_now(run: Run, mesh: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(mesh / "a" / "node.pem", mesh / "a" / "node.key")
    at = f"127.0.0.1:{listening.getsockname()[1]}"

    def serve() -> None:
        connected, _ = listening.accept()
        with server.wrap_socket(connected, server_side=True) as secured:
            secured.recv(1)

    with listening, ThreadPoolExecutor() as threads:
        served = threads.submit(serve)
        done = run("cert", "show", "--at", at, "--json", "--dir", str(mesh))
        served.result()

    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert (row["address"], row["names"], row["use"]) == (at, ["a", "127.0.0.1"], "node")
    silent = run("cert", "show", "--at", at, "--dir", str(mesh))
    assert (silent.exit_code, silent.stderr) == (1, f"qmq: {at}: Connection refused\n")
