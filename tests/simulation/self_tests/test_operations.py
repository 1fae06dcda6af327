"""The checks of administration: every promise is broken once by hand and found. Correct histories pass."""

import random

import pytest
import trio
from trio.testing import MockClock

from qmq.admin.bulk_jobs import BulkJob
from qmq.definitions.definition import Definition, Key, Version
from qmq.definitions.table import DefinitionTable
from qmq.model.dots import Dot, Origin
from tests.node.mesh_rig import MeshRig
from tests.node.rig import eventually
from tests.settings.definitions.test_declared_queues import declare
from tests.settings.definitions.test_definitions_mesh import until_alike
from tests.settings.definitions.test_deleted_queues import apart, delete, depth, fill, passed, together
from tests.simulation.checks import lifetimes, operations
from tests.simulation.checks.operations import History
from tests.simulation.evidence import AllowedLosses
from tests.simulation.ledger import Ledger
from tests.simulation.operations import DECLARED, OPERATED, Change, Declaring, Given, Job, Operations
from tests.simulation.routing import BOUND, SENDS, part_of, queues_of, versions_for
from tests.simulation.workloads.operate import may_drop

N1, N2 = Origin("n1", 1), Origin("n2", 2)
QUEUE = OPERATED[0]
KEY = Key("policy", "/queue/a")
MESSAGE = "p0.1"


@pytest.fixture
def ledger() -> Ledger:
    """One message that was sent to QUEUE on n1, and confirmed."""
    found = Ledger()

    async def send() -> None:
        found.send("p0", 1, "n1", QUEUE, random.Random(1)).receipted_by = N1

    trio.run(send, clock=MockClock())
    return found


def history(*, is_settled: bool) -> History:
    """The message is record 5 of n1."""
    return History({MESSAGE: {Dot(N1, 5): QUEUE}}, {Dot(N1, 5)} if is_settled else set())


def purge(had: int, **settings: object) -> Job:
    """A purge on n1, which had `had` records of its own when it began."""
    values = {"verb": "purge", "queue": QUEUE, "id": "j", **settings}
    return Job("n1", BulkJob(**values), {N1: had}, 1.0, 2.0)  # type: ignore[arg-type]  # the settings are its fields


def given(
    sequence: int = 5, *, origin: Origin = N1, since: float = 3.0, is_final: bool = True, queue: str = QUEUE
) -> Given:
    return Given(MESSAGE, queue, Dot(origin, sequence), "n1", since, is_final)


def wrongs(found: list[str]) -> list[str]:
    return [wrong.split(" ")[0].rstrip(":") for wrong in found]


def test_a_message_that_is_nowhere_is_lost_unless_it_was_given_worked_on_purged_or_only_on_a_lost_disk(
    ledger: Ledger,
) -> None:
    settled = history(is_settled=True)
    assert wrongs(operations.lost(ledger, settled, AllowedLosses())) == ["O1"]
    assert wrongs(operations.lost(ledger, history(is_settled=False), AllowedLosses())) == ["O1"]
    assert operations.lost(ledger, settled, AllowedLosses(ids={MESSAGE: Dot(N1, 5)})) == []

    ledger.operations.given = [given(is_final=False)]
    assert wrongs(operations.lost(ledger, settled, AllowedLosses())) == ["O1"]
    ledger.operations.given = [given()]
    assert operations.lost(ledger, settled, AllowedLosses()) == []
    ledger.operations.given = []
    ledger.operations.jobs = [purge(5)]
    assert operations.lost(ledger, settled, AllowedLosses()) == []
    ledger.operations.jobs = []
    ledger.consumed.add(MESSAGE)
    assert operations.lost(ledger, settled, AllowedLosses()) == []


def test_only_a_purge_that_had_the_message_at_its_begin_and_means_it_explains_that_it_is_gone(ledger: Ledger) -> None:
    settled = history(is_settled=True)

    def judged(*jobs: Job) -> list[str]:
        ledger.operations.jobs = list(jobs)
        return wrongs(operations.lost(ledger, settled, AllowedLosses()))

    assert judged(purge(4)) == ["O2"]
    assert judged(purge(4), purge(5)) == []
    assert judged(purge(5, verb="delete")) == []
    assert judged(purge(5, verb="move", target=OPERATED[1])) == ["O1"]
    assert judged(purge(5, queue=OPERATED[1])) == ["O1"]
    assert judged(purge(5, is_dry_run=True)) == ["O1"]
    assert judged(purge(5, selector="x")) == []  # the message is of the kind that operators select


def test_a_message_that_is_left_as_two_records_is_found_except_of_a_node_that_was_taken_over() -> None:
    both = Operations(given=[given(5), given(6, origin=N2)])

    assert wrongs(operations.given_twice(both, set())) == ["O3"]
    assert operations.given_twice(both, {"n2"}) == []
    assert operations.given_twice(Operations(given=[given(5), given(5)]), set()) == []
    assert operations.given_twice(Operations(given=[given(5), given(6, is_final=False)]), set()) == []


def test_what_a_node_has_settled_it_gives_to_no_consumer_that_comes_later() -> None:
    def judged(since: float, *forgetful: str) -> list[str]:
        found = Operations(given=[given(since=since)], settled={("n1", Dot(N1, 5)): 2.0})
        return wrongs(operations.given_again(found, forgetful))

    assert judged(3.0) == ["O4"]
    assert judged(1.0) == []
    assert judged(3.0, "n1") == []


def test_a_confirmed_change_must_be_in_a_journal_or_a_later_one_or_was_only_on_a_lost_disk() -> None:
    version, later = Version(10, 0, N1, 7), Version(11, 0, N2, 3)
    confirmed = Operations(changes=[Change(KEY, version, "n1")])

    def judged(*written: Version, gone: frozenset[Dot] = frozenset()) -> list[str]:
        model = DefinitionTable([Definition(KEY, one, None) for one in written])
        return wrongs(operations.unrecorded(confirmed, model, gone))

    on_majority = Operations(changes=[Change(KEY, version, "n1", is_on_majority=True)])

    assert judged() == ["D2"]
    assert judged(Version(9, 0, N2, 2)) == ["D2"]
    assert judged(version) == []
    assert judged(later) == []
    assert judged(gone=frozenset({version.dot})) == []
    assert wrongs(operations.unrecorded(on_majority, DefinitionTable(), {version.dot})) == ["D2"]


def test_a_queue_has_one_copy_at_most_and_another_queue_has_its_own() -> None:
    one, other = given(5, queue=BOUND[0]), given(6, queue=BOUND[1])

    assert operations.copied_twice(Operations(given=[one, other, one])) == []
    assert wrongs(operations.copied_twice(Operations(given=[one, given(6, queue=BOUND[0])]))) == ["B1"]
    assert operations.given_twice(Operations(given=[one, other]), set()) == []


def test_a_queue_has_a_copy_exactly_if_it_was_bound_for_a_while(ledger: Ledger) -> None:
    def judged(is_bound: bool, *copies: Given, **lost: Dot) -> list[str]:
        ledger.operations.expected = {MESSAGE: {BOUND[0]: is_bound}}
        ledger.operations.given = list(copies)
        settled = History({MESSAGE: {Dot(N1, 5): BOUND[0]}}, {Dot(N1, 5)})
        allowed_losses = AllowedLosses(ids=dict(lost) and {MESSAGE: Dot(N1, 5)})
        return wrongs(operations.copied_wrongly(ledger, settled, allowed_losses))

    copy = given(queue=BOUND[0])
    assert judged(True, copy) == judged(False) == []
    assert judged(True) == judged(False, copy) == judged(True, given(queue=BOUND[1])) == ["B2"]
    assert judged(True, lost=Dot(N1, 5)) == []
    ledger.operations.jobs = [purge(5, verb="delete", queue=BOUND[0])]
    assert judged(True) == []
    ledger.operations.jobs = [purge(5, verb="delete", queue=BOUND[1])]
    assert judged(True) == ["B2"]


def test_copies_that_their_node_made_are_in_one_batch(ledger: Ledger) -> None:
    def judged(*batches: tuple[Origin, int]) -> list[str]:
        return wrongs(operations.split(ledger, History(batches={MESSAGE: set(batches)})))

    assert judged((N1, 5)) == judged((N1, 5), (N2, 6)) == []
    assert judged((N1, 5), (N1, 6)) == ["B3"]


def test_rights_count_as_denied_since_the_definitions_are_the_same() -> None:
    one, other = Version(1, 0, N1, 1), Version(2, 0, N1, 2)

    async def judge() -> None:
        found = Operations()
        assert found.denied_for("n1", "send") == 0.0
        found.deny("n1", "send", frozenset({one}))
        await trio.sleep(2)
        found.deny("n1", "send", frozenset({one}))
        assert found.denied_for("n1", "send") == pytest.approx(2.0)
        assert found.denied_for("n1", "subscribe") == 0.0
        found.deny("n1", "send", frozenset({other}))
        assert found.denied_for("n1", "send") == 0.0
        await trio.sleep(1)
        found.deny("n1", "send", frozenset())
        assert found.denied_for("n1", "send") == 0.0

    trio.run(judge, clock=MockClock(autojump_threshold=0))


MARK = Version(10, 0, N2, 3)
QUEUE_KEY = Key("queue", DECLARED[0])


def test_what_a_deletion_takes_must_be_older_than_it_and_accepted_under_no_later_declaration(ledger: Ledger) -> None:
    message, operations_ = ledger.sent[MESSAGE], ledger.operations
    message.at = 3.0

    def judged(had: int = 5, *, written: float = 4.0, under: Version | None = None, is_right: bool = True) -> bool:
        job = purge(had, verb="delete", queue=DECLARED[0])
        job.mark = MARK
        operations_.written = {MARK: written}
        operations_.under = {} if under is None else {MESSAGE: under}
        return lifetimes.may_have_taken(operations_, job, message, Dot(N1, 5), are_clocks_right=is_right)

    assert judged() and judged(under=Version(9, 0, N1, 1)) and judged(written=2.0, is_right=False)
    assert not judged(4) and not judged(written=2.0) and not judged(under=Version(11, 0, N1, 1))


def test_nothing_older_than_its_last_deletion_is_left_of_a_queue(ledger: Ledger) -> None:
    message = ledger.sent[MESSAGE]
    ledger.operations.given = [given(queue=DECLARED[0])]
    ledger.operations.written = {MARK: 4.0}
    deleted, present = (DefinitionTable([Definition(QUEUE_KEY, MARK, text)]) for text in (None, "{}"))

    message.receipted_at = 3.0
    assert wrongs(lifetimes.left_over(ledger, deleted)) == ["L2"]
    assert lifetimes.left_over(ledger, present) == lifetimes.left_over(ledger, DefinitionTable()) == []
    message.receipted_at = 3.9
    assert lifetimes.left_over(ledger, deleted) == []


def test_a_declaration_that_no_operator_made_is_found() -> None:
    model = DefinitionTable([Definition(QUEUE_KEY, MARK, "{}")])

    def judged(*declaring: Declaring) -> list[str]:
        return wrongs(lifetimes.resurrected(Operations(written={MARK: 4.0}, declaring=list(declaring)), model))

    assert judged() == judged(Declaring(DECLARED[0], 1.0, 3.0)) == judged(Declaring(DECLARED[1], 1.0, 5.0)) == ["L3"]
    assert judged(Declaring(DECLARED[0], 1.0, 5.0)) == []


def test_the_model_routes_as_amqp_says_and_what_decides_about_one_part_leaves_the_others() -> None:
    def defined(*rows: tuple[str, str, str]) -> DefinitionTable:
        exchanges = [("orders", '{"type":"topic","alternate":"rest"}'), ("rest", '{"type":"fanout"}')]
        exchanges += [("kinds", '{"type":"headers"}'), ("names", '{"type":"direct","alternate":"orders"}')]
        found = [(Key("exchange", name), text) for name, text in exchanges]
        for source, key, arguments in rows:
            text = f'{{"source":"{source}","queue":"{QUEUE}","key":"{key}","arguments":{arguments}}}'
            found.append((Key("binding", f"{source} {key} {arguments}"), text))
        return DefinitionTable(
            [Definition(key, Version(1, 0, N1, at), text) for at, (key, text) in enumerate(found, 1)]
        )

    def goes(destination: str, *rows: tuple[str, str, str], **headers: str) -> bool:
        return bool(queues_of(defined(*rows), destination, headers))

    assert goes("/topic/source", ("/topic/source.#", "", "{}")) and not goes("/topic/t", ("/topic/source.#", "", "{}"))
    assert goes("/exchange/orders/eu.new", ("/exchange/orders", "eu.*", "{}"))
    assert not goes("/exchange/orders/eu", ("/exchange/orders", "eu.*", "{}"))
    assert goes("/exchange/names/x", ("/exchange/rest", "", "{}"))
    assert goes("/exchange/names/k1", ("/exchange/names", "k1", "{}"))
    any_of, all_of = '{"x-match":"any","a":"1","b":"2"}', '{"a":"1","b":"2"}'
    assert goes("/exchange/kinds", ("/exchange/kinds", "", any_of), a="1")
    assert not goes("/exchange/kinds", ("/exchange/kinds", "", all_of), a="1")
    assert {part_of(destination) for destination in SENDS} == {"topics", "kinds", "others"}
    assert len(versions_for(defined(), ("others", BOUND[0]))) == 3
    assert len(versions_for(defined(), ("kinds", BOUND[0]))) == 1


async def test_a_node_may_drop_messages_until_it_serves_its_own_again_and_has_dropped_them(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a")
        await until_alike(mesh)
        await fill(mesh, "c", "1")
        await apart(mesh, "c")
        await delete(mesh, "a")
        await passed()
        assert may_drop(mesh.nodes["c"])

        await together(mesh, "c")
        await eventually(lambda: not may_drop(mesh.nodes["c"]))

        assert "c" in mesh.nodes["c"].broker.queues.owned.serves
        assert await depth(mesh, "c") == 0
