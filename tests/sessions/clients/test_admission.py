"""Admission: which connection may log in, and which one is dismissed when there is no room."""

import pytest
from trio.testing import MockClock

from qmq.config import LimitSettings
from qmq.errors import Refused
from qmq.sessions.clients.admission import LOCAL_CONNECTIONS_MAX, Admission, PendingLogin, counted_address
from tests.node.rig import Rig


def admission(**limits: int) -> Admission:
    return Admission(LimitSettings(**limits))


class Came:
    """Logins that came to a door, by name, and the names of those that were dismissed."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.dismissed: list[str] = []
        self.logins: dict[str, PendingLogin] = {}

    def come(self, name: str, address: str, *, is_silent: bool = True) -> None:
        login = self.logins[name] = self.admission.admit(address)
        login.is_silent = is_silent
        login.dismiss = lambda why: self.dismissed.append(name)


def test_the_oldest_silent_login_gives_its_place() -> None:
    came = Came(admission(logins_pending_max=3))
    came.come("waits for its check", "10.0.0.1", is_silent=False)
    came.come("first silent", "10.0.0.1")
    came.come("second silent", "10.0.0.1")

    came.come("new", "10.0.0.1")
    came.come("newer", "10.0.0.1")

    assert came.dismissed == ["first silent", "second silent"]
    assert came.admission.pending == 3


def test_an_address_that_has_taken_all_room_displaces_itself() -> None:
    came = Came(admission(logins_pending_max=4, logins_pending_per_address_max=3))
    came.come("innocent", "10.0.0.2")
    for number in range(20):
        came.come(f"flood {number}", "10.0.0.1")

    came.come("second innocent", "10.0.0.3")

    assert came.dismissed == [f"flood {number}" for number in range(18)]
    assert came.admission.pending == 4


def test_one_address_displaces_its_own_at_its_own_bound() -> None:
    came = Came(admission(logins_pending_per_address_max=2))
    for number in range(3):
        came.come(f"flood {number}", "10.0.0.1")

    assert came.dismissed == ["flood 0"]


def test_checks_of_one_address_that_fill_the_line_give_a_place_to_another_address() -> None:
    came = Came(admission(logins_pending_max=3))
    for number in range(3):
        came.come(f"guess {number}", "10.0.0.1", is_silent=False)

    came.come("innocent", "10.0.0.2")

    assert came.dismissed == ["guess 2"]


@pytest.mark.parametrize("addresses", [["10.0.0.1", "10.0.0.2"], ["10.0.0.9", "10.0.0.9"]])
def test_a_newcomer_is_refused_when_no_address_has_more_than_its_own_and_all_wait_for_checks(
    addresses: list[str],
) -> None:
    came = Came(admission(logins_pending_max=2))
    for address in addresses:
        came.come(address, address, is_silent=False)

    with pytest.raises(Refused) as refused:
        came.come("new", "10.0.0.9")

    assert refused.value.code == "too-many-logins"
    assert not came.dismissed and came.admission.pending == 2


def test_what_was_refused_or_dismissed_or_has_left_counts_no_more() -> None:
    came = Came(admission(connections_per_address_max=2, connections_max=3))
    came.come("one", "10.0.0.1")
    came.come("two", "10.0.0.1")
    for _ in range(3):
        with pytest.raises(Refused) as refused:
            came.come("third of its address", "10.0.0.1")
        assert refused.value.code == "too-many-connections"
    came.come("three", "10.0.0.2")
    with pytest.raises(Refused):
        came.come("fourth of the node", "10.0.0.3")

    for login in came.logins.values():
        came.admission.decided(login)
        came.admission.decided(login)
        came.admission.leave(login)

    assert came.admission.pending == 0
    for number in range(3):
        came.come(f"again {number}", f"10.0.0.{number}")


def test_a_login_that_has_succeeded_is_not_dismissed() -> None:
    came = Came(admission(logins_pending_max=1))
    came.come("logged in", "10.0.0.1")
    came.admission.decided(came.logins["logged in"])
    came.come("silent", "10.0.0.1")

    came.come("new", "10.0.0.1")

    assert came.dismissed == ["silent"]


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("::1", "::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("somewhere", "somewhere"),
    ],
)
def test_an_address_is_counted_by_what_one_host_cannot_choose(address: str, counted: str) -> None:
    assert counted_address(address) == counted


async def test_silent_connections_keep_no_client_out_and_end_with_a_reason(autojump_clock: MockClock) -> None:
    limits = {"logins_pending_max": 4, "logins_pending_per_address_max": 2, "login_seconds": 1000.0}
    async with Rig(limits=limits).run() as rig:
        silent = [await rig.dial(f"10.0.0.{address}") for address in (1, 2, 1, 2)]

        for _ in range(10):
            await rig.connect("10.0.0.3")
        half = await rig.dial("10.0.0.3")
        await half.pipe.send_all(b"CONNECT\naccept-version:1.2\n")
        await rig.dial("10.0.0.1")
        (error,) = await silent[0].until_closed()
        await half.pipe.send_all(b"host:x\n\n\0")

        await half.next("CONNECTED")
        assert error.head.headers["error-code"] == "too-many-logins"


async def test_other_addresses_of_one_network_are_one(autojump_clock: MockClock) -> None:
    async with Rig(limits={"connections_per_address_max": 2}).run() as rig:
        await rig.connect("2001:db8::1")
        await rig.connect("2001:db8::2")
        (error,) = await (await rig.dial("2001:db8::3")).until_closed()
        await rig.connect("2001:db8:0:1::1")

        assert error.head.headers["error-code"] == "too-many-connections"


def test_the_unix_socket_has_room_of_its_own_on_a_full_node() -> None:
    door = admission(connections_max=1)
    door.admit("10.0.0.1")

    for _ in range(LOCAL_CONNECTIONS_MAX):
        door.decided(door.admit("local", is_local=True))

    with pytest.raises(Refused, match="The Unix socket serves at most 100 connections"):
        door.admit("local", is_local=True)
