"""A client whose tokens expire."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from qmq.config import AuthenticationSettings
from qmq.errors import NotConnected, Refused
from tests.auth.keys import AUDIENCE, ISSUER, RSA_KEY, claims, jwk, token, write_jwks
from tests.client.rig import eventually, running
from tests.support.world import EPOCH_US

NOW = EPOCH_US // 1_000_000


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[AuthenticationSettings, ...]:
    keys = write_jwks(tmp_path / "keys.json", jwk(RSA_KEY))
    values = {"kind": "token", "jwks": keys, "issuer": ISSUER, "audience": AUDIENCE, "leeway_seconds": 0.0}
    return (AuthenticationSettings.read(values),)


def expiring(*ends: float) -> list[str]:
    return [token(claims(NOW, exp=NOW + end)) for end in ends]


async def test_a_client_with_a_function_logs_in_again_with_a_new_token(
    autojump_clock: MockClock, tokens: tuple[AuthenticationSettings, ...]
) -> None:
    # The second is old, as if its issuer were behind.
    given = expiring(5, 5, 1000)
    async with running(authentication=tokens) as mesh:
        async with mesh.client(login="token", passcode=lambda: given.pop(0)) as client:
            await eventually(lambda: client.statistics().logins == 2)
            await client.send("/queue/q", b"x")

    assert given == []


async def test_a_token_that_cannot_be_read_now_is_read_again(
    autojump_clock: MockClock, tokens: tuple[AuthenticationSettings, ...], tmp_path: Path
) -> None:
    (path := tmp_path / "token").write_text(expiring(5)[0])
    async with running(authentication=tokens) as mesh:
        async with mesh.client(login="token", passcode=path.read_text) as client:
            path.unlink()
            await eventually(lambda: "No such file" in client.statistics().last_error)
            path.write_text(expiring(1000)[0])
            await client.send("/queue/q", b"x")


async def test_a_mistake_in_the_function_ends_the_client_with_its_error(
    autojump_clock: MockClock, tokens: tuple[AuthenticationSettings, ...]
) -> None:
    given = expiring(5)
    async with running(authentication=tokens) as mesh:
        with pytest.raises(NotConnected) as ended:
            async with mesh.client(login="token", passcode=lambda: given.pop(0)) as client:
                await eventually(lambda: client.statistics().logins == 1)
                with trio.fail_after(60):
                    while True:
                        await client.send("/queue/q", b"x")

        assert isinstance(ended.value.__cause__, IndexError)
        with pytest.raises(IndexError):
            async with mesh.client(login="token", passcode=lambda: given.pop(0)):
                pass


async def test_a_token_that_is_always_the_same_and_has_expired_is_final(
    autojump_clock: MockClock, tokens: tuple[AuthenticationSettings, ...]
) -> None:
    async with running(authentication=tokens) as mesh:
        with pytest.raises(Refused) as refused:
            async with mesh.client(login="token", passcode=expiring(-1)[0]):
                pass

    assert refused.value.code == "token-expired"
