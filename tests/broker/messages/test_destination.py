import pytest

from qmq.broker.messages.destination import DESTINATION_BYTES_MAX, DestinationKind, check_pattern, is_pattern, kind_of
from qmq.errors import Refused


@pytest.mark.parametrize(
    ("destination", "kind"),
    [
        ("/topic/news", DestinationKind.TOPIC),
        ("/queue/jobs", DestinationKind.QUEUE),
        ("/fanout/orders", DestinationKind.FANOUT),
        ("/control/count-msgs/queue/jobs", DestinationKind.CONTROL),
        ("/queue//", DestinationKind.QUEUE),
        ("/queue/a b/ü", DestinationKind.QUEUE),
    ],
)
def test_prefix_names_the_kind(destination: str, kind: DestinationKind) -> None:
    assert kind_of(destination) is kind


def test_a_name_with_a_nul_is_refused() -> None:
    with pytest.raises(Refused, match="no NUL"):
        kind_of("/queue/a\0b")


@pytest.mark.parametrize(
    "destination",
    ["", "/", "//", "queue/jobs", "/queue", "/queue/", "/queues/jobs", "/Queue/jobs", "jobs", " /queue/a"],
)
def test_name_without_a_kind_is_refused_with_the_list_of_kinds(destination: str) -> None:
    with pytest.raises(Refused) as refused:
        kind_of(destination)

    assert refused.value.code == "bad-destination"
    assert all(prefix in refused.value.message for prefix in ("/topic/", "/queue/", "/fanout/", "/control/"))


def test_length_is_counted_in_bytes_not_in_characters() -> None:
    fits = "/queue/" + "ü" * ((DESTINATION_BYTES_MAX - 7) // 2)

    assert kind_of(fits) is DestinationKind.QUEUE
    with pytest.raises(Refused) as refused:
        kind_of(fits + "ü")

    assert refused.value.code == "destination-too-long"


@pytest.mark.parametrize(
    "pattern",
    [
        "/topic/*",
        "/topic/#",
        "/topic/app.log*",
        "/topic/a/b*",
        "/topic/a.*",
        "/topic/*.b",
        "/topic/a.#.z",
        "/topic/*.#.*",
    ],
)
def test_wildcard_as_a_whole_word_or_last_means_something(pattern: str) -> None:
    assert is_pattern(pattern)
    check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "/topic/a*b",
        "/topic/*a",
        "/topic/**",
        "/topic/a**",
        "/topic/a#",
        "/topic/#*",
        "/topic/*.b*",
        "/topic/#.b*",
        "/topic/a*.b",
        "/topic/a.b#",
    ],
)
def test_wildcard_inside_a_word_is_refused(pattern: str) -> None:
    with pytest.raises(Refused) as refused:
        check_pattern(pattern)

    assert refused.value.code == "bad-pattern"


def test_name_without_wildcards_is_no_pattern() -> None:
    assert not is_pattern("/topic/a.b")
