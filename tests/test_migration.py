"""The pages about other brokers promise nothing that the code does not have: settings exist, and what is "same" is on
our own pages.
"""

import re
from pathlib import Path

import pytest

from qmq.config import LimitSettings, ListenerSettings, MeshSettings, StorageSettings
from qmq.config.destinations.declared import QueueLifetime
from qmq.config.destinations.policy import DestinationPolicy

ROOT = Path(__file__).parents[1]
PAGES = ("migration.md", "nats-kafka-redis.md")
PAGE = "".join((ROOT / "docs" / name).read_text("utf-8") for name in PAGES)
OWN_PAGES = "".join(path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md") if path.name not in PAGES)
SOURCES = "".join(path.read_text("utf-8") for path in (ROOT / "qmq").rglob("*.py"))

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]
CODE = re.compile(r"`([^`]+)`")
HEADER = re.compile(r"[A-Za-z_][\w.-]*")

# In rows that are the same, and not headers: their settings, and headers whose names the code puts together.
NOT_HEADERS = {"hbGracePeriodMultiplier", "num-messages", "num-subscribers"}


def said_the_same() -> list[tuple[str, str]]:
    """(header, row) of every row that says a header is the same here."""
    found = []
    for row in ROWS:
        if len(row) > 1 and row[1].startswith("same"):
            for code in CODE.findall(row[0]):
                name = code.partition(":")[0]
                if HEADER.fullmatch(name) and name not in NOT_HEADERS:
                    found.append((name, row[0]))
    return found


def test_there_are_rows_that_say_the_same() -> None:
    assert len(said_the_same()) > 20


@pytest.mark.parametrize(("header", "row"), said_the_same())
def test_what_is_the_same_is_documented_and_read_by_the_code(header: str, row: str) -> None:
    assert f"`{header}" in OWN_PAGES, f"{row}: no page of ours names {header}"
    assert header in SOURCES, f"{row}: nothing reads {header}"


@pytest.mark.parametrize("setting", sorted(set(re.findall(r"`(?:limits|storage|mesh)\.\w+", PAGE))))
def test_settings_of_the_page_exist(setting: str) -> None:
    section, _, key = setting.strip("`").partition(".")
    fields = {"limits": LimitSettings, "storage": StorageSettings, "mesh": MeshSettings}[section].keys()

    assert key in fields


def test_policies_of_the_page_exist() -> None:
    words = {word for row in ROWS for cell in row[1:] for word in CODE.findall(cell)}
    policy_words = {word for word in words if re.fullmatch(r"[a-z]+_[a-z_]*|overflow|children", word)}

    sections = (DestinationPolicy, QueueLifetime, LimitSettings, ListenerSettings, MeshSettings)
    known = {key for section in sections for key in section.keys()}
    of_others = {"create_on_use", "confirm_publish", "ca_certs", "cert_reqs"}
    assert policy_words - known <= of_others


def test_error_codes_of_the_page_exist() -> None:
    row = next(row for row in ROWS if "`error-code`" in row[1])
    codes = CODE.findall(row[1].partition("(")[2])

    assert codes
    assert [code for code in codes if f'"{code}"' not in SOURCES and code != "…"] == []


@pytest.mark.parametrize(
    "other", ["ocamlmq", "radiator", "RabbitMQ", "ActiveMQ Classic", "Artemis", "xtomp", "NATS", "Kafka", "Redis"]
)
def test_every_broker_has_its_chapter(other: str) -> None:
    assert re.search(rf"^## {other}", PAGE, re.MULTILINE)
