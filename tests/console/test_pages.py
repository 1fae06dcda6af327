"""What each page shows of three nodes, also with one of them dead."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

from .conftest import AXE, PATIENCE_MS, Console, Problems, picture, sync_api

expect = sync_api.expect

PAGES = {
    "mesh": "Mesh",
    "charts": "The last hour",
    "queues": "Queues",
    "fanouts": "Fanouts",
    "topics": "Topics",
    "exchanges": "Exchanges",
    "connections": "Connections",
    "trace": "Trace of a message",
    "users": "Users and permissions",
    "policies": "Policies",
    "definitions": "Definitions",
    "audit": "Audit",
    "queue/orders": "/queue/orders",
    "fanout/log": "/fanout/log",
}

FIRST_BYTES_MAX = 200_000
CHARTS = 11


@pytest.fixture
def filled(node: Console) -> Console:
    """Some messages of each kind."""
    orders = [{"body": f'{{"order": {number}}}', "headers": {"tenant": "acme"}} for number in range(12)]
    node.send("orders", *orders)
    node.send("billing.eu", *[{"body": "x"}] * 40)
    node.send("log", {"body": "one"}, kind="fanouts")
    return node


def test_mesh_is_drawn_with_its_links_and_says_what_it_serves(page: Any, node: Console) -> None:
    page.goto(node.address)

    drawing = page.get_by_role("img", name=re.compile("The mesh: a up; b up; c up|The mesh:.*a up.*b up.*c up"))
    expect(drawing).to_be_visible()
    expect(drawing.locator("line.link")).to_have_count(3)
    expect(page.locator("#bar")).to_contain_text("3 nodes")
    for name in "abc":
        expect(page.get_by_role("row", name=re.compile(rf"^{name} "))).to_contain_text("up")
    # Some traffic, so that the picture shows numbers.
    for number in range(40):
        node.send("traffic", *[{"body": "x"}] * (30 + number % 7))
        page.wait_for_timeout(100)
    expect(page.locator("svg.picture")).to_contain_text(re.compile(r"[1-9]\d* in/s"))
    picture(page, "console-mesh")


def test_dead_node_is_missing_and_comes_back(page: Any, node: Console, mesh: Cluster) -> None:
    page.goto(node.address)
    expect(page.locator("#bar")).to_contain_text("3 nodes")
    eventually(lambda: node.samples("c") >= 3, "c has not run for half a minute")

    mesh.kill("c")

    expect(page.locator("#bar")).to_contain_text("2 of 3 nodes respond")
    expect(page.locator("main")).to_contain_text("c does not respond. Sums are without it.")
    expect(page.get_by_role("row", name=re.compile("^c "))).to_contain_text("Its numbers are missing here")
    expect(page.locator("svg.picture line.bad").first).to_be_visible()
    expect(page.locator("svg.picture")).to_contain_text(re.compile("serves (a|b), c"), timeout=60_000)
    # What c was doing just before is in no other place than at its peers.
    expect(page.locator("svg.spark .ended").first).to_be_attached(timeout=60_000)
    expect(page.get_by_role("row", name=re.compile("^c "))).to_contain_text(re.compile(r"Last seen at \d"))
    picture(page, "console-node-down")
    page.goto(f"{node.address}/#/charts")
    expect(page.locator("svg.chart").first).to_have_attribute("aria-label", re.compile(r"c ended \d\d:\d\d:\d\d"))
    expect(page.locator("main")).to_contain_text("it is shown as the other nodes have seen it")
    picture(page, "console-charts")
    page.goto(f"{node.address}/#/mesh")

    mesh.start("c")
    expect(page.locator("#bar")).to_contain_text("3 nodes", timeout=60_000)
    expect(page.locator("svg.picture line.bad")).to_have_count(0, timeout=60_000)


def test_every_page_works_while_a_node_is_dead(page: Any, filled: Console, mesh: Cluster) -> None:
    mesh.kill("b")
    page.goto(filled.address)

    for path, title in PAGES.items():
        page.goto(f"{filled.address}/#/{path}")
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        page.wait_for_load_state("networkidle") if path not in ("audit",) else None
        expect(page.locator(".notice.bad")).to_have_count(1 if path == "mesh" else 0)
    page.goto(f"{filled.address}/#/queues")
    expect(page.locator("main")).to_contain_text("Without the numbers of b")


def test_queues_are_searched_and_sorted(page: Any, filled: Console) -> None:
    filled.send("sorted.a", {"body": "x"})
    filled.send("sorted.b", *[{"body": "x"}] * 3)
    page.goto(f"{filled.address}/#/queues")
    rows = page.locator("tbody tr")

    page.get_by_role("searchbox").fill("orted.")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("sorted.b")
    page.get_by_role("button", name="Queue", exact=True).click()
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("Queue")
    expect(rows.first).to_contain_text("sorted.a")

    page.get_by_role("searchbox").fill("no such queue")
    expect(page.locator("tbody")).to_contain_text("No queue has this in its name.")


def test_message_is_read_with_headers_and_body_and_traced(page: Any, filled: Console) -> None:
    page.goto(f"{filled.address}/#/queue/orders")
    page.locator("tbody button.id").first.click()

    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("tenant")
    expect(dialog).to_contain_text("acme")
    expect(dialog.get_by_role("tab", name="JSON")).to_have_attribute("aria-selected", "true")
    expect(dialog.locator("pre")).to_contain_text('"order"')
    dialog.get_by_role("tab", name="Hex").click()
    expect(dialog.locator("pre")).to_contain_text("7b 22 6f 72 64 65 72 22")
    picture(page, "console-message")
    dialog.get_by_role("link", name="Trace").click()

    expect(page.locator(".timeline li").first).to_contain_text("accepted")
    expect(page.locator("main")).to_contain_text("On disk:")


def test_page_reads_far_into_a_queue_and_takes_nothing(page: Any, node: Console) -> None:
    for part in range(5):
        node.send("deep", *[{"body": f"number {part * 10_000 + number}"} for number in range(1, 10_001)])
    page.goto(f"{node.address}/#/queue/deep")
    bodies = page.locator("tbody tr td:last-child")
    expect(bodies.first).to_have_text("number 1")
    expect(page.get_by_role("button", name="Previous")).to_be_disabled()

    page.get_by_role("button", name="Next").click()
    expect(bodies.first).to_have_text("number 21")
    page.get_by_label("From message").fill("49971")
    page.get_by_label("From message").press("Enter")
    expect(bodies.first).to_have_text("number 49971")
    expect(page.locator("main")).to_contain_text("49,971 to 49,990, more follow")
    page.get_by_role("button", name="Next").click()
    expect(bodies.last).to_have_text("number 50000")
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    page.get_by_role("button", name="Previous").click()

    expect(bodies.first).to_have_text("number 49971")
    assert node.depth("deep") == 50_000


def test_fanout_says_how_far_each_subscriber_of_any_node_is_behind(page: Any, node: Console, mesh: Cluster) -> None:
    live, durable = mesh.client("b"), mesh.client("c")
    live.subscribe("/fanout/followed", "live")
    durable.subscribe("/fanout/followed", "mail", ack="client-individual", headers={"durable": "true"})
    node.send("followed", *[{"body": "x"}] * 7, kind="fanouts")
    page.goto(f"{node.address}/#/fanout/followed")
    page.get_by_role("tab", name="Subscribers").click()

    expect(page.get_by_role("row", name=re.compile("^b."))).to_contain_text(re.compile(r"live\s*0"))
    expect(page.get_by_role("row", name=re.compile("^c."))).to_contain_text("7 messages")
    cursor = page.get_by_role("region", name="Durable subscriptions").locator("tbody tr")
    expect(cursor).to_contain_text(re.compile("mail.*7 messages.*not on this node"))


def test_whole_console_works_with_the_keyboard(page: Any, filled: Console) -> None:
    page.goto(f"{filled.address}/#/queue/orders")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()

    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Pause")).to_be_focused()
    page.get_by_role("tab", name="Messages").focus()
    for name in ("Charts", "Consumers"):
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")


def test_focus_returns_from_a_dialog_to_a_page_that_was_drawn_again_meanwhile(page: Any, filled: Console) -> None:
    page.goto(f"{filled.address}/#/queue/orders")
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()

    drawn = page.get_by_role("button", name="Pause", include_hidden=True).element_handles()[0]
    page.wait_for_function("(button) => !button.isConnected", arg=drawn)
    page.keyboard.press("Escape")

    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Pause")).to_be_focused()


def test_a_button_that_would_be_drawn_again_while_it_is_pressed_is_clicked(page: Any, node: Console) -> None:
    page.goto(node.address)
    expect(page.locator("svg.picture")).to_be_visible()
    drawn = page.locator("svg.picture").element_handle()
    page.get_by_role("button", name="Dark").hover()

    page.mouse.down()
    page.wait_for_function("(picture) => !picture.isConnected", arg=drawn)
    page.mouse.up()

    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.get_by_role("button", name="Light")).to_be_visible()


def test_charts_show_the_nodes(page: Any, filled: Console, mesh: Cluster) -> None:
    eventually(lambda: all(map(filled.samples, mesh.names)), "a node has not run for ten seconds")
    page.goto(f"{filled.address}/#/charts")

    charts = page.locator("svg.chart")
    expect(charts).to_have_count(CHARTS)
    # They are drawn empty, and again with what the nodes answer.
    expect(charts.nth(0)).to_have_attribute(
        "aria-label", re.compile(r"^Waiting over .* now a \d.*, b "), timeout=60_000
    )
    expect(charts.nth(2)).to_have_attribute("aria-label", re.compile(r"^Accepted per second .* now a \d.*/s, b "))
    rates = page.locator(".charts .panel").filter(has_text="per second").locator("p b")
    assert all(re.fullmatch(r"[\d.,]+/s", text) for text in rates.all_inner_texts())


def test_all_charts_show_the_moment_under_the_pointer(page: Any, filled: Console) -> None:
    page.goto(f"{filled.address}/#/charts")
    charts = page.locator("svg.chart")
    expect(charts).to_have_count(CHARTS)
    expect(page.locator("svg.chart path[d*=L]").first).to_be_attached(timeout=60_000)

    charts.nth(3).hover()

    expect(page.locator("svg.chart .cross:not([x1='-9'])")).to_have_count(CHARTS)
    assert (
        page.locator(".charts p .dim").all_inner_texts() == [page.locator(".charts p .dim").first.inner_text()] * CHARTS
    )

    page.locator("h1").hover()
    expect(page.locator("svg.chart .cross:not([x1='-9'])")).to_have_count(0)


def test_charts_show_ten_minutes_or_an_hour(page: Any, filled: Console) -> None:
    page.goto(f"{filled.address}/#/charts")
    expect(page.get_by_role("button", name="1 hour")).to_have_attribute("aria-pressed", "true")

    page.get_by_role("button", name="10 minutes").click()

    expect(page.locator("h1")).to_have_text("The last 10 minutes")
    expect(page.get_by_role("button", name="10 minutes")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("svg.chart").first).to_have_attribute("aria-label", re.compile("over the last 10 minutes"))


def test_queue_has_charts_of_the_last_hour(page: Any, filled: Console) -> None:
    filled.send("charted", *[{"body": "x"}] * 9)
    page.goto(f"{filled.address}/#/queue/charted")

    page.get_by_role("tab", name="Charts").click()

    expect(page.locator("svg.chart")).to_have_count(4)
    waiting = page.locator("svg.chart").first
    expect(waiting).to_have_attribute("aria-label", re.compile(r"^Waiting .* now a 9, b 0, c 0$"), timeout=60_000)
    waiting.hover()
    expect(page.locator("svg.chart .cross:not([x1='-9'])")).to_have_count(4)
    page.get_by_role("button", name="10 minutes").click()
    expect(waiting).to_have_attribute("aria-label", re.compile("over the last 10 minutes"))
    page.get_by_role("button", name="1 hour").click()


def test_the_first_page_says_how_many_messages_wait(page: Any, filled: Console) -> None:
    page.goto(filled.address)
    waiting = page.locator("dl.facts div").filter(has_text="Waiting").locator("dd")

    expect(waiting).to_contain_text(re.compile(r"[1-9]"))
    filled.send("more.wait", *[{"body": "x"}] * 1000)

    expect(waiting).to_contain_text(re.compile(r"[1-9],\d{3}"))
    expect(waiting.locator("svg.spark")).to_be_attached(timeout=60_000)


def test_the_first_page_names_the_queues_that_come_first(page: Any, filled: Console) -> None:
    page.goto(filled.address)

    deepest = page.locator(".tops > div").filter(has_text="Deepest").get_by_role("listitem")
    billing = deepest.filter(has_text=re.compile(r"^billing\.eu\d"))
    expect(billing).to_be_visible()
    billing.get_by_role("link").click()
    expect(page.locator("h1")).to_contain_text("/queue/billing.eu")


def test_the_first_page_says_how_to_make_the_first_queue(page: Any, node: Console) -> None:
    page.route(
        "**/v1/control/list/queue?*", lambda route: route.fulfill(json={"destinations": [], "nodes_missing": []})
    )

    page.goto(node.address)

    expect(page.locator("code")).to_have_text("qmq send /queue/hello hi")


@pytest.mark.parametrize("width", [400, 900, 1280, 1600])
def test_charts_show_their_labels_whole_and_fill_their_rows(page: Any, filled: Console, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{filled.address}/#/charts")
    expect(page.locator("svg.chart")).to_have_count(CHARTS)

    cut = page.evaluate("""() => [...document.querySelectorAll("svg.chart text")].filter((text) => {
      const [inner, outer] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
      return inner.left < outer.left - 1 || inner.right > outer.right + 1;
    }).map((text) => text.textContent)""")
    # In one look: charts are drawn again every ten seconds.
    grid, *panels = page.evaluate("""() => [...document.querySelectorAll(".charts, .charts .panel")].map((one) => {
      const { y, width } = one.getBoundingClientRect();
      return { y, width };
    })""")
    tops = [one["y"] for one in panels]

    assert cut == []
    assert tops.count(tops[-1]) > 1 or panels[-1]["width"] == pytest.approx(grid["width"], abs=2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_nothing_keeps_people_out(page: Any, filled: Console, path: str, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed; make console-test does that")
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{filled.address}/#/{path}")
    expect(page.get_by_role("heading", level=1)).to_have_text(PAGES[path])
    page.wait_for_timeout(700)

    # Not as a script of the page: its policy allows none but its own.
    session = page.context.new_cdp_session(page)
    text = AXE.read_text("utf-8")
    session.send("Runtime.evaluate", {"expression": f"{text};undefined"})
    found = session.send(
        "Runtime.evaluate",
        {
            "expression": "axe.run(document, {resultTypes: ['violations']}).then((found) => JSON.stringify("
            "found.violations.map((one) => [one.impact, one.id, one.nodes.map((node) => node.html).slice(0, 3)])))",
            "awaitPromise": True,
        },
    )

    assert found["result"]["value"] == "[]"


def test_page_fits_a_phone(page: Any, filled: Console) -> None:
    page.set_viewport_size({"width": 390, "height": 800})

    for path, title in PAGES.items():
        page.goto(f"{filled.address}/#/{path}")
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
        page.wait_for_timeout(400)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, f"{path} is {wide} pixels wide"


def test_first_page_needs_few_bytes_and_nothing_from_elsewhere(page: Any, node: Console) -> None:
    sizes: dict[str, int] = {}

    def note(response: Any) -> None:
        sizes[response.url] = 0 if "events" in response.url else len(response.body())

    page.on("requestfinished", lambda request: note(request.response()))
    page.goto(node.address)
    expect(page.locator("svg.picture")).to_be_visible()

    assert 10_000 < sum(sizes.values()) <= FIRST_BYTES_MAX, sizes
    assert all(url.startswith(node.address) for url in sizes), sizes


def test_ten_tabs_have_one_stream(chromium: Any, node: Console, problems: Problems) -> None:
    context = chromium.new_context()
    having: list[Any] = []
    context.on(
        "request", lambda request: having.append(request.frame.page) if request.url.endswith("/events") else None
    )
    tabs = [context.new_page() for _ in range(10)]
    for tab in tabs:
        problems.watch(tab)
        tab.goto(node.address)
    for tab in tabs:
        expect(tab.locator("svg.picture")).to_be_visible()
    assert len(having) == 1

    with context.expect_event("request", lambda request: request.url.endswith("/events"), timeout=PATIENCE_MS):
        tabs.remove(having[0])
        having[0].close()

    expect(tabs[0].locator("#bar")).to_contain_text("3 nodes")
    tabs[0].wait_for_timeout(1000)
    assert len(having) == 2
    context.close()
    assert problems == []


def set_hidden(tab: Any, is_hidden: bool) -> None:
    """As a browser does when another tab is shown, or this one again."""
    tab.evaluate(
        """(value) => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => value });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


def test_hidden_tab_passes_the_stream_on_and_the_last_one_ends_it(
    chromium: Any, node: Console, problems: Problems
) -> None:
    context = chromium.new_context()
    tabs = [context.new_page() for _ in range(2)]
    for tab in tabs:
        problems.watch(tab)
        tab.clock.install()
        tab.goto(node.address)
        expect(tab.locator("svg.picture")).to_be_visible()
    has_events = {"predicate": lambda request: request.url.endswith("/events"), "timeout": PATIENCE_MS}
    asked: list[str] = []

    with context.expect_event("request", **has_events) as passed_on:
        set_hidden(tabs[0], True)
        tabs[0].clock.fast_forward("00:20")
    assert passed_on.value.frame == tabs[1].main_frame
    with context.expect_event("requestfailed", **has_events):
        set_hidden(tabs[1], True)
        tabs[1].clock.fast_forward("00:20")
    context.on("request", lambda request: asked.append(request.url))
    for tab in tabs:
        tab.clock.fast_forward("10:00")
    assert asked == []

    with context.expect_event("request", **has_events):
        set_hidden(tabs[0], False)
    expect(tabs[0].locator("#bar")).to_contain_text("3 nodes")
    context.close()
    assert problems == []


def test_pages_ask_again_at_the_same_moments(page: Any, node: Console) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/list/topic" in request.url else None)

    def answered(call: Callable[[], object]) -> None:
        """The page has asked during `call`, and has set its next timer."""
        with page.expect_response(lambda response: "/list/topic" in response.url) as found:
            call()
        found.value.finished()
        page.evaluate("fetch('/livez').then((response) => response.text())")

    page.clock.install(time="2030-01-01T00:00:01Z")
    answered(lambda: page.goto(f"{node.address}/#/topics"))
    answered(lambda: page.clock.pause_at("2030-01-01T00:01:03Z"))
    asked.clear()

    page.clock.run_for(1990)
    assert asked == []
    for _ in range(3):
        answered(lambda: page.clock.run_for(20))
        page.clock.run_for(4980)
    assert len(asked) == 3


def test_messages_are_read_again_when_numbers_of_the_queue_have_changed(page: Any, node: Console) -> None:
    node.send("quiet", {"body": "first"})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.split("/v1/control/")[-1]))
    page.clock.install()
    page.goto(f"{node.address}/#/queue/quiet")
    expect(page.get_by_role("region", name="Messages")).to_contain_text("first")

    def rounds(count: int) -> int:
        """How often messages were asked for, while the numbers of the queue came so often."""
        asked.clear()
        for _ in range(count):
            with page.expect_response(lambda response: "/list/queue/quiet" in response.url):
                page.clock.fast_forward("00:05")
        return sum(one.startswith("peek/") for one in asked)

    rounds(1)
    assert rounds(5) <= 1

    node.send("quiet", {"body": "second"})
    rounds(1)
    expect(page.get_by_role("region", name="Messages")).to_contain_text("second")


def test_docs_have_the_pictures_of_these_tests() -> None:
    images = Path(__file__).parents[2] / "docs" / "images"

    for file in images.glob("console-*.png"):
        assert file.stat().st_size <= 150_000, file.name
