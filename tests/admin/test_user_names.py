"""Names of new users: what one of the logins cannot carry is refused, and a user that has such a name stays."""

import argon2
from trio.testing import MockClock

from qmq.config import User
from tests.node.rig import Rig
from tests.settings.routing.test_bindings import request

PASSWORD = "secret"  # noqa: S105
HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)


async def test_a_new_name_has_no_colon_and_an_old_one_may_be_changed(autojump_clock: MockClock) -> None:
    names = (("root", ("administrator",)), ("old:one", ()))
    rig = Rig(users=tuple(User(name=name, password_hash=HASH, groups=groups) for name, groups in names))
    async with rig.run():
        new = await request(
            await rig.connect(login="root", passcode=PASSWORD), "definitions/put/user/a:b", {"password_hash": HASH}
        )
        old = await request(
            await rig.connect(login="root", passcode=PASSWORD), "definitions/put/user/old:one", {"groups": ["client"]}
        )

    assert new["code"] == "bad-definition"
    assert "must be without a colon" in new["message"]
    assert old["changed"] == 1
