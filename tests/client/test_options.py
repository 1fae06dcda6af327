"""The options of `subscribe`: each has an effect, or is an error."""

from itertools import product
from typing import Any

import pytest

from qmq.client.options import SubscribeOptions, new_feed

DESTINATIONS = ("/queue/q", "/exchange/e/k", "/topic/t", "/system/s", "/temp-queue/t", "/fanout/f")
VALUES: dict[str, Any] = {
    "ack": "client",
    "prefetch": 7,
    "buffer_bytes": 7,
    "start": "next",
    "overflow": "drop-oldest",
    "ack_level": "quorum",
    "headers": {"selector": "a = 1"},
    "confirm": True,
}
OF_QUEUES = {"ack", "prefetch", "ack_level", "headers", "confirm"}
OBEYED = {
    "/queue/q": OF_QUEUES,
    "/exchange/e/k": OF_QUEUES,
    "/topic/t": {"buffer_bytes", "overflow", "headers"},
    "/system/s": {"buffer_bytes", "overflow", "headers"},
    "/temp-queue/t": {"buffer_bytes", "overflow", "headers"},
    "/fanout/f": {"buffer_bytes", "start", "headers"},
}


@pytest.mark.parametrize(("destination", "name"), list(product(DESTINATIONS, VALUES)))
def test_an_option_has_an_effect_on_the_destination_or_is_an_error(destination: str, name: str) -> None:
    if name in OBEYED[destination]:
        new_feed("", destination, **{name: VALUES[name]})
    else:
        with pytest.raises(ValueError, match=f"^{destination}: {name} has no effect on a "):
            new_feed("", destination, **{name: VALUES[name]})


@pytest.mark.parametrize("name", VALUES)
def test_a_durable_subscription_obeys_the_options_of_a_queue_and_its_start(name: str) -> None:
    if name in OF_QUEUES | {"start"}:
        new_feed("billing", "/fanout/f", durable="mail", **{name: VALUES[name]})
    else:
        with pytest.raises(ValueError, match=f"{name} has no effect on a durable subscription"):
            new_feed("billing", "/fanout/f", durable="mail", **{name: VALUES[name]})


def test_each_option_is_tried() -> None:
    assert VALUES.keys() | {"durable"} == SubscribeOptions.__annotations__.keys() | {"confirm"}


@pytest.mark.parametrize("destination", DESTINATIONS)
def test_auto_is_true_of_every_destination(destination: str) -> None:
    new_feed("", destination, ack="auto")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ack": "bogus"}, "ack is auto, client or client-individual"),
        ({"ack_level": "bogus"}, "ack_level is edge or quorum"),
        ({"overflow": "bogus"}, "overflow is error or drop-oldest"),
        ({"prefetch": 0}, "at least 1"),
        ({"ack": "auto", "ack_level": "quorum"}, "ack_level and confirm are for ACKs that wait"),
        ({"ack": "auto", "confirm": True}, "ack_level and confirm are for ACKs that wait"),
    ],
)
def test_a_value_that_makes_no_sense_is_an_error(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        new_feed("", "/queue/q", **options)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match=r"^subscribe\(\) has no option 'colour'$"):
        new_feed("", "/queue/q", **{"colour": "green"})  # type: ignore[typeddict-item]
