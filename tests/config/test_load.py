"""Files in, settings out: what is read, what is refused, and how each error is reported."""

from collections.abc import Callable
from pathlib import Path

import pytest

from qmq.config import Address, NodeSettings, load, load_node, load_peers
from qmq.errors import ConfigError
from tests.support.cluster_mesh import with_secret

HASH = "$argon2id$v=19$m=65536,t=3,p=4$rIZkf2r0BOgSJIHMhh1F6w$BqqNGrp1o7YEvQMCcvmzZjzpeuGHXTctXHU5i2Ada/8"
CHECKOUT = Path(__file__).parents[2] / "cluster"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Put text into a file and give its path."""
    count = 0

    def put(text: str) -> Path:
        nonlocal count
        count += 1
        path = tmp_path / f"file{count}.toml"
        path.touch(0o600)
        path.write_text(text, "utf-8")
        return path

    return put


@pytest.fixture
def three(write: Write) -> Path:
    """The peers file of three nodes that comes with QMQ, which its user alone can read."""
    return write(with_secret((CHECKOUT / "three.toml").read_text("utf-8")))


def diagnostics_of(path: Path, text_of_path: str = "FILE") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_node(path)
    return [diagnostic.replace(str(path), text_of_path) for diagnostic in caught.value.diagnostics]


def test_without_a_file_there_is_one_node_on_loopback() -> None:
    settings = load_node(None)

    assert settings.name == "qmq"
    assert settings.data == Path("qmq-data")
    assert [listener.address for listener in settings.stomp] == [Address("127.0.0.1", 61613)]
    assert settings.stomp[0].serves_anonymous(has_users=False)
    assert settings.storage.sync == "always"


def test_settings_are_frozen() -> None:
    settings = load_node(None)

    with pytest.raises(AttributeError):
        settings.limits.prefetch_max = 1


def test_all_errors_are_reported_at_once_in_the_order_of_the_file(write: Write) -> None:
    path = write(
        'name = "Bad Name"\n[limits]\nprefetch_max = 0\ndrain_seconds = "5"\n\n[storage]\nsync = "sometimes"\n'
    )

    assert diagnostics_of(path) == [
        "FILE:1: name = 'Bad Name': must be 1 to 32 characters out of a-z, 0-9 and -",
        "FILE:3: limits.prefetch_max = 0: must be at least 1",
        "FILE:4: limits.drain_seconds = '5': must be a number",
        'FILE:7: storage.sync = \'sometimes\': must be "always", "never", or an interval from "1ms" to "60000ms"',
    ]


def test_errors_of_both_files_are_reported_together(write: Write) -> None:
    node = write("[limits]\nprefetch_max = 0\n")
    peers = write('mesh = "m"\nversion = 0\nnodes = []\n')

    with pytest.raises(ConfigError) as caught:
        load(node, peers)

    assert [diagnostic.rpartition("/")[2] for diagnostic in caught.value.diagnostics] == [
        "file2.toml:2: version = 0: must be at least 1",
        "file2.toml:3: nodes: must list 1 to 8 nodes, not 0",
        "file1.toml:2: limits.prefetch_max = 0: must be at least 1",
    ]


def test_an_unknown_key_is_refused_with_what_was_perhaps_meant(write: Write) -> None:
    path = write("[limits]\nprefech_max = 5\n")

    assert diagnostics_of(path) == ["FILE:2: limits.prefech_max: unknown key; did you mean prefetch_max?"]


def test_an_unknown_key_that_resembles_nothing_lists_what_there_is(write: Write) -> None:
    path = write("[destinations]\nxyzzy = 5\n")

    assert diagnostics_of(path) == ["FILE:2: destinations.xyzzy: unknown key; known here: create_on_use, policies"]


def test_an_unknown_section_is_refused(write: Write) -> None:
    assert diagnostics_of(write("[limit]\nprefetch_max = 5\n")) == ["FILE:1: limit: unknown key; did you mean limits?"]


def test_a_key_inside_an_unknown_shape_of_section_does_not_break_the_report(write: Write) -> None:
    assert diagnostics_of(write('limits = "many"\n')) == ["FILE:1: limits = 'many': must be a section of keys"]
    assert diagnostics_of(write('stomp = "127.0.0.1:1"\n')) == ["FILE:1: stomp = '127.0.0.1:1': must be a list"]
    assert diagnostics_of(write("stomp = [1]\n")) == ["FILE:1: stomp[0] = 1: must be a section of keys"]
    assert diagnostics_of(write("mesh = { tls = 3 }\n")) == ["FILE:1: mesh.tls = 3: must be a section of keys"]


@pytest.mark.parametrize("text", ["name = ", "name = 'a'\nname = 'b'\n", "[limits\n", "\x00", "a = 1 b = 2"])
def test_text_that_is_not_toml_is_reported_with_its_line(write: Write, text: str) -> None:
    (diagnostic,) = diagnostics_of(write(text))

    assert "not TOML" in diagnostic


def test_the_line_of_broken_toml_is_named(write: Write) -> None:
    (diagnostic,) = diagnostics_of(write('name = "a"\nlimits = = 3\n'))

    assert diagnostic == "FILE:2: not TOML: Invalid value, at column 10"


def test_lists_that_are_nested_too_deeply_are_an_error(write: Write) -> None:
    (diagnostic,) = diagnostics_of(write("name = " + "[" * 5000 + "]" * 5000))

    assert diagnostic.startswith("FILE: not TOML")


@pytest.mark.parametrize("key", ["", "limits.", "mesh.tls."])
def test_an_unknown_section_is_an_error_however_deep_it_is(write: Write, key: str) -> None:
    found = diagnostics_of(write(key + "x." * 5000 + "x = 1"))

    # From Python 3.14 on, tomllib does not read it.
    assert found[0].startswith(f"FILE:1: {key}x: unknown key; ") or "nested too deeply" in found[0]


def test_sections_that_are_nested_too_deeply_are_an_error(write: Write) -> None:
    (diagnostic,) = diagnostics_of(write('[[authentication]]\nkind = "http"\noptions.' + "x." * 5000 + "x = 1"))

    # From Python 3.14 on, tomllib does not read them either.
    assert diagnostic.startswith("FILE: ")
    assert diagnostic.endswith("sections are nested too deeply")


def test_a_byte_that_is_not_utf8_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b'name = "a"\ndata = "caf\xe9"\n')

    assert diagnostics_of(path) == ["FILE:2: not TOML: a byte that is not UTF-8"]


def test_a_missing_file_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    assert diagnostics_of(tmp_path / "none.toml") == ["FILE: cannot be read: No such file or directory"]


def test_a_huge_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "huge.toml"
    path.write_bytes(b"#" * ((4 << 20) + 1))

    (diagnostic,) = diagnostics_of(path)

    assert "larger than" in diagnostic


def test_sizes_may_be_written_with_units(write: Write) -> None:
    settings = load_node(write('[limits]\nbody_bytes_max = "2MiB"\noutbox_bytes_max = 12345678\n'))

    assert settings.limits.body_bytes_max == 2 << 20
    assert settings.limits.outbox_bytes_max == 12345678


@pytest.mark.parametrize("size", ['"2MB"', '"-1"', '"1e3"', "true", "1.5", "-1", '"65MiB"', "0"])
def test_sizes_that_are_none_are_refused(write: Write, size: str) -> None:
    (diagnostic,) = diagnostics_of(write(f"[limits]\nbody_bytes_max = {size}\n"))

    assert diagnostic.startswith("FILE:2: limits.body_bytes_max = ")
    assert ": must be " in diagnostic


@pytest.mark.parametrize("key", ["header_line_bytes_max", "header_bytes_max", "login_bytes_max"])
def test_what_a_frame_has_before_its_body_is_bounded_whatever_is_set(write: Write, key: str) -> None:
    # A message and its headers are one record, and a transaction of them one batch.
    assert diagnostics_of(write(f'[limits]\n{key} = "60MiB"\n')) == [
        f"FILE:2: limits.{key} = '60MiB': must be at most 1048576"
    ]
    assert getattr(load_node(write(f'[limits]\n{key} = "1MiB"\n')).limits, key) == 1 << 20


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "0", "0.0", "-1.5"])
def test_seconds_must_be_a_positive_number(write: Write, number: str) -> None:
    (diagnostic,) = diagnostics_of(write(f"[limits]\nlogin_seconds = {number}\n"))

    assert "limits.login_seconds" in diagnostic
    assert ": must be " in diagnostic


@pytest.mark.parametrize(
    ("sync", "interval"), [("always", None), ("never", None), ("1ms", 1), ("50ms", 50), ("60000ms", 60000)]
)
def test_sync_is_always_never_or_an_interval(write: Write, sync: str, interval: int | None) -> None:
    settings = load_node(write(f'[storage]\nsync = "{sync}"\n'))

    assert settings.storage.sync == sync
    assert settings.storage.sync_interval_ms == interval


@pytest.mark.parametrize("sync", ['"0ms"', '"60001ms"', '"50"', '"ms"', "50", "true", '"50 ms"', '"٥ms"'])
def test_sync_of_another_form_is_refused(write: Write, sync: str) -> None:
    (diagnostic,) = diagnostics_of(write(f"[storage]\nsync = {sync}\n"))

    assert "storage.sync" in diagnostic


def test_an_outbox_has_room_for_some_messages(write: Write) -> None:
    assert diagnostics_of(write('[limits]\nbody_bytes_max = "8MiB"\n')) == [
        "FILE:1: limits.outbox_bytes_max = 16777216: must be at least four times body_bytes_max, 33554432"
    ]
    load_node(write('[limits]\nbody_bytes_max = "8MiB"\noutbox_bytes_max = "32MiB"\n'))


def test_a_rule_between_two_keys_holds_when_only_one_is_set(write: Write) -> None:
    assert diagnostics_of(write('[storage]\njournal_keep_bytes = "20GiB"\n')) == [
        "FILE:1: storage.journal_bytes_max = 10737418240: must be at least journal_keep_bytes, 21474836480"
    ]
    assert diagnostics_of(write("[limits]\nprefetch_default = 5000\n")) == [
        "FILE:1: limits.prefetch_max = 1000: must be at least prefetch_default, 5000"
    ]


@pytest.mark.parametrize(("has_users", "served"), [(True, [False, False, True, False]), (False, [True, True, True])])
def test_loopback_listeners_take_anonymous_clients_until_there_is_a_user(
    write: Write, has_users: bool, served: list[bool]
) -> None:
    text = (
        '[[stomp]]\naddress = "localhost:1"\n[[stomp]]\naddress = "[::1]:2"\n'
        '[[stomp]]\naddress = "127.0.0.1:3"\nanonymous = true\n'
    )
    if has_users:
        text += (
            f'[[stomp]]\naddress = "10.0.0.1:4"\ninsecure = true\n[[users]]\nname = "ann"\npassword_hash = "{HASH}"\n'
        )

    settings = load_node(write(text))

    assert [listener.serves_anonymous(has_users=has_users) for listener in settings.stomp] == served


def test_a_listener_off_loopback_without_tls_must_say_that_it_is_insecure(write: Write) -> None:
    users = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\n'
    listener = '[[stomp]]\naddress = "0.0.0.0:61613"\n'

    assert diagnostics_of(write(f"{listener}{users}")) == [
        "FILE:1: stomp[0].insecure = false: must be true, unless tls is set: "
        "passwords would cross the network to 0.0.0.0:61613 in clear"
    ]
    assert load_node(write(f"{listener}insecure = true\n{users}")).stomp[0].insecure
    tls = 'tls = { certificate = "c", key = "k" }\n'
    assert not load_node(write(f"{listener}{tls}{users}")).stomp[0].insecure


def test_a_listener_that_takes_users_from_certificates_needs_an_authority(write: Write) -> None:
    users = "[definitions.user.ann]\n"
    listener = '[[stomp]]\naddress = "127.0.0.1:1"\ncertificate_user = "san"\n'
    tls = 'tls = { certificate = "c", key = "k", ca = "a" }\n'

    assert diagnostics_of(write(f"{listener}{users}"))[0] == (
        "FILE:3: stomp[0].certificate_user = 'san': "
        "must be left out, unless tls has ca: only a checked certificate names a user"
    )
    assert load_node(write(f"{listener}{tls}{users}")).definitions == {"user": {"ann": {}}}


@pytest.mark.parametrize("users", ["[[users]]\nname = 'ann'\n", "[definitions.user.ann]\ngroups = ['client']\n"])
def test_one_user_can_log_in(write: Write, users: str) -> None:
    (diagnostic,) = diagnostics_of(write(users))
    assert "must have a password_hash for 'ann', or a listener certificate_user: no client could log in" in diagnostic

    other = f'[definitions.user.bob]\npassword_hash = "{HASH}"\n'
    assert sorted(load_node(write(users + other)).definitions["user"]) == ["ann", "bob"]


PERMISSION_MISTAKES = [
    (
        'group = "administrator"\ndeny = ["send"]',
        "definitions: permission group:administrator deny send /queue/a: group: must be another group: "
        "an administrator may always do everything",
    ),
    ('allow = ["send"]', "permissions[0]: must have either user or group"),
    ('user = "ann"\ngroup = "billing"\nallow = ["send"]', "permissions[0]: must have either user or group"),
    ('user = "ann"', "permissions[0]: must have either allow or deny, with at least one action"),
    (
        'user = "ann"\nallow = ["send"]\ndeny = ["subscribe"]',
        "permissions[0]: must have either allow or deny, with at least one action",
    ),
    (
        'user = "ann"\nallow = ["read"]',
        "permissions[0].allow[0] = 'read': must be one of send, subscribe, declare, administer, observe",
    ),
]


@pytest.mark.parametrize(("lines", "mistake"), PERMISSION_MISTAKES)
def test_a_permission_that_says_nothing_clear_is_refused(write: Write, lines: str, mistake: str) -> None:
    users = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\ngroups = ["billing"]\n'
    row = f'[[permissions]]\ndestinations = ["/queue/a"]\n{lines}\n'

    (diagnostic,) = diagnostics_of(write(f"{users}{row}"))

    assert diagnostic.partition(": ")[2] == mistake


@pytest.mark.parametrize("pattern", ["queue/a", "/queues/a", "/queue/", "/queue/*a", "/topic/a.#", "*"])
def test_a_permission_has_the_patterns_of_policies(write: Write, pattern: str) -> None:
    users = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\n'
    row = f'[[permissions]]\nuser = "ann"\nallow = ["send"]\ndestinations = ["/queue/a", "{pattern}"]\n'

    (diagnostic,) = diagnostics_of(write(f"{users}{row}"))

    assert f"permissions[0].destinations[1] = {pattern!r}: must " in diagnostic


@pytest.mark.parametrize("name", ["anonymous", "local-administrator"])
def test_a_user_has_no_name_that_qmq_itself_uses(write: Write, name: str) -> None:
    (diagnostic,) = diagnostics_of(write(f'[[users]]\nname = "{name}"\npassword_hash = "{HASH}"\n'))

    assert "must be another name" in diagnostic


@pytest.mark.parametrize("address", ["0.0.0.0:61613", "[::]:61613", "10.1.2.3:61613", "broker.example:61613"])
def test_an_anonymous_listener_off_loopback_is_refused(write: Write, address: str) -> None:
    listener = f'[[stomp]]\naddress = "{address}"\ninsecure = true\nanonymous = true\n'
    text = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\n{listener}'

    (diagnostic,) = diagnostics_of(write(text))

    assert diagnostic.startswith("FILE:7: stomp[0].anonymous = true: must be false: ")


def test_a_listener_without_possible_login_is_refused(write: Write) -> None:
    assert diagnostics_of(write('[[stomp]]\naddress = "0.0.0.0:61613"\ninsecure = true\n')) == [
        "FILE: definitions: must name at least one user: no client could log in at 0.0.0.0:61613"
    ]


def test_two_listeners_at_one_address_are_refused(write: Write) -> None:
    (diagnostic,) = diagnostics_of(write('[[stomp]]\naddress = "127.0.0.1:5"\n[[stomp]]\naddress = "127.0.0.1:5"\n'))

    assert "two listeners at 127.0.0.1:5" in diagnostic


def test_a_password_in_the_file_is_refused_without_being_repeated(write: Write) -> None:
    diagnostics = diagnostics_of(write('[[users]]\nname = "ann"\npassword = "hunter2"\n'))

    assert any("`qmq config hash`" in diagnostic and diagnostic.startswith("FILE:3:") for diagnostic in diagnostics)
    assert "hunter2" not in "\n".join(diagnostics)


def test_a_password_in_place_of_its_hash_is_refused_without_being_repeated(write: Write) -> None:
    (diagnostic,) = diagnostics_of(write('[[users]]\nname = "ann"\npassword_hash = "hunter2"\n'))

    assert "`qmq config hash`" in diagnostic
    assert "hunter2" not in diagnostic


def test_hashes_do_not_show_in_the_representation_of_settings(write: Write) -> None:
    settings = load_node(write(f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\n'))

    assert HASH not in repr(settings)


def test_two_users_of_one_name_are_refused(write: Write) -> None:
    user = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\n'

    (diagnostic,) = diagnostics_of(write(user + user))

    assert "users[1]: must not have two entries for ann" in diagnostic


def test_mesh_tls_needs_the_certificate_of_an_authority(write: Write) -> None:
    (diagnostic,) = diagnostics_of(write('[mesh.tls]\ncertificate = "a.pem"\nkey = "a.key"\n'))

    assert diagnostic == "FILE:1: mesh.tls: must have ca: a mesh link checks the certificate of the other side"


def test_relative_paths_start_at_the_folder_of_the_file(write: Write, tmp_path: Path) -> None:
    settings = load_node(
        write(
            'data = "d"\n[mesh.tls]\ncertificate = "c.pem"\nkey = "/etc/k.pem"\nca = "ca.pem"\n'
            '[[stomp]]\naddress = "127.0.0.1:5"\ntls = { certificate = "s.pem", key = "s.key" }\n'
        )
    )

    assert settings.data == tmp_path / "d"
    assert settings.mesh.tls is not None
    assert settings.mesh.tls.certificate == tmp_path / "c.pem"
    assert settings.mesh.tls.key == Path("/etc/k.pem")
    assert settings.stomp[0].tls is not None and settings.stomp[0].tls.key == tmp_path / "s.key"


@pytest.mark.parametrize("path", ["", "a\\u0000b"])
def test_a_path_that_no_file_has_is_an_error(write: Write, path: str) -> None:
    file = write(f'data = "{path}"\n[mesh.tls]\ncertificate = "c.pem"\nkey = "{path}"\nca = "ca.pem"\n')

    with pytest.raises(ConfigError) as error:
        load(file, None)

    keys = [one.partition(" = ")[0].removeprefix(str(file)) for one in error.value.diagnostics]
    assert keys == [":1: data", ":4: mesh.tls.key"]
    assert all(one.endswith("must be a path") for one in error.value.diagnostics)


def test_overrides_win_over_the_file(write: Write) -> None:
    path = write('data = "d"\n[limits]\ndrain_seconds = 3\nprefetch_max = 500\n')

    settings = load_node(path, {"data": Path("other"), "limits.drain_seconds": 1})

    assert settings.data == Path("other")
    assert settings.limits.drain_seconds == 1
    assert settings.limits.prefetch_max == 500


def test_overrides_are_checked_like_the_file() -> None:
    with pytest.raises(ConfigError, match="limits.prefetch_max = 0: must be at least 1"):
        load_node(None, {"limits.prefetch_max": 0})


def test_an_override_into_a_value_that_is_no_section_is_an_error(write: Write) -> None:
    with pytest.raises(ConfigError, match="limits = 5: must be a section of keys"):
        load_node(write("limits = 5\n"), {"limits.prefetch_max": 7})


def test_with_a_peers_file_a_node_listens_where_the_file_says(three: Path) -> None:
    settings, peers = load(None, three, "b")

    assert settings.name == "b"
    assert [str(listener.address) for listener in settings.stomp] == ["127.0.0.1:61614"]
    assert peers is not None and peers.mesh == "three"


def test_a_node_that_names_itself_nowhere_listens_where_the_file_says_of_its_default_name(write: Write) -> None:
    node = 'name = "{}"\nclient = "127.0.0.1:{}"\nmesh = "127.0.0.1:{}"\n'
    nodes = "".join("[[nodes]]\n" + node.format(*of) for of in (("qmq", 7000, 7001), ("b", 7002, 7003)))

    settings, _ = load(None, write(f'mesh = "m"\nversion = 1\nsecret = "sixteen characters"\n{nodes}'))

    assert settings.name == "qmq"
    assert [str(listener.address) for listener in settings.stomp] == ["127.0.0.1:7000"]


def test_listeners_of_the_node_file_win_over_the_peers_file(write: Write, three: Path) -> None:
    settings, _ = load(write('name = "b"\n[[stomp]]\naddress = "127.0.0.1:7000"\n'), three)

    assert [str(listener.address) for listener in settings.stomp] == ["127.0.0.1:7000"]


def test_a_node_that_the_peers_file_does_not_name_is_refused(three: Path) -> None:
    with pytest.raises(ConfigError, match="no node is named 'd'; known here: a, b, c"):
        load(None, three, "d")


@pytest.mark.parametrize("name", ["three", "five", "eight"])
def test_the_peers_files_that_come_with_qmq_are_right(write: Write, name: str) -> None:
    path = write(with_secret((CHECKOUT / f"{name}.toml").read_text("utf-8")))
    peers = load_peers(path)

    assert peers.mesh == name
    assert len(peers.nodes) == {"three": 3, "five": 5, "eight": 8}[name]
    assert [peer.client.port for peer in peers.nodes] == list(range(61613, 61613 + len(peers.nodes)))
    assert [peer.mesh.port for peer in peers.nodes] == list(range(61713, 61713 + len(peers.nodes)))
    for peer in peers.nodes:
        load(None, path, peer.name)


def test_settings_are_values() -> None:
    assert load_node(None) == NodeSettings()


@pytest.mark.parametrize("url", ["sqlite", "postgresql://db.example/qmq", "postgres:///q?host=/run/pg&user=qmq"])
def test_a_queue_store_is_sqlite_or_a_url(write: Write, url: str) -> None:
    assert load_node(write(f'[storage]\nqueue_store = "{url}"\n')).storage.queue_store == url


@pytest.mark.parametrize("text", ["mysql://h/d", "", "SQLite", "postgresql"])
def test_any_other_queue_store_is_refused(write: Write, text: str) -> None:
    (diagnostic,) = diagnostics_of(write(f'[storage]\nqueue_store = "{text}"\n'))

    assert "storage.queue_store" in diagnostic and 'must be "sqlite", or the URL' in diagnostic


@pytest.mark.parametrize("url", ["postgresql://me:hush@db/qmq", "postgresql://db/qmq?user=me&password=hush"])
def test_a_password_in_the_url_of_the_queue_store_is_refused_and_not_repeated(write: Write, url: str) -> None:
    (diagnostic,) = diagnostics_of(write(f'[storage]\nqueue_store = "{url}"\n'))

    assert "~/.pgpass" in diagnostic
    assert "hush" not in diagnostic


LEVELS = ["accepted", "fsync", "replicas=1", "replicas=2"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_receipt_may_wait_for_as_many_disks_as_there_are(tmp_path: Path, level: str) -> None:
    node, peers = files_of_three(tmp_path, f'[mesh]\nreceipt = "{level}"\n')

    settings, _ = load(node, peers, "a")

    assert settings.mesh.receipt == level


def test_a_receipt_for_more_disks_than_the_mesh_has_is_an_error(tmp_path: Path) -> None:
    text = '[mesh]\nreceipt = "replicas=3"\n[[destinations.policies]]\npattern = "/queue/a"\nreceipt = "replicas=4"\n'
    node, peers = files_of_three(tmp_path, text)

    with pytest.raises(ConfigError) as error:
        load(node, peers, "a")
    assert [diagnostic.partition(": ")[2] for diagnostic in error.value.diagnostics] == [
        'mesh.receipt = "replicas=3" asks for more nodes than the mesh has; the most is "replicas=2"',
        'definitions: policy /queue/a: receipt = "replicas=4" asks for more nodes than the mesh has; '
        'the most is "replicas=2"',
    ]

    with pytest.raises(ConfigError, match='without other nodes it is "fsync" or "accepted"'):
        load(node, None)


def test_a_peers_file_with_an_error_hides_how_many_nodes_there_are(tmp_path: Path) -> None:
    node, peers = files_of_three(tmp_path, '[mesh]\nreceipt = "replicas=2"\n')
    peers.write_text("oops = 1\n" + peers.read_text("utf-8"), "utf-8")

    with pytest.raises(ConfigError) as error:
        load(node, peers, "a")

    assert [diagnostic.partition(": ")[2] for diagnostic in error.value.diagnostics] == [
        "oops: unknown key; known here: mesh, nodes, origins, secret, secret_file, version"
    ]


def test_an_unknown_level_is_an_error(tmp_path: Path) -> None:
    node, peers = files_of_three(tmp_path, '[mesh]\nreceipt = "replicas=0"\nreceipt_short = "wait"\n')

    with pytest.raises(ConfigError) as error:
        load(node, peers, "a")

    assert len(error.value.diagnostics) == 2


def files_of_three(tmp_path: Path, text: str) -> tuple[Path, Path]:
    """A node file with that text, and the peers file of a, b and c."""
    nodes = "".join(
        f'[[nodes]]\nname = "{name}"\nclient = "127.0.0.1:{61613 + 10 * n}"\nmesh = "127.0.0.1:{61713 + 10 * n}"\n'
        for n, name in enumerate("abc")
    )
    node, peers = tmp_path / "node.toml", tmp_path / "peers.toml"
    node.write_text(text)
    peers.touch(0o600)
    peers.write_text(f'mesh = "three"\nversion = 1\nsecret = "a secret of sixteen"\n{nodes}')
    return node, peers


def test_a_reserve_that_is_too_small_for_a_checkpoint_is_refused_with_the_number_that_would_do(write: Write) -> None:
    (diagnostic,) = diagnostics_of(write('[storage]\ncheckpoint_bytes = "1MiB"\ndisk_reserve_bytes = "4MiB"\n'))
    assert "storage.disk_reserve_bytes" in diagnostic and f"must be 0, or at least {16 << 20}" in diagnostic
    (diagnostic,) = diagnostics_of(write('[storage]\ndisk_reserve_bytes = "4MiB"\n'))
    assert f"must be 0, or at least {32 << 20}" in diagnostic

    for fine in ("0", '"32MiB"'):
        assert load_node(write(f"[storage]\ndisk_reserve_bytes = {fine}\n")).storage.checkpoint_bytes == 64 << 20


def test_a_node_file_names_its_peers_file_and_the_command_line_names_another(tmp_path: Path) -> None:
    nodes = '[[nodes]]\nname = "a"\nclient = "127.0.0.1:1"\nmesh = "127.0.0.1:2"\n'
    for name in ("one", "other"):
        (tmp_path / f"{name}.toml").write_text(f'mesh = "{name}"\nversion = 1\n{nodes}', "utf-8")
    (tmp_path / "folder").mkdir()
    node_file = tmp_path / "folder" / "node.toml"
    node_file.write_text('name = "a"\npeers = "../one.toml"\n', "utf-8")

    settings, named = load(node_file, None)
    _, given = load(node_file, tmp_path / "other.toml")

    assert named is not None and named.mesh == "one"
    assert given is not None and given.mesh == "other"
    assert str(settings.stomp[0].address) == "127.0.0.1:1"


@pytest.mark.parametrize(("value", "why"), [('"missing.toml"', "missing.toml: cannot be read"), ("7", "peers")])
def test_a_peers_file_that_a_node_file_names_wrongly_is_an_error(tmp_path: Path, value: str, why: str) -> None:
    node_file = tmp_path / "node.toml"
    node_file.write_text(f'name = "a"\npeers = {value}\n', "utf-8")

    with pytest.raises(ConfigError) as caught:
        load(node_file, None)

    assert why in str(caught.value)
