"""`qmq init`: what it writes is what `qmq config check` accepts, and it overwrites nothing."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from qmq.config import load
from qmq.config.secrecy import is_open_to_others
from tests.cli.conftest import Run as Run
from tests.cli.conftest import run as run

THREE = ("--node", "a=127.0.0.2", "--node", "b=127.0.0.3", "--node", "c=host.example")
ROOT = ("--admin", "root", "--passcode-stdin")
PASSWORD = "correct horse\n"
OF_NODE = {"ca.pem", "clients-ca.pem", "node.key", "node.pem", "node.toml", "peers.toml"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "shop"


def names_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def nothing_is_left(folder: Path, result: Result) -> bool:
    return (
        result.exit_code in (1, 2)
        and not folder.exists()
        and (not folder.parent.exists() or names_in(folder.parent) == set())
    )


def test_each_folder_has_all_that_a_node_needs_and_is_checked(run: Run, folder: Path) -> None:
    done = run("init", str(folder), *THREE, *ROOT, input=PASSWORD)

    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[:3] == [f"{folder}/{name}/node.toml: ok" for name in "abc"]
    assert names_in(folder) == {"a", "b", "c", "authority", "README.md", "prometheus.yml", "alerts.yaml"}
    for name in "abc":
        assert names_in(folder / name) == OF_NODE | {"qmq.service"}
        file = folder / name / "node.toml"
        checked = run("config", "check", "--config", str(file))
        assert checked.output == f"{file}: ok\n{file.with_name('peers.toml')}: ok\n"


def test_node_and_peers_have_what_was_asked_for(run: Run, folder: Path) -> None:
    run("init", str(folder), *THREE, *ROOT, "--mesh", "north", input=PASSWORD)

    settings, peers = load(folder / "c" / "node.toml", None)

    assert peers is not None and peers.mesh == "north"
    assert [(peer.name, str(peer.mesh)) for peer in peers.nodes] == [
        ("a", "127.0.0.2:61713"),
        ("b", "127.0.0.3:61713"),
        ("c", "host.example:61713"),
    ]
    assert {str(one.address) for one in settings.listeners} == {
        f"host.example:{port}" for port in (61613, 61680, 61672)
    }
    assert all(one.tls is not None for one in settings.listeners)
    assert settings.definitions["user"]["root"]["groups"] == ["administrator"]
    assert PASSWORD.strip() not in (folder / "c" / "node.toml").read_text("utf-8")


def test_no_file_is_open_to_other_users(run: Run, folder: Path) -> None:
    run("init", str(folder), *THREE, *ROOT, input=PASSWORD)

    assert [file for file in folder.rglob("*") if is_open_to_others(file)] == []


def test_the_readme_has_five_lines(run: Run, folder: Path) -> None:
    run("init", str(folder), *THREE, *ROOT, input=PASSWORD)

    assert len((folder / "README.md").read_text("utf-8").splitlines()) == 5


def test_the_readme_of_a_mesh_without_tls_speaks_of_no_certificates(run: Run, folder: Path) -> None:
    run("init", str(folder), "--no-tls", "--node", "a=127.0.0.2", "--node", "b=127.0.0.3")

    readme = (folder / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) == 5
    assert "one of the folders a, b." in readme
    assert "mesh.secret" in readme
    assert "cert" not in readme


def test_one_blank_line_is_before_each_node_of_the_peers_file(run: Run, folder: Path) -> None:
    run("init", str(folder), *THREE, *ROOT, input=PASSWORD)
    run("init", str(folder), "--add", "d=127.0.0.5")

    text = (folder / "a" / "peers.toml").read_text("utf-8")

    assert (text.count("\n\n[[nodes]]"), text.count("\n\n\n"), text.endswith("\n\n")) == (4, 0, False)


def test_an_address_of_ipv6_is_found_in_the_certificate(run: Run, folder: Path) -> None:
    done = run("init", str(folder), "--node", "a=::2", *ROOT, input=PASSWORD)

    assert done.exit_code == 0, done.output
    assert "refuse it" not in done.output


def test_a_mesh_on_loopback_without_tls_has_a_secret_and_needs_no_user(run: Run, folder: Path) -> None:
    done = run("init", str(folder), "--no-tls", "--node", "a=127.0.0.1:20000", "--node", "b=127.0.0.1:20001")

    assert done.exit_code == 0, done.output
    assert names_in(folder) == {"a", "b", "README.md"}
    secrets = {(folder / name / "mesh.secret").read_text("utf-8") for name in "ab"}
    assert len(secrets) == 1
    _, peers = load(folder / "b" / "node.toml", None)
    assert peers is not None
    assert [address.port for address in peers.nodes[1].addresses] == [20001, 20101, 20068, 20060]


def test_an_address_may_be_one_of_ipv6(run: Run, folder: Path) -> None:
    nodes = ("--node", "a=fd00::1", "--node", "b=[fd00::2]:700")

    assert run("init", str(folder), *nodes, *ROOT, input=PASSWORD).exit_code == 0

    _, peers = load(folder / "a" / "node.toml", None)
    assert peers is not None
    assert [str(peer.client) for peer in peers.nodes] == ["[fd00::1]:61613", "[fd00::2]:700"]


def test_an_empty_folder_is_used_and_any_other_is_left_alone(run: Run, folder: Path) -> None:
    folder.mkdir(parents=True)
    assert run("init", str(folder), *THREE, *ROOT, input=PASSWORD).exit_code == 0
    before = {file: file.read_bytes() for file in folder.rglob("*.*")}

    done = run("init", str(folder), *THREE, *ROOT, input=PASSWORD)

    assert done.exit_code == 1
    assert done.stderr == f"qmq: {folder}: is not empty, and nothing is overwritten\n"
    assert {file: file.read_bytes() for file in folder.rglob("*.*")} == before


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--node", "A=127.0.0.1"), "'A=127.0.0.1' must be NAME=HOST"),
        (("--node", "a"), "'a' must be NAME=HOST"),
        (("--node", "a="), "'a=' must be NAME=HOST"),
        (("--node", "a=:700"), "must name a host before the colon, such as 127.0.0.1:61613\n"),
        (("--node", "a=127.0.0.2:abc"), "must have a port from 0 to 65535"),
        (("--node", "a=http://x"), "must have a port from 0 to 65535"),
        (("--node", "a=http://x:80"), "must have a host name or an IP address"),
        (("--node", "a=0.0.0.0"), "'a=0.0.0.0' must be an address that other nodes can dial"),
        (("--node", "a=::"), "'a=::' must be an address that other nodes can dial"),
        (("--kubernetes", "BadNS"), "--kubernetes 'BadNS': must be a namespace"),
        (("--kubernetes", "a_b"), "--kubernetes 'a_b': must be a namespace"),
        (("--kubernetes", "Bad NS"), "--kubernetes 'Bad NS': must be a namespace"),
        (("--kubernetes", "-a"), "--kubernetes '-a': must be a namespace"),
        (("--kubernetes", ""), "--kubernetes '': must be a namespace"),
        ((*THREE, "--admin", "a:b"), "--admin 'a:b': must be without a colon"),
        (("--node", "a=b c"), "must have a host name or an IP address"),
        (("--node", "a=127.0.0.1:99999"), "must have a port from 0 to 65535"),
        ((*THREE, "--node", "a=127.0.0.9"), "must not have two nodes named 'a'"),
        ((*THREE, "--node", "d=127.0.0.2"), "must not use 127.0.0.2:61613 twice"),
        (("--node", "authority=10.0.0.1"), "'authority' is no name of a node"),
        (("--node", "a=b", "--node", "b=a"), "one certificate must not name both nodes"),
        ((*THREE, "--no-tls"), "is not on loopback, so links need TLS"),
        (("--compose", "--kubernetes", "x"), "they exclude each other"),
        (("--compose", "--no-tls"), "they exclude each other"),
        ((), "--node NAME=HOST is needed"),
        ((*THREE, "--mesh", "not a name"), "mesh"),
    ],
)
def test_what_cannot_be_a_mesh_is_refused_and_nothing_is_written(
    run: Run, folder: Path, words: tuple[str, ...], why: str
) -> None:
    done = run("init", str(folder), *ROOT, *words, input=PASSWORD)

    assert why in done.stderr
    assert nothing_is_left(folder, done)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "--admin NAME is needed: only users can log in"),
        (("--passcode-stdin",), "--admin NAME is needed"),
        (("--admin", "root"), "--passcode-stdin is needed where no terminal can ask"),
        (ROOT, "the password is empty"),
    ],
)
def test_a_mesh_with_tls_needs_a_user_with_a_password(run: Run, folder: Path, words: tuple[str, ...], why: str) -> None:
    done = run("init", str(folder), *THREE, *words, input="")

    assert why in done.stderr
    assert nothing_is_left(folder, done)


def test_on_a_terminal_it_asks_for_what_is_missing(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qmq.cli.deploy.init._can_ask", lambda: True)
    said = ["a=10.0.0.1", "nonsense", "b=10.0.0.2", "", "ann", "secret", "secret"]

    done = run("init", str(folder), input="\n".join([*said, ""]))

    assert done.exit_code == 0, done.output
    assert "'nonsense' must be NAME=HOST" in done.stderr
    settings, peers = load(folder / "a" / "node.toml", None)
    assert peers is not None and [peer.name for peer in peers.nodes] == ["a", "b"]
    assert set(settings.definitions["user"]) == {"ann"}


def test_on_a_terminal_a_mesh_on_loopback_may_have_no_user(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qmq.cli.deploy.init._can_ask", lambda: True)

    done = run("init", str(folder), "--no-tls", "--node", "a=127.0.0.2", input="\n")

    assert done.exit_code == 0, done.output
    assert "the first user, an administrator (nothing: no login): " in done.stderr
    assert load(folder / "a" / "node.toml", None)[0].definitions.get("user") is None


def test_what_cannot_be_a_mesh_is_refused_before_a_password_is_asked_for(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qmq.cli.deploy.init._can_ask", lambda: True)

    done = run("init", str(folder), *THREE, "--node", "a=127.0.0.9", input="root\nsecret\nsecret\n")

    assert "must not have two nodes named 'a'" in done.stderr
    assert "administrator" not in done.stderr
    assert nothing_is_left(folder, done)


def manifests(file: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(file.read_text("utf-8")))


def test_a_compose_file_fits_its_schema_and_names_files_that_exist(run: Run, folder: Path) -> None:
    schemas = pytest.importorskip("check_jsonschema")
    done = run("init", str(folder), "--compose", *ROOT, input=PASSWORD)
    assert done.exit_code == 0, done.output

    (found,) = manifests(folder / "compose.yaml")

    schema = Path(schemas.__file__).parent / "builtin_schemas" / "vendor" / "compose-spec.json"
    pytest.importorskip("jsonschema").validate(found, json.loads(schema.read_text("utf-8")))
    assert set(found["services"]) == {"a", "b", "c"}
    for service in found["services"].values():
        assert all((folder / volume.split(":")[0]).is_dir() for volume in service["volumes"])
    ports = [port for service in found["services"].values() for port in service["ports"]]
    assert len(set(ports)) == 9
    assert names_in(folder / "a") == OF_NODE


def test_kubernetes_manifests_fit_the_schemas_and_mount_the_files_of_each_node(run: Run, folder: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    done = run("init", str(folder), "--kubernetes", "prod", *ROOT, input=PASSWORD)
    assert done.exit_code == 0, done.output

    found = manifests(folder / "kubernetes.yaml")

    for manifest in found:
        validate(manifest, "1.31", strict=True)
    kinds = {(one["kind"], one["metadata"]["name"]): one for one in found}
    assert kinds.keys() == {
        ("Service", "qmq"),
        ("Service", "qmq-clients"),
        ("PodDisruptionBudget", "qmq"),
        ("StatefulSet", "qmq"),
    }
    pods = kinds["StatefulSet", "qmq"]["spec"]["template"]["spec"]
    projected = next(one["projected"] for one in pods["volumes"] if one["name"] == "files")
    items = [
        (source["secret"]["name"], item["path"])
        for source in projected["sources"]
        for item in source["secret"]["items"]
    ]
    assert sorted(items) == sorted((f"qmq-{at}", f"qmq-{at}/{file}") for at in range(3) for file in OF_NODE)
    assert all((folder / path).exists() for _, path in items)
    _, peers = load(folder / "qmq-2" / "node.toml", None)
    assert peers is not None and str(peers.nodes[0].mesh) == "qmq-0.qmq.prod.svc.cluster.local:61713"


def test_the_unit_runs_the_node_that_the_folder_describes(run: Run, folder: Path) -> None:
    run("init", str(folder), *THREE, *ROOT, input=PASSWORD)

    lines = (folder / "b" / "qmq.service").read_text("utf-8").splitlines()

    assert "Description=QMQ node b of the mesh shop" in lines
    assert "ExecReload=/bin/kill -HUP $MAINPID" in lines
    assert tomllib.loads((folder / "b" / "node.toml").read_text("utf-8"))["name"] == "b"


def test_systemd_accepts_the_unit_and_finds_it_well_confined(run: Run, folder: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    run("init", str(folder), *THREE, *ROOT, input=PASSWORD)
    unit = folder / "a" / "qmq.service"
    text = unit.read_text("utf-8")
    # Where the page installs QMQ; here it is elsewhere.
    unit.write_text(text.replace("/opt/qmq/bin/qmq", sys.executable), "utf-8")

    verified = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
    exposure = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=20", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (verified.stdout, verified.stderr, verified.returncode) == ("", "", 0)
    assert exposure.returncode == 0, exposure.stdout


@pytest.mark.parametrize("with_tls", [True, False])
def test_a_node_is_added_to_the_files_of_a_mesh(run: Run, folder: Path, with_tls: bool) -> None:
    words = ROOT if with_tls else ("--no-tls",)
    run("init", str(folder), "--node", "a=127.0.0.2", "--node", "b=127.0.0.3", *words, input=PASSWORD)
    own_of_a = (folder / "a" / "node.toml").read_bytes()

    done = run("init", str(folder), "--add", "d=127.0.0.5:700")

    assert done.exit_code == 0, done.output
    assert names_in(folder / "d") == names_in(folder / "a")
    assert "of the folders a, b, d" in (folder / "README.md").read_text("utf-8")
    if with_tls:
        targets = 'targets: ["127.0.0.2:61680", "127.0.0.3:61680", "127.0.0.5:767"]'
        assert targets in (folder / "prometheus.yml").read_text("utf-8")
    assert (folder / "a" / "node.toml").read_bytes() == own_of_a
    for name in "abd":
        settings, peers = load(folder / name / "node.toml", None)
        assert peers is not None and peers.version == 2
        assert [(peer.name, str(peer.client)) for peer in peers.nodes][2:] == [("d", "127.0.0.5:700")]
    assert settings.name == "d"
    assert [str(one.address) for one in settings.listeners] == ["127.0.0.5:700", "127.0.0.5:767", "127.0.0.5:759"]
    assert "Description=QMQ node d of" in (folder / "d" / "qmq.service").read_text("utf-8")
    checked = run("config", "check", "--config", str(folder / "d" / "node.toml"))
    assert checked.exit_code == 0, checked.output


def test_adding_a_node_excludes_the_options_of_a_new_mesh(run: Run, folder: Path) -> None:
    run("init", str(folder), *THREE, *ROOT, input=PASSWORD)
    more = ("--node", "e=127.0.0.6", "--no-tls", *ROOT, "--mesh", "x", "--compose", "--kubernetes", "y")

    done = run("init", str(folder), "--add", "d=127.0.0.5", *more, input=PASSWORD)

    assert done.exit_code == 2
    excluded = "--node, --mesh, --tls/--no-tls, --admin, --passcode-stdin, --compose, --kubernetes"
    assert f"--add changes a mesh that exists: it excludes {excluded}" in " ".join(done.stderr.split())
    assert not (folder / "d").exists()


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("a=127.0.0.9", "a: exists already"),
        ("d=127.0.0.3", "must not use 127.0.0.3:61613 twice"),
        ("d=a", "one certificate must not name both nodes"),
        ("D=x", "must be NAME=HOST"),
    ],
)
def test_a_node_that_cannot_be_added_changes_nothing(run: Run, folder: Path, node: str, why: str) -> None:
    run("init", str(folder), *THREE, *ROOT, input=PASSWORD)
    before = {file: file.read_bytes() for file in folder.rglob("*.*")}

    done = run("init", str(folder), "--add", node)

    assert done.exit_code != 0
    assert why in done.stderr
    assert {file: file.read_bytes() for file in folder.rglob("*.*")} == before


def test_a_node_is_added_only_where_all_have_the_same_peers_file(run: Run, folder: Path) -> None:
    assert "has no folders of nodes" in run("init", str(folder), "--add", "d=127.0.0.5").stderr
    run("init", str(folder), *THREE, *ROOT, input=PASSWORD)
    with (folder / "b" / "peers.toml").open("a") as file:
        file.write("# another\n")

    assert "but different ones" in run("init", str(folder), "--add", "d=127.0.0.5").stderr
