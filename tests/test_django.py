"""The application for Django projects: a project in processes of its own, whole nodes behind real listeners."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import qmq.client.blocking
from tests.client.styles import Nodes, nodes

pytest.importorskip("django")

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 60.0

SETTINGS = """
SECRET_KEY = "tests"
INSTALLED_APPS = ["qmq.client.django"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}}
USE_TZ = True
QMQ = {{"addresses": {addresses!r}, "redial_seconds_max": 0.2, "connect_timeout_seconds": 5.0, {more}}}
"""
CONSUMERS = '"consumers": {"/queue/jobs": "jobs.resize", "/queue/mail": "jobs.mail"}'
JOBS = """
import sys

def say(*words):
    print(*words, flush=True)

def resize(message):
    say("resize", message.body.decode(), message.headers.get("delivery-count", "1"))
    if message.body == b"bad" and "delivery-count" not in message.headers:
        raise ValueError("bad")

def slow(message):
    say("begins")
    sys.stdin.readline()
    say("ends")

def mail(message):
    say("mail", message.body.decode(), message.headers["content-type"])
"""


@pytest.fixture
def mesh() -> Iterator[Nodes]:
    with nodes() as mesh:
        yield mesh


@pytest.fixture
def project(mesh: Nodes, tmp_path: Path) -> Path:
    write(tmp_path, mesh.addresses, CONSUMERS)
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


def write(folder: Path, addresses: list[str], more: str = "") -> None:
    (folder / "settings.py").write_text(SETTINGS.format(addresses=addresses, more=more))


def command(project: Path, *words: str) -> tuple[list[str], dict[str, str]]:
    environment = {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": f"{project}:{ROOT}"}
    return [sys.executable, *words], environment


def run(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line, environment = command(project, *words)
    return subprocess.run(line, env=environment, cwd=project, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


@contextmanager
def consuming(project: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    line, environment = command(project, "-m", "django", "qmq_consume", *words)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, env=environment, cwd=project, **pipes) as running:  # type: ignore[call-overload]
        try:
            assert running.stderr.readline().startswith("consuming ")
            yield running
        finally:
            running.kill()


def test_messages_go_to_the_functions_of_the_setting_and_a_failure_is_tried_again(mesh: Nodes, project: Path) -> None:
    with consuming(project, "--threads", "2") as running, qmq.client.blocking.connect(mesh.addresses) as client:
        client.send("/queue/jobs", b"17")
        assert running.stdout.readline() == "resize 17 1\n"
        client.send("/queue/jobs", b"bad")
        assert [running.stdout.readline() for _ in range(2)] == ["resize bad 1\n", "resize bad 2\n"]
        client.send("/queue/mail", b"ann", {"content-type": "text/plain"})
        assert running.stdout.readline() == "mail ann text/plain\n"

        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=PATIENCE_SECONDS)

    assert running.returncode == 0
    assert re.search(r"resize failed at message \S+\n", errors) and "ValueError: bad" in errors


def test_what_was_not_processed_when_the_command_stops_is_delivered_again(mesh: Nodes, project: Path) -> None:
    with consuming(project, "/queue/jobs", "--prefetch", "5") as running:
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=PATIENCE_SECONDS)
    with qmq.client.blocking.connect(mesh.addresses) as client:
        client.send("/queue/jobs", b"18")
        with client.subscribe("/queue/jobs") as messages, messages.receive(timeout_seconds=PATIENCE_SECONDS) as message:
            assert message.body == b"18"


def test_a_function_that_runs_when_the_command_stops_finishes_and_its_message_is_done(
    mesh: Nodes, project: Path
) -> None:
    with consuming(project, "/queue/jobs", "jobs.slow") as running:
        with qmq.client.blocking.connect(mesh.addresses) as client:
            client.send("/queue/jobs", b"19")
            assert running.stdout.readline() == "begins\n"
            running.send_signal(signal.SIGTERM)
            client.send("/queue/jobs", b"20")
            output, _ = running.communicate("\n", timeout=PATIENCE_SECONDS)

            assert (running.returncode, output) == (0, "ends\n")
            with client.subscribe("/queue/jobs") as messages:
                message = messages.receive(timeout_seconds=PATIENCE_SECONDS)
                assert (message.body, message.delivery_count) == (b"20", 1)


def test_only_the_consumer_that_is_named_is_imported(mesh: Nodes, project: Path) -> None:
    write(project, mesh.addresses, CONSUMERS.replace("jobs.mail", "jobs.none"))

    with (  # The checks of Django, which come first, import all.
        consuming(project, "/queue/jobs", "--skip-checks") as running,
        qmq.client.blocking.connect(mesh.addresses) as client,
    ):
        client.send("/queue/jobs", b"17")
        assert running.stdout.readline() == "resize 17 1\n"


SENDS = """
import django

django.setup()
from django.db import transaction

import qmq.client.django as mesh

mesh.send("/queue/mail", "text")
mesh.send("/queue/mail", {"id": 7}, {"priority": "1"})
try:
    with transaction.atomic():
        mesh.send_on_commit("/queue/mail", "rolled back")
        raise KeyError
except KeyError:
    pass
row = {"id": 8}
with transaction.atomic():
    mesh.send_on_commit("/queue/mail", row)
    row["id"] = 9
    mesh.send("/queue/mail", b"before the commit", {"content-type": "none"})
mesh.close()
"""


def test_bodies_are_bytes_text_or_json_and_a_rollback_sends_nothing(mesh: Nodes, project: Path) -> None:
    done = run(project, "-c", SENDS)
    assert done.returncode == 0, done.stderr

    with qmq.client.blocking.connect(mesh.addresses) as client, client.subscribe("/queue/mail") as messages:
        got = []
        for _ in range(4):
            with messages.receive(timeout_seconds=PATIENCE_SECONDS) as message:
                got.append((message.body, message.headers["content-type"]))

    assert got == [
        (b"text", "text/plain;charset=utf-8"),
        (b"before the commit", "none"),
        (b'{"id": 8}', "application/json"),
        (b'{"id": 7}', "application/json"),
    ]


@pytest.mark.parametrize(
    ("addresses", "more", "code", "text"),
    [
        ([], "", "qmq.E001", "addresses"),
        (["127.0.0.1:1"], '"adresses": 1', "qmq.E002", "no key 'adresses'"),
        (["no address"], "", "qmq.E003", "no address"),
        (["127.0.0.1:1"], '"consumers": {"/queue/a": "jobs.none"}', "qmq.E004", "/queue/a"),
        (["127.0.0.1:1"], '"consumers": {"/queue/a": "jobs.sys"}', "qmq.E004", "jobs.sys is no function"),
    ],
)
def test_a_wrong_setting_is_found_by_the_check(
    tmp_path: Path, addresses: list[str], more: str, code: str, text: str
) -> None:
    write(tmp_path, addresses, more)
    (tmp_path / "jobs.py").write_text(JOBS)

    done = run(tmp_path, "-m", "django", "check")

    assert done.returncode == 1
    assert code in done.stderr and text in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["/queue/none"], "no consumer for /queue/none"),
        (["/queue/jobs", "jobs.none"], '"none"'),
        (["--threads", "0"], "at least 1"),
        (["/nonsense/a", "jobs.resize"], "bad-destination"),
        (["--durable", "name"], "durable subscriptions are of fanouts"),
    ],
)
def test_a_wrong_command_ends_with_what_is_wrong(project: Path, words: list[str], text: str) -> None:
    done = run(project, "-m", "django", "qmq_consume", *words)

    assert done.returncode == 1
    assert re.search(r"^CommandError: .*" + re.escape(text), done.stderr, re.MULTILINE)


def test_without_a_node_the_command_ends_and_says_so(tmp_path: Path) -> None:
    write(tmp_path, ["127.0.0.1:1"], CONSUMERS)
    (tmp_path / "jobs.py").write_text(JOBS)

    done = run(tmp_path, "-m", "django", "qmq_consume")

    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr


def test_the_project_of_the_page_prints_what_it_says(mesh: Nodes, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "django.md").read_text("utf-8")
    settings, jobs, sends = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    write(tmp_path, mesh.addresses)
    for number, port in enumerate((61613, 61614, 61615)):
        settings = settings.replace(f"127.0.0.1:{port}", mesh.addresses[number % len(mesh.addresses)])
    before = (tmp_path / "settings.py").read_text()
    (tmp_path / "settings.py").write_text(before.replace('"qmq.client.django"', "") + settings)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(jobs)

    sent = run(
        tmp_path, "-c", f"import django\n\ndjango.setup()\n{sends}\nfrom qmq.client.django import close\nclose()"
    )

    assert sent.returncode == 0, sent.stderr
    with consuming(tmp_path) as running:
        assert running.stdout.readline() == "done resize 17\n"
