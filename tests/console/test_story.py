"""A queue is poisoned: an operator finds it, stops the damage, brings it in order, and reads it all in the audit."""

import json
import re
from typing import Any

from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

from .conftest import Console, sync_api

expect = sync_api.expect


def fail(node: Console, queue: str, dead_letters: str) -> None:
    """A consumer that gives back what it gets, until a message is a dead letter.

    How many deliveries that takes depends on time: what is given back waits a little before it is delivered again, and
    others are delivered meanwhile.
    """
    while node.depth(dead_letters) == 0:
        got = node.post(f"/v1/queues/{queue}/receive", {"max": 1, "wait_seconds": 20})["messages"]
        node.post("/v1/acks", {"acks": [{"ack_token": got[0]["ack_token"], "action": "nack"}]})


def confirm(page: Any, title: str, button: str, **fields: str) -> None:
    """One action of the page of a queue."""
    page.get_by_role("button", name=title, exact=True).click()
    dialog = page.get_by_role("dialog")
    for label, value in fields.items():
        dialog.get_by_label(label.replace("_", " "), exact=label == "To").fill(value)
    dialog.get_by_role("button", name=button, exact=True).click()
    expect(dialog).to_have_count(0)


def test_poisoned_queue_is_brought_in_order_from_the_page(page: Any, mesh: Cluster, node: Console) -> None:
    node.post(
        "/v1/control/definitions/put/policy/queue/invoices", {"delivery_limit": 3, "dead_letter": "/queue/broken"}
    )
    node.send("invoices", *[{"body": json.dumps({"no": no}), "headers": {"version": "7"}} for no in range(20)])
    fail(node, "invoices", "broken")
    consumer = mesh.client("b")
    consumer.subscribe("/queue/invoices", ack="client-individual", headers={"prefetch-count": "1"})

    # Find it, and its oldest message.
    page.goto(f"{node.address}/#/queues")
    page.get_by_role("searchbox").fill("invo")
    page.get_by_role("link", name="invoices").click()
    expect(page.locator("dl.facts")).to_contain_text(re.compile(r"Dead letters\s*[1-9]"))
    page.locator("tbody button.id").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("version")
    page.keyboard.press("Escape")

    # Pause, move what is bad aside, resume.
    confirm(page, "Pause", "Pause")
    expect(page.locator("main")).to_contain_text("paused: delivery")
    page.get_by_role("button", name="Move", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To", exact=True).fill("/queue/aside-invoices")
    dialog.get_by_label("Only messages that match").fill("version = '7'")
    dialog.get_by_role("button", name=re.compile(r"Move \d+ messages")).click()
    expect(page.locator("#said")).to_contain_text("moved to /queue/aside-invoices")
    confirm(page, "Resume", "Resume")

    # Which consumer it is; end it.
    page.get_by_role("tab", name="Consumers").click()
    page.locator("tbody tr", has_text="b/").get_by_role("button", name="Kick").click()
    page.get_by_role("dialog").get_by_role("button", name="End the connection").click()
    eventually(consumer.ended.is_set, "the client is still connected")

    # Bring one dead letter back.
    page.goto(f"{node.address}/#/queue/broken")
    confirm(page, "Redrive", "Redrive 1 message", How_many="1")

    page.goto(f"{node.address}/#/audit")
    for event in ("pause", "move", "resume", "kick", "redrive"):
        expect(page.locator("tbody")).to_contain_text(event)
