import pytest

from qmq.errors import RemoteProtocolError
from qmq.wire.stomp import Version
from qmq.wire.stomp.version import negotiate_version, version_of_connected


@pytest.mark.parametrize(
    ("accepted", "version"),
    [
        (None, Version.V10),
        ("1.0", Version.V10),
        ("1.0,1.1", Version.V11),
        ("1.2,1.1,1.0", Version.V12),
        ("1.1, 1.2", Version.V12),
        ("1.1,1.3,2.0", Version.V11),
    ],
)
def test_highest_common_version_is_agreed(accepted: str | None, version: Version) -> None:
    assert negotiate_version(accepted) is version


@pytest.mark.parametrize("accepted", ["", "2.0", "1.3", "abc", "12", ",", "1.2;1.1"])
def test_no_common_version_is_refused_with_the_supported_ones(accepted: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        negotiate_version(accepted)

    assert refused.value.code == "version-unsupported"
    assert "1.0,1.1,1.2" in refused.value.detail


def test_server_that_names_no_version_speaks_1_0() -> None:
    assert version_of_connected(None) is Version.V10
    assert version_of_connected("1.1") is Version.V11


def test_server_that_names_an_unknown_version_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="version-unsupported"):
        version_of_connected("1.3")


def test_versions_are_ordered_and_read_as_on_the_wire() -> None:
    assert Version.V10 < Version.V11 < Version.V12
    assert [version.text for version in Version] == ["1.0", "1.1", "1.2"]
