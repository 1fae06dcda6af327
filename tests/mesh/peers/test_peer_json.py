"""JSON of peers: what is refused."""

import pytest

from qmq.mesh.peers.peer_json import UNUSUAL, decode_json, facts_of


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff", b"[" * 100_000, b"Infinity", b"[NaN]", b"1e999", b"9" * 30, b"9" * 5000, rb'["\ud800"]']
    + ["[1]".encode("utf-16"), str(1 << 64).encode("utf-32-le")],
)
def test_invalid_json_of_a_peer_is_one_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_json(data)

    assert facts_of(data, {}) is None


@pytest.mark.parametrize(
    "number", [1 << 64, -(1 << 64), 10**18 << 8, "1e400", "-1E999", "0.5e309", "1" + "0" * 400, "\n1.5E+999"]
)
def test_number_is_refused_wherever_it_is(number: int | str) -> None:
    for data in ("%s", '{"a":[0,%s]}', '["text",{"b":{"c":%s}}]'):
        with pytest.raises(ValueError):
            decode_json((data % number).encode())


def test_text_that_looks_like_a_number_with_an_exponent_costs_no_calls() -> None:
    data = b'{"incarnation":"01e5f19e0f1e9d3c","at_us":1795694701000000,"uptime_seconds":12.5}'

    assert UNUSUAL.search(data) is None
    assert UNUSUAL.search(b"[1, 2.5e3]") and UNUSUAL.search(b"2e3") and UNUSUAL.search(b'{"a":-2E3}')
    assert decode_json(data[:-1] + b',"hours":1e2}')["hours"] == 100.0


def test_numbers_of_64_bits_and_pairs_of_surrogates_are_valid() -> None:
    assert decode_json(rb'[18446744073709551615, 0.5, "\ud83d\ude00"]') == [(1 << 64) - 1, 0.5, "\U0001f600"]


@pytest.mark.parametrize("answer", [b"[]", b"null", b"{}", b'{"messages":true}', b'{"messages":"1"}'])
def test_facts_of_another_type_are_not_valid(answer: bytes) -> None:
    assert facts_of(answer, {"messages": int}) is None
