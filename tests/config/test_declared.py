"""`[[queues]]`, `[[exchanges]]` and `[[bindings]]` of a node file: their meaning, and refusals."""

from pathlib import Path

import pytest

from qmq.config import load, load_node
from qmq.config.definition_values import queue_values
from qmq.config.show import effective
from qmq.errors import ConfigError

ORDERS = """
[[exchanges]]
name = "orders"
type = "topic"
"""


def read(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(text, "utf-8")
    return path


def test_entries_have_the_keys_of_the_declarations(tmp_path: Path) -> None:
    text = """
data = "/d"
[[queues]]
name = "/queue/a"
max_bytes = "1KiB"
expires_seconds = 5.0
[[exchanges]]
name = "orders"
type = "headers"
alternate = "amq.fanout"
locked = true
[[bindings]]
source = "/exchange/orders"
queue = "/queue/a"
key = "k"
arguments = { x-match = "any", n = 4, yes = true }
[[bindings]]
source = "/topic/a.*.#"
queue = "/queue/a"
[[bindings]]
source = "/exchange/amq.topic"
exchange = "/exchange/orders"
key = "a.#"
"""
    settings = load_node(read(tmp_path, text))

    assert queue_values(settings.queues[0]) == {"max_bytes": 1024, "expires_seconds": 5.0}
    assert settings.exchanges[0].value == {"type": "headers", "alternate": "amq.fanout"}
    assert settings.bindings[0].name == '/exchange/orders /queue/a k {"n":"4","x-match":"any","yes":"true"}'
    assert settings.bindings[1].value == {"source": "/topic/a.*.#", "queue": "/queue/a", "key": "", "arguments": {}}
    assert settings.bindings[2].name == "/exchange/amq.topic /exchange/orders a.#"
    assert settings.bindings[2].value == {
        "source": "/exchange/amq.topic",
        "exchange": "/exchange/orders",
        "key": "a.#",
        "arguments": {},
    }
    assert settings.source == str(tmp_path / "node.toml")
    again = load_node(read(tmp_path, effective(settings)))
    assert again == settings


def test_dead_letters_may_go_to_an_exchange_without_create_on_use(tmp_path: Path) -> None:
    text = '[destinations]\ncreate_on_use = false\n[[queues]]\nname = "/queue/a"\ndead_letter = "/exchange/orders"\n'

    settings = load_node(read(tmp_path, text + ORDERS))

    assert settings.queues[0].dead_letter == "/exchange/orders"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[queues]]\nname = "/topic/a"', "2: queues[0].name = '/topic/a': must be a queue, /queue/NAME"),
        ('[[queues]]\nname = "/queue/*"', "2: queues[0].name = '/queue/*': must be one queue, without * and #"),
        ('[[queues]]\nnam = "/queue/a"', "2: queues[0].nam: unknown key; did you mean name?"),
        (
            '[[queues]]\nname = "/queue/a"\nmax_message = 5',
            "3: queues[0].max_message: unknown key; did you mean max_mes",
        ),
        ('[[queues]]\nname = "/queue/a"\nretain = true', "3: queues[0].retain = true: must be left out under /queue/"),
        (
            '[[queues]]\nname = "/queue/a"\nlocked = true\nauto_delete = true',
            "4: queues[0].auto_delete = true: must be left out of a locked entry",
        ),
        (
            '[[queues]]\nname = "/queue/a"\n[[queues]]\nname = "/queue/a"',
            "4: queues[1].name = '/queue/a': must not have two entries for /queue/a",
        ),
        (
            '[destinations]\ncreate_on_use = false\n[[queues]]\nname = "/queue/a"\ndead_letter = "/queue/b"',
            "5: queues[0].dead_letter = '/queue/b': must be one of [[queues]], because create_on_use is false",
        ),
        (
            f'[[queues]]\nname = "/queue/{"a" * 300}"',
            "2: queues[0].name = '/queue/aaaaa",
        ),
        (
            f'[[queues]]\nname = "/queue/a"\ndead_letter = "/queue/{"b" * 300}"',
            "3: queues[0].dead_letter = '/queue/bbbbb",
        ),
        (
            f'[[bindings]]\nsource = "/topic/a"\nqueue = "/queue/{"b" * 300}"',
            "3: bindings[0].queue = '/queue/bbbbb",
        ),
        ('[[queues]]\nname = "/queue/a"\nreceipt = "replicas=2"', 'receipt = "replicas=2" asks for more nodes'),
        (
            '[[exchanges]]\nname = "amq.mine"\ntype = "topic"',
            "2: exchanges[0].name = 'amq.mine': must not begin with amq.",
        ),
        ('[[exchanges]]\nname = "a/b"\ntype = "topic"', "2: exchanges[0].name = 'a/b': must have 1 to 127 characters"),
        ('[[exchanges]]\nname = "a"\ntype = "x"', "3: exchanges[0].type = 'x': must be 'direct', 'topic', 'fanout'"),
        (
            f'{ORDERS}alternate = "none"',
            "5: exchanges[0].alternate = 'none': must be one of [[exchanges]], or predefined",
        ),
        (
            '[[bindings]]\nsource = "/exchange/none"\nqueue = "/queue/a"',
            "2: bindings[0].source = '/exchange/none': must be one of [[exchanges]], or predefined",
        ),
        (
            '[[bindings]]\nsource = "/exchange/amq.topic"\nexchange = "/exchange/none"',
            "3: bindings[0].exchange = '/exchange/none': must be one of [[exchanges]], or predefined",
        ),
        (
            '[[bindings]]\nsource = "/exchange/amq.topic"\nexchange = "orders"',
            "3: bindings[0].exchange = 'orders': must be /exchange/NAME",
        ),
        (
            '[[bindings]]\nsource = "/topic/a"\nexchange = "/exchange/amq.topic"',
            "3: bindings[0].exchange = '/exchange/amq.topic': must be left out: it is for messages of exchanges",
        ),
        (
            '[[bindings]]\nsource = "/exchange/amq.topic"\nqueue = "/queue/a"\nexchange = "/exchange/amq.topic"',
            "4: bindings[0].exchange = '/exchange/amq.topic': must be left out beside queue",
        ),
        (
            '[[bindings]]\nsource = "/exchange/amq.topic"',
            "bindings[0].exchange = '': must be /exchange/NAME, or queue /queue/NAME",
        ),
        ('[[bindings]]\nsource = "/queue/b"\nqueue = "/queue/a"', "must be /topic/NAME or a pattern of topics"),
        ('[[bindings]]\nsource = "/topic/a*b"\nqueue = "/queue/a"', "must be /topic/NAME or a pattern of topics"),
        ('[[bindings]]\nsource = "/fanout/*"\nqueue = "/queue/a"', "must be /topic/NAME or a pattern of topics"),
        (
            '[[bindings]]\nsource = "/topic/a"\nqueue = "/queue/a"\nkey = "k"',
            "4: bindings[0].key = 'k': must be left out: it is for exchanges, and /topic/a is none",
        ),
        (
            '[[bindings]]\nsource = "/exchange/amq.headers"\nqueue = "/queue/a"\narguments = { x-match = "some" }',
            "4: bindings[0].arguments: must have x-match as one of all, any",
        ),
        (
            '[[bindings]]\nsource = "/topic/a"\nqueue = "/queue/a"\n' * 2,
            "5: bindings[1].source = '/topic/a /queue/a': must not have two entries",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(read(tmp_path, text), None)

    assert said in "; ".join(refused.value.diagnostics)
