"""Names in virtual hosts of AMQP are plain names of the mesh with a prefix."""

import pytest

from qmq.model.routing_names import (
    is_exchange_name,
    is_predefined,
    is_reserved,
    is_vhost_name,
    prefix_of,
    vhost_name,
    vhost_of,
    vhost_prefix,
)


@pytest.mark.parametrize("name", ["shop", "a.b-c_d:e", "Käse", "x" * 64])
def test_a_virtual_host_has_a_name_that_can_begin_an_exchange(name: str) -> None:
    assert is_vhost_name(name)
    assert is_exchange_name(f"{vhost_prefix(name)}amq.headers")


@pytest.mark.parametrize("name", ["", "/", "/shop", "a/b", "a~", "~", "a b", "a*", "a#", "a\n", "x" * 65])
def test_other_names_are_none_of_a_virtual_host(name: str) -> None:
    assert not is_vhost_name(name)


def test_the_default_virtual_host_has_no_prefix() -> None:
    assert (vhost_name("/"), vhost_prefix("/")) == ("/", "")
    assert (vhost_name("/shop"), vhost_name("shop"), vhost_prefix("shop")) == ("shop", "shop", "shop~")


@pytest.mark.parametrize(
    ("name", "prefix", "found"),
    [
        ("shop~orders", "shop~", ("shop", "orders")),
        ("shop~a~b", "shop~", ("shop", "a~b")),
        ("shop", "", ("/", "shop")),
        ("bank~orders", "bank~", ("/", "bank~orders")),
        ("~orders", "", ("/", "~orders")),
        ("a/b~c", "", ("/", "a/b~c")),
    ],
)
def test_a_name_is_in_the_virtual_host_with_its_prefix_if_that_is_declared(
    name: str, prefix: str, found: tuple[str, str]
) -> None:
    assert prefix_of(name) == prefix
    assert vhost_of(name, {"shop"}) == found


def test_predefined_names_are_reserved_in_each_virtual_host() -> None:
    assert [is_reserved(name) for name in ("amq.x", "shop~amq.x", "amq", "shop~x", "a/b~amq.x")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert [is_predefined(name, {"shop"}) for name in ("amq.topic", "shop~amq.topic", "bank~amq.topic")] == [
        True,
        True,
        False,
    ]
