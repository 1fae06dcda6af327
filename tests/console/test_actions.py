"""Each action from the page, on three nodes: first what it would do, then it is done."""

import json
import re
from typing import Any

from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

from .conftest import Console, picture, sync_api

expect = sync_api.expect


def open_queue(page: Any, node: Console, queue: str) -> None:
    page.goto(f"{node.address}/#/queue/{queue}")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"/queue/{queue}")
    expect(page.get_by_role("button", name="Publish")).to_be_visible()


def test_purge_of_many_messages_asks_for_the_name(page: Any, mesh: Cluster, node: Console) -> None:
    node.send("purged", *[{"body": "x"}] * 80)
    Console(mesh, "b").send("purged", *[{"body": "x"}] * 70)
    open_queue(page, node, "purged")

    page.get_by_role("button", name="Purge").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("150 waiting messages would be deleted")
    expect(dialog.locator("code")).to_have_text("qmq purge /queue/purged")
    button = dialog.get_by_role("button", name="Purge 150 messages")
    expect(button).to_be_disabled()
    assert node.depth("purged") == 150
    picture(page, "console-purge")
    dialog.get_by_label("Type /queue/purged to go on").fill("/queue/purged")
    button.click()

    expect(page.locator("#said")).to_contain_text("150 messages deleted.")
    eventually(lambda: node.depth("purged") == 0, "messages are left")


def test_purge_of_some_messages(page: Any, node: Console) -> None:
    node.send("some", *[{"body": "x"}] * 9)
    open_queue(page, node, "some")

    page.get_by_role("button", name="Purge").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("How many, the first ones").fill("4")
    expect(dialog.locator("code")).to_have_text("qmq purge /queue/some --count 4")
    dialog.get_by_role("button", name="Purge 4 messages").click()

    expect(page.locator("#said")).to_contain_text("4 messages deleted.")
    eventually(lambda: node.depth("some") == 5, "not four messages are gone")


def test_messages_that_match_are_moved(page: Any, node: Console) -> None:
    node.send("mixed", *[{"body": "x", "headers": {"version": str(number % 3)}} for number in range(9)])
    open_queue(page, node, "mixed")

    page.get_by_role("button", name="Move").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Move")).to_be_disabled()
    dialog.get_by_label("To", exact=True).fill("/queue/aside")
    dialog.get_by_label("Only messages that match").fill("version = '2'")
    expect(dialog.locator("code")).to_have_text(
        """qmq move /queue/mixed /queue/aside --selector 'version = '\\''2'\\'''"""
    )
    dialog.get_by_role("button", name="Move 3 messages").click()

    expect(page.locator("#said")).to_contain_text("3 messages moved to /queue/aside.")
    eventually(lambda: (node.depth("mixed"), node.depth("aside")) == (6, 3), "not three messages were moved")


def test_dead_letters_are_redriven(page: Any, mesh: Cluster, node: Console) -> None:
    node.post("/v1/control/definitions/put/policy/queue/failing", {"delivery_limit": 1, "dead_letter": "/queue/dead"})
    node.send("failing", {"body": "bad"})
    got = node.post("/v1/queues/failing/receive", {"max": 1, "wait_seconds": 20})["messages"]
    node.post("/v1/acks", {"acks": [{"ack_token": got[0]["ack_token"], "action": "nack", "requeue": False}]})
    eventually(lambda: node.depth("dead") == 1, "there is no dead letter")
    open_queue(page, node, "dead")

    page.get_by_role("button", name="Redrive").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive 1 message").click()

    expect(page.locator("#said")).to_contain_text("1 message redriven.")
    eventually(lambda: (node.depth("dead"), node.depth("failing")) == (0, 1), "the dead letter was not redriven")


def test_dead_letters_show_why_and_from_where_and_single_ones_are_moved_redriven_and_deleted(
    page: Any, node: Console
) -> None:
    node.post("/v1/control/definitions/put/policy/queue/spoilt", {"dead_letter": "/queue/spoilt-dead"})
    node.send("spoilt", *[{"body": f"bad {number}"} for number in range(4)])
    for _ in range(4):
        got = node.post("/v1/queues/spoilt/receive", {"max": 1, "wait_seconds": 20})["messages"]
        node.post("/v1/acks", {"acks": [{"ack_token": got[0]["ack_token"], "action": "nack", "requeue": False}]})
    node.send("spoilt-dead", {"body": "sent here"})
    eventually(lambda: node.depth("spoilt-dead") == 5, "there are not four dead letters")
    open_queue(page, node, "spoilt-dead")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(5)
    expect(page.get_by_role("row", name=re.compile("rejected spoilt .*bad 0"))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("sent here"))).not_to_contain_text("rejected")
    picture(page, "console-dead-letters")

    def choose(*bodies: str) -> Any:
        for body in bodies:
            page.get_by_role("row", name=re.compile(body)).get_by_role("checkbox").check()
        return page.get_by_role("group", name="With the chosen messages")

    choose("bad 1", "bad 3").get_by_role("button", name="Redrive chosen").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("code")).to_have_text(re.compile(r"qmq redrive /queue/spoilt-dead --ids \S+,\S+"))
    dialog.get_by_role("button", name="Redrive 2 messages").click()
    eventually(lambda: (node.depth("spoilt-dead"), node.depth("spoilt")) == (3, 2), "not two were redriven")

    expect(rows).to_have_count(3)
    choose("bad 2").get_by_role("button", name="Move chosen").click()
    dialog.get_by_label("To", exact=True).fill("/queue/spoilt-aside")
    dialog.get_by_role("button", name="Move 1 message").click()
    eventually(lambda: node.depth("spoilt-aside") == 1, "it was not moved")

    expect(rows).to_have_count(2)
    choose("bad 0").get_by_role("button", name="Delete chosen").click()
    dialog.get_by_role("button", name="Purge 1 message").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("sent here")
    expect(page.get_by_role("group", name="With the chosen messages")).to_be_hidden()


def test_queue_is_paused_and_resumed(page: Any, node: Console) -> None:
    node.send("paused", {"body": "x"})
    open_queue(page, node, "paused")

    page.get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("code")).to_have_text("qmq pause /queue/paused")
    dialog.get_by_role("button", name="Pause").click()
    expect(page.locator("main")).to_contain_text("paused: delivery")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()

    expect(page.locator("#said")).to_contain_text("/queue/paused is resumed.")
    expect(page.get_by_role("button", name="Resume")).to_have_count(0)


def test_message_is_published(page: Any, node: Console) -> None:
    open_queue(page, node, "published")

    page.get_by_role("button", name="Publish").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Body").fill('{"hello": "world"}')
    dialog.get_by_label("Content type").select_option("application/json")
    dialog.get_by_label("Headers").fill("tenant: acme")
    expect(dialog.locator("code")).to_contain_text("--header tenant:acme")
    dialog.get_by_role("button", name="Send").click()

    expect(page.locator("#said")).to_contain_text("Accepted as a-")
    got = node.post("/v1/queues/published/receive", {"max": 1, "wait_seconds": 20})["messages"][0]
    assert (json.loads(got["body"]), got["headers"], got["content_type"]) == (
        {"hello": "world"},
        {"tenant": "acme"},
        "application/json",
    )


def test_queue_is_deleted(page: Any, node: Console) -> None:
    node.send("deleted", {"body": "x"})
    open_queue(page, node, "deleted")

    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete the queue").click()

    expect(page).to_have_url(re.compile("#/queues$"))
    eventually(lambda: node.depth("deleted") == 0, "messages are left")


def test_consumer_is_seen_and_kicked(page: Any, mesh: Cluster, node: Console) -> None:
    node.send("consumed", {"body": "x"})
    client = mesh.client("b")
    client.subscribe("/queue/consumed", "s")
    open_queue(page, node, "consumed")

    page.get_by_role("tab", name="Consumers").click()
    row = page.locator("tbody tr").first
    expect(row).to_contain_text("b/")
    expect(row).to_contain_text(re.compile(r"127\.0\.0\.1:\d+"))
    row.get_by_role("button", name="Kick").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("it fails")
    expect(dialog).to_contain_text("1 connection would end")
    dialog.get_by_role("button", name="End the connection").click()

    expect(page.locator("#said")).to_contain_text("1 ended.")
    eventually(client.ended.is_set, "the client is still connected")


def test_connections_of_all_nodes_are_listed(page: Any, mesh: Cluster, node: Console) -> None:
    mesh.client("c").subscribe("/queue/of-c", "s")
    page.goto(f"{node.address}/#/connections")

    page.get_by_role("searchbox").fill("c/")

    expect(page.locator("tbody")).to_contain_text("STOMP 1.2")
    expect(page.locator("tbody tr").first).to_contain_text("c/")


def test_connections_of_this_page_are_marked_and_called_by_their_browser(page: Any, node: Console) -> None:
    page.goto(f"{node.address}/#/connections")

    mine = page.get_by_role("row", name=re.compile("such as this page"))
    expect(mine.first).to_contain_text(re.compile(r"Chrome \d+"))
    expect(mine.first).not_to_contain_text("Mozilla")


def test_binding_is_drawn(page: Any, node: Console) -> None:
    open_queue(page, node, "bound")
    page.get_by_role("tab", name="Bindings").click()

    page.get_by_role("button", name="Bind").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Source").fill("/exchange/amq.topic")
    dialog.get_by_label("Key").fill("eu.#")
    dialog.get_by_role("button", name="Bind").click()

    expect(page.get_by_role("img", name="/exchange/amq.topic with key eu.# to /queue/bound")).to_be_visible()


def test_policy_of_a_queue_is_changed_in_a_form_that_shows_errors_at_their_field(
    page: Any, node: Console, problems: list[str]
) -> None:
    open_queue(page, node, "ruled")
    page.get_by_role("tab", name="Policy").click()
    expect(page.get_by_role("row", name=re.compile("ttl_seconds 0 default"))).to_be_visible()

    page.get_by_role("button", name="Change the policy of /queue/ruled").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("ttl_seconds")).to_have_attribute("placeholder", "0")
    expect(dialog.get_by_label("retention_seconds")).to_have_count(0)  # Of fanouts.
    dialog.get_by_label("ttl_seconds").fill("never")
    dialog.get_by_label("dead_letter", exact=True).fill("/topic/x")
    expect(dialog.locator(".keyed", has_text="ttl_seconds").get_by_role("alert")).to_have_text("must be a number")
    expect(dialog.get_by_label("dead_letter", exact=True)).to_have_attribute("aria-invalid", "true")
    expect(dialog.get_by_role("button", name="Change")).to_be_disabled()
    problems.clear()  # the refusal
    dialog.get_by_label("ttl_seconds").fill("3600")
    dialog.get_by_label("dead_letter", exact=True).fill('""')
    dialog.get_by_label("overflow").select_option("drop-oldest")
    expect(dialog.locator("code")).to_have_text(
        "qmq policies set /queue/ruled overflow=drop-oldest 'dead_letter=\"\"' ttl_seconds=3600"
    )
    dialog.get_by_role("button", name="Change").click()

    expect(page.get_by_role("row", name=re.compile("ttl_seconds 3600 policy .queue.ruled"))).to_be_visible()
    found = node.show("definitions/get/policy/queue/ruled")["value"]
    assert found == {"dead_letter": "", "overflow": "drop-oldest", "ttl_seconds": 3600}


def test_definitions_are_read_added_changed_and_deleted(page: Any, node: Console, problems: list[str]) -> None:
    page.goto(f"{node.address}/#/policies")
    page.get_by_role("button", name="Add a policy").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Destination").fill("/fanout/kept.*")
    dialog.get_by_label("retention_bytes").fill("64MiB")
    dialog.get_by_role("button", name="Add").click()
    row = page.get_by_role("row", name=re.compile(r".fanout.kept\."))
    expect(row).to_contain_text("retention_bytes 67108864")
    row.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)

    page.goto(f"{node.address}/#/definitions")
    page.get_by_role("button", name="Declared queues").click()
    page.get_by_role("button", name="Add a declaration").click()
    dialog.get_by_label("Queue", exact=True).fill("/queue/declared-here")
    dialog.get_by_label("expires_seconds").fill("86400")
    dialog.get_by_label("durable").select_option("false")
    picture(page, "console-form")
    dialog.get_by_role("button", name="Add").click()
    row = page.get_by_role("row", name=re.compile(".queue.declared-here"))
    expect(row).to_contain_text("durable false")
    row.get_by_role("button", name="Change").click()
    expect(dialog.get_by_label("durable")).to_have_value("false")
    dialog.get_by_label("durable").select_option("")
    expect(dialog.locator("code")).to_contain_text("--replace")
    dialog.get_by_role("button", name="Change").click()
    expect(row).not_to_contain_text("durable")
    expect(row).to_contain_text("expires_seconds 86400")

    page.get_by_role("button", name="Limits").click()
    page.get_by_role("button", name="Add a limit").click()
    dialog.get_by_label("user:NAME").fill("ann")
    dialog.get_by_label("connections_max").fill("3")
    expect(dialog.get_by_role("alert").filter(has_text="must be named user:NAME or group:NAME")).to_be_visible()
    problems.clear()  # the refusal
    dialog.get_by_label("user:NAME").fill("user:ann")
    dialog.get_by_role("button", name="Add").click()
    expect(page.get_by_role("row", name=re.compile("user:ann"))).to_contain_text("connections_max 3")


def test_definitions_are_imported_after_a_look(page: Any, node: Console) -> None:
    node.post("/v1/control/definitions/put/policy/queue/imported", {"ttl_seconds": 1})
    document = {
        "qmq_definitions": 1,
        "definitions": {"policy": {"/queue/imported": {"ttl_seconds": 2}, "/queue/fresh": {"ttl_seconds": 3}}},
    }
    page.goto(f"{node.address}/#/definitions")

    page.get_by_label("File to import").set_input_files(
        {"name": "new.json", "mimeType": "application/json", "buffer": json.dumps(document).encode()}
    )
    expect(page.locator("main")).to_contain_text("2 definitions in the file, 2 differ.")
    expect(page.get_by_role("row", name=re.compile("changes policy .queue.imported"))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("new policy .queue.fresh"))).to_be_visible()
    expect(page.locator("code")).to_have_text("qmq definitions import new.json")
    page.get_by_role("button", name="Import", exact=True).click()

    expect(page.locator("#said")).to_contain_text("2 definitions have changed.")


def test_definitions_are_exported(page: Any, node: Console) -> None:
    node.post("/v1/control/definitions/put/policy/queue/exported", {"ttl_seconds": 1})
    page.goto(f"{node.address}/#/definitions")

    with page.expect_download() as download:
        page.get_by_role("button", name="Export", exact=True).click()

    document = json.loads(download.value.path().read_text())
    assert document["definitions"]["policy"]["/queue/exported"] == {"ttl_seconds": 1}


def test_audit_shows_what_was_done_and_what_is_done(page: Any, mesh: Cluster, node: Console) -> None:
    Console(mesh, "b").post("/v1/control/pause/queue/audited")
    page.goto(f"{node.address}/#/audit")
    expect(page.get_by_role("row", name=re.compile(r"pause .queue.audited .* b\b"))).to_be_visible()

    node.post("/v1/control/resume/queue/audited")

    expect(page.get_by_role("row", name=re.compile(r"resume .queue.audited .* a\b"))).to_be_visible()
    page.set_viewport_size({"width": 1340, "height": 560})
    picture(page, "console-audit")


def test_fanout_shows_its_subscribers(page: Any, mesh: Cluster, node: Console) -> None:
    node.send("followed", {"body": "one"}, kind="fanouts")
    mesh.client("a").subscribe("/fanout/followed", "s")
    page.goto(f"{node.address}/#/fanout/followed")
    expect(page.locator("tbody")).to_contain_text("one")

    page.get_by_role("tab", name="Subscribers").click()

    expect(page.locator("tbody").first).to_contain_text(re.compile(r"127\.0\.0\.1:\d+\s*s\s*0"))


def test_topic_shows_its_subscribers(page: Any, mesh: Cluster, node: Console) -> None:
    mesh.client("b").subscribe("/topic/prices.*", "s")
    page.goto(f"{node.address}/#/topics")

    page.get_by_role("row", name=re.compile(r"prices\.\*")).get_by_role("button", name="Subscribers").click()

    expect(page.get_by_role("dialog").locator("tbody")).to_contain_text("b/")


def test_an_exchange_is_bound_to_another_and_unbound(page: Any, node: Console) -> None:
    page.goto(f"{node.address}/#/exchanges")
    page.get_by_role("button", name="Declare an exchange").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("inner")
    dialog.get_by_label("Internal").check()
    dialog.get_by_label("Alternate").fill("amq.fanout")
    expect(dialog).to_contain_text("qmq exchanges declare inner direct --alternate amq.fanout --internal")
    dialog.get_by_role("button", name="Declare").click()
    row = page.get_by_role("row", name=re.compile("^inner"))
    expect(row).to_contain_text(re.compile("amq.fanout *exchanges only"))
    expect(row.get_by_role("button", name="Publish")).to_have_count(0)

    row.get_by_role("button", name="Bind").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Source").fill("/exchange/amq.headers")
    dialog.get_by_label("Key").fill("eu.new")
    dialog.get_by_text("Arguments, for a headers exchange").click()
    dialog.get_by_label("Which of them must match").select_option("any")
    dialog.get_by_label("Header 1").fill("colour")
    dialog.get_by_label("Value 1").fill("red")
    dialog.get_by_label("Header 2").fill("size")
    expect(dialog.get_by_label("Header 3")).to_be_empty()
    expect(dialog).to_contain_text("--key eu.new --match any --argument colour=red --argument size")
    dialog.get_by_role("button", name="Bind").click()
    bound = page.get_by_role("row", name=re.compile("amq.headers .*inner"))
    expect(bound).to_contain_text("in force")

    bound.get_by_role("button", name="Unbind").click()
    page.get_by_role("dialog").get_by_role("button", name="Unbind").click()
    expect(bound).to_have_count(0)


def test_exchange_is_declared_and_deleted(page: Any, node: Console) -> None:
    page.goto(f"{node.address}/#/exchanges")
    page.get_by_role("button", name="Declare an exchange").click()
    page.get_by_role("dialog").get_by_label("Name").fill("drawn")
    page.get_by_role("dialog").get_by_role("button", name="Declare").click()
    row = page.get_by_role("row", name=re.compile("^drawn"))
    expect(row).to_contain_text("direct")

    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete the exchange").click()

    expect(row).to_have_count(0)


def test_permissions_of_a_user_and_of_a_group_are_added_changed_and_deleted(page: Any, node: Console) -> None:
    for principal, name in (("carol", "user:carol"), ("group:billing", "group:billing")):
        page.goto(f"{node.address}/#/users")
        page.get_by_role("button", name="Add a permission").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("User or group").fill(principal)
        dialog.get_by_label("subscribe").check()
        dialog.get_by_label("send").check()
        dialog.get_by_label("Destination").fill("/queue/permitted.*")
        expect(dialog.locator("code")).to_have_text(
            f"qmq permissions allow {principal} send,subscribe '/queue/permitted.*'"
        )
        dialog.get_by_role("button", name="Add").click()

        row = page.get_by_role("row", name=principal)
        expect(row).to_contain_text("send, subscribe")

        row.get_by_role("button", name="Change").click()
        expect(dialog.get_by_label("send")).to_be_checked()
        dialog.get_by_label("send").uncheck()
        dialog.get_by_label("Allow or deny").select_option("deny")
        expect(dialog.locator("code")).to_have_text(
            f"qmq permissions deny {principal} subscribe '/queue/permitted.*' && "
            f"qmq permissions delete allow {principal} send,subscribe '/queue/permitted.*'"
        )
        dialog.get_by_role("button", name="Change").click()
        expect(row).to_contain_text(re.compile("deny *subscribe */queue/permitted"))
        expect(row).to_have_count(1)

        row.get_by_role("button", name="Delete").click()
        expect(dialog).to_contain_text(f"{name} deny subscribe /queue/permitted.*")
        expect(dialog.locator("code")).to_have_text(
            f"qmq permissions delete deny {principal} subscribe '/queue/permitted.*'"
        )
        dialog.get_by_role("button", name="Delete").click()
        expect(row).to_have_count(0)
