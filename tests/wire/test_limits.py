import pytest

from qmq.wire.stomp import BODY_BYTES_CEILING, Limits


def test_body_limit_cannot_exceed_the_ceiling() -> None:
    assert Limits(body_bytes_max=BODY_BYTES_CEILING).body_bytes_max == 64 * 1024 * 1024

    with pytest.raises(ValueError, match="body_bytes_max"):
        Limits(body_bytes_max=BODY_BYTES_CEILING + 1)


@pytest.mark.parametrize(
    "name",
    [
        "command_bytes_max",
        "header_line_bytes_max",
        "header_count_max",
        "header_bytes_max",
        "body_bytes_max",
        "login_bytes_max",
    ],
)
def test_limit_that_lets_nothing_through_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: -1})
