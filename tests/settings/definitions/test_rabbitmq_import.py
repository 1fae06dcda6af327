"""What a real RabbitMQ exported, imported into a node: messages go to the same queues as there.

`tests/definitions/record_rabbitmq.py` has recorded both, and says how.
"""

import json
from typing import Any

import argon2
import trio
from trio.testing import MockClock

from qmq.admin.definitions import FILE_BYTES_MAX
from qmq.config import User
from qmq.definitions.document import read_document
from tests.definitions.rabbitmq_files import file
from tests.definitions.record_rabbitmq import QUIET_SECONDS, RECORDED, cases
from tests.node.rig import Client, Rig, send, subscribe
from tests.settings.routing.test_bindings import request

FOUND: dict[str, Any] = json.loads(RECORDED.read_text())
PASSWORD = "secret"  # noqa: S105
HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
KEPT = "dead-letters"
FILE = '{"qmq_definitions": 1, "definitions": {"queue": {"/queue/jobs": {}}}}'

# Dead letters that RabbitMQ drops: no binding matches, the exchange does not exist, or they would go round.
DROPPED_THERE = {"/amq/queue/x.none", "/amq/queue/x.missing", "/amq/queue/x.round"}

# Only QMQ copies there: it compares a number as text, and a header of STOMP is none to RabbitMQ.
MORE_HERE = {"h.number"}


def closed_rig() -> Rig:
    """A node with one user, who may do everything."""
    return Rig(users=(User(name="root", password_hash=HASH, groups=("administrator",)),))


async def imported(client: Client, **headers: str) -> dict[str, Any]:
    answer = await request(client, "definitions/import", FOUND["definitions"], **headers)
    assert "left_out" in answer, answer
    return answer


async def test_messages_go_to_the_queues_that_they_went_to_in_rabbitmq(autojump_clock: MockClock) -> None:
    rig = closed_rig()
    async with rig.run():
        client = await rig.connect(login="root", passcode=PASSWORD)
        await imported(client)
        recorded = FOUND["cases"]
        for number, case in enumerate(recorded):
            await client.send(send(case["destination"], str(number), "r", **case["headers"]))
            await client.receipt()

        # All but those whose messages expire.
        sinks = [one["name"] for one in FOUND["definitions"]["queues"] if one["vhost"] == "/"]
        sinks = [name for name in sinks if not name.startswith("x.") or name == "x.long"]
        for name in [*sinks, KEPT]:
            await client.send(subscribe(f"/queue/{name}", id=name))
        await trio.sleep(QUIET_SECONDS)
        await client.send(send("/topic/t", "", "last"))
        while await client.receipt() != "last":
            pass

    outcomes: list[list[str]] = [[] for _ in recorded]
    for frame in client.frames:
        outcomes[int(frame.body)].append(frame.head.headers["subscription"])
    assert len(recorded) >= 60
    for case, found in zip(recorded, outcomes, strict=True):
        if case["destination"] in DROPPED_THERE:
            assert (case["queues"], found) == ([], [KEPT]), case
        else:
            there = set(case["queues"]) | (MORE_HERE if "n" in case["headers"] else set())
            assert sorted(found) == sorted(there), case


def test_what_is_recorded_is_what_the_recording_program_sends() -> None:
    assert [(one["destination"], one["headers"]) for one in FOUND["cases"]] == cases(), "record again"


async def test_what_has_no_counterpart_is_listed(autojump_clock: MockClock) -> None:
    rig = closed_rig()
    async with rig.run():
        client = await rig.connect(login="root", passcode=PASSWORD)

        left_out = (await imported(client))["left_out"]

    passwords = [line for line in left_out if ": its password; set one: " in line]
    assert len(passwords) == len(FOUND["definitions"]["users"])
    assert sorted(line for line in left_out if line not in passwords) == [
        "bindings: headers → h.all.present: a = 'undefined': is read as any value of this header",
        "bindings: headers → h.any.present: c = 'undefined': is read as any value of this header",
        "exchanges: to-nowhere: alternate-exchange 'nowhere' is neither in the file nor in the mesh",
        "permissions: eve: write = '^[a-z]+$' means no list of names and prefixes",
        "permissions: fay: topic_permissions of this user narrow it, and these have no counterpart",
        "policies: odd: the pattern '[0-9]$' means no list of names and prefixes",
        "topic_permissions: fay: has no counterpart",
        "users: di: the tag 'policymaker' is group observer, which may not change policies",
    ]


async def test_a_second_virtual_host_is_imported_with_its_queue(autojump_clock: MockClock) -> None:
    rig = closed_rig()
    async with rig.run():
        client = await rig.connect(login="root", passcode=PASSWORD)

        await imported(client)
        await imported(client)

        assert set(rig.alive.settings_parts.vhosts.declared) == {"second"}
        assert "/queue/second~elsewhere" in rig.alive.settings_parts.declared_queues.texts
        assert "second~amq.topic" in rig.alive.settings_parts.routing.table.exchanges


async def test_an_imported_user_may_do_what_it_might_there_once_it_has_a_password(autojump_clock: MockClock) -> None:
    rig = closed_rig()
    async with rig.run():
        root = await rig.connect(login="root", passcode=PASSWORD)
        await imported(root)
        cy = await rig.dial()
        await cy.send(f"CONNECT\naccept-version:1.2\nhost:x\nlogin:cy\npasscode:{PASSWORD}\n\n")
        assert (await cy.any()).head.headers["error-code"] == "login-failed"

        await request(root, "definitions/put/user/cy", {"password_hash": HASH})
        again = await imported(root)

        assert "users: cy: is a user already, and stays as it is" in again["left_out"]
        assert again["changed"] == 0
        cy = await rig.connect(login="cy", passcode=PASSWORD, on_error="keep-open")
        await cy.send(send("/queue/plain", "one", "r"))
        assert (await cy.any()).head.command == "RECEIPT"
        await cy.send(send("/exchange/topic/eu", "two", "r"))
        assert (await cy.any()).head.headers["error-code"] == "not-allowed"
        await cy.send(subscribe("/queue/plain"))
        assert await cy.messages(1) == [b"one"]
        assert await cy.receipt() == "sub-0"
        await cy.send(subscribe("/queue/t.eu", id="1"))
        assert (await cy.any()).head.headers["error-code"] == "not-allowed"


async def test_one_definition_that_does_not_fit_and_nothing_is_imported(autojump_clock: MockClock) -> None:
    rig = closed_rig()
    async with rig.run():
        client = await rig.connect(login="root", passcode=PASSWORD)
        await request(client, "declare/exchange/topic", type="fanout")

        answer = await request(client, "definitions/import", FOUND["definitions"])

        assert answer["code"] == "bad-definition" and "topic: type is fanout" in answer["message"]
        client = await rig.connect(login="root", passcode=PASSWORD)
        found = {
            kind: sorted(rig.alive.settings_parts.definitions.values(kind)) for kind in ("queue", "user", "binding")
        }
        assert found == {"queue": [], "user": ["root"], "binding": []}


def test_the_recorded_file_names_no_machine() -> None:
    text = RECORDED.read_text()

    assert FOUND["definitions"]["rabbit_version"].startswith("3.")
    for parameter in FOUND["definitions"]["global_parameters"]:
        assert parameter == {"name": "cluster_name", "value": "recorded"}
    assert "@" not in text and "/tmp" not in text and "/home" not in text  # noqa: S108


async def test_a_user_whose_password_the_file_has_in_clear_logs_in_with_it(autojump_clock: MockClock) -> None:
    users = [{"name": "ann", "password": "mine", "tags": "administrator"}, {"name": "bob", "password_hash": "abcd"}]
    rig = Rig()
    async with rig.run():
        answer = await request(await rig.connect(), "definitions/import", {"users": users})

        assert (answer["changed"], len(answer["left_out"])) == (2, 1)
        ann = await rig.connect(login="ann", passcode="mine")
        again = await request(ann, "definitions/import", {"users": users})
        assert (again["definitions"], len(again["left_out"])) == (0, 2)


async def test_a_password_that_is_no_text_is_refused(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        users = [{"name": "ann", "password": "\ud800", "tags": "administrator"}]

        assert (await request(client, "definitions/import", {"users": users}))["code"] == "bad-definitions"


async def test_a_file_may_be_about_what_the_mesh_has_already(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await request(client, "definitions/import", {"vhosts": [{"name": "shop"}]})
        await request(client, "definitions/import", {"queues": [{"name": "inbox", "vhost": "shop"}]})

        said = {"source": "amq.topic", "vhost": "shop", "destination": "inbox", "routing_key": "#"}
        answer = await request(client, "definitions/import", {"bindings": [said]})

        assert (answer["changed"], answer["left_out"]) == (1, [])
        assert "/queue/shop~inbox" in rig.alive.settings_parts.declared_queues.texts


async def test_a_node_takes_everything_that_is_left_of_a_random_file(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        for seed in range(100):
            # Without users, because the first of them may be no administrator.
            found = {part: entries for part, entries in file(seed).items() if part not in ("users", "permissions")}

            answer = await request(client, "definitions/import", {"queues": [], **found}, dry_run="true")

            assert answer.get("dry_run") is True, (seed, answer)


async def test_clients_are_served_while_a_file_is_read(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        environment: Any = rig.alive.environment
        run_blocking, go_on, waits = environment._run_blocking, trio.Event(), trio.Event()

        async def read_late(call: Any) -> Any:
            if call.func is read_document:
                waits.set()
                await go_on.wait()
            return await run_blocking(call)

        environment._run_blocking = read_late
        operator, other = await rig.connect(), await rig.connect()
        await operator.send(send("/control/definitions/import", FILE, "imported"))
        await waits.wait()

        await other.send(send("/queue/q", "x", "r"))
        assert await other.receipt() == "r"

        go_on.set()
        assert await operator.receipt() == "imported"


async def test_a_file_that_is_too_long_is_refused_before_it_is_read(autojump_clock: MockClock) -> None:
    limits = {"body_bytes_max": 2 * FILE_BYTES_MAX, "outbox_bytes_max": 8 * FILE_BYTES_MAX}
    async with Rig(limits=limits).run() as rig:
        client = await rig.connect(on_error="keep-open")
        for size, code in ((FILE_BYTES_MAX, ""), (FILE_BYTES_MAX + 1, "bad-definitions")):
            await client.send(send("/control/definitions/import", FILE.ljust(size), "r"))
            assert (await client.any()).head.headers.get("error-code", "") == code
