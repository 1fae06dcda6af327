"""Policies of destinations: what may be written for which kind, and which one counts for a name."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.config import DestinationPolicy, DestinationSettings, LimitSettings, NodeSettings, load_node
from qmq.config.definition_values import check_policies
from qmq.config.destinations.policy import DEFAULT_DEAD_LETTER, KEYS, REASONS
from qmq.config.destinations.settings import CACHED_MAX
from qmq.errors import ConfigError


def diagnostics_of(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "node.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_node(path)
    return [diagnostic.replace(str(path), "FILE") for diagnostic in caught.value.diagnostics]


def policy(keys: str) -> str:
    return f"[[destinations.policies]]\n{keys}\n"


def settings_of(*policies: DestinationPolicy, create_on_use: bool = True) -> DestinationSettings:
    return DestinationSettings(create_on_use=create_on_use, policies=policies)


# Which policy counts


def test_there_is_always_a_policy() -> None:
    settings = DestinationSettings()

    for kind in ("/queue/", "/topic/", "/fanout/"):
        assert settings.policy_of(f"{kind}any").pattern == f"{kind}*"
    assert settings.policy_of("/queue/any").delivery_limit == 20
    assert settings.policy_of("/queue/any").dead_letter == DEFAULT_DEAD_LETTER


def test_temporary_queues_are_in_memory_and_nothing_of_them_becomes_a_dead_letter() -> None:
    found = DestinationSettings().policy_of("/temp-queue/x")

    assert (found.durable, found.dead_letter, found.delivery_limit) == (False, "", 0)


def test_the_exact_name_wins_then_the_longest_beginning_wherever_they_stand() -> None:
    names = ("/queue/*", "/queue/jobs.*", "/queue/jobs.urgent", "/queue/jobs.urgent*")
    for order in (names, names[::-1]):
        settings = settings_of(*(DestinationPolicy(pattern=name) for name in order))

        found = {
            destination: settings.policy_of(destination).pattern
            for destination in ("/queue/other", "/queue/jobs.slow", "/queue/jobs.urgent", "/queue/jobs.urgently")
        }

        assert found == {
            "/queue/other": "/queue/*",
            "/queue/jobs.slow": "/queue/jobs.*",
            "/queue/jobs.urgent": "/queue/jobs.urgent",
            "/queue/jobs.urgently": "/queue/jobs.urgent*",
        }


def test_a_policy_without_star_is_for_that_name_only() -> None:
    settings = settings_of(DestinationPolicy(pattern="/queue/a", priority=9))

    assert settings.policy_of("/queue/a").priority == 9
    assert settings.policy_of("/queue/ab").priority == 4


NAMES = st.text("ab", min_size=1, max_size=6)


@given(patterns=st.sets(st.tuples(NAMES, st.sampled_from(["", "*"])), max_size=12), name=NAMES)
def test_the_table_finds_what_looking_at_every_policy_would_find(patterns: set[tuple[str, str]], name: str) -> None:
    policies = [DestinationPolicy(pattern=f"/queue/{text}{star}") for text, star in patterns]
    destination = f"/queue/{name}"

    found = settings_of(*policies).table.written_for(destination)

    fitting = [policy for policy in policies if policy.matches(destination)]
    assert found == max(fitting, key=lambda policy: (policy.is_exact, len(policy.pattern)), default=None)


def test_policies_are_not_merged() -> None:
    settings = settings_of(
        DestinationPolicy(pattern="/queue/*", max_messages=5), DestinationPolicy(pattern="/queue/a", durable=False)
    )

    assert settings.policy_of("/queue/a").max_messages is None


def test_the_same_destination_gets_the_same_policy_object() -> None:
    settings = settings_of(DestinationPolicy(pattern="/queue/*"))

    assert settings.policy_of(DEFAULT_DEAD_LETTER) is settings.policy_of(DEFAULT_DEAD_LETTER)


def test_what_is_remembered_is_bounded() -> None:
    settings = settings_of(DestinationPolicy(pattern="/queue/a"))

    for number in range(CACHED_MAX + 10):
        settings.policy_of(f"/queue/{number}")

    assert len(settings.table._cache) <= CACHED_MAX
    assert settings.policy_of("/queue/a").is_exact


def test_a_copy_with_other_policies_answers_by_these() -> None:
    settings = settings_of(DestinationPolicy(pattern="/queue/a", priority=9))
    assert settings.policy_of("/queue/a").priority == 9

    copied = settings.replace({"policies": ()})

    assert copied.policy_of("/queue/a").priority == 4


def test_settings_that_have_been_asked_equal_those_that_have_not() -> None:
    asked, fresh = DestinationSettings(), DestinationSettings()

    asked.policy_of("/queue/a")

    assert asked == fresh


def test_without_creation_on_use_only_what_a_policy_covers_exists() -> None:
    settings = settings_of(
        DestinationPolicy(pattern="/queue/jobs.*"), DestinationPolicy(pattern="/topic/one"), create_on_use=False
    )

    exists = [name for name in ("/queue/jobs.a", "/queue/job", "/topic/one", "/topic/two") if settings.exists(name)]

    assert exists == ["/queue/jobs.a", "/topic/one"]
    assert settings.exists(DEFAULT_DEAD_LETTER)


# The last station


def test_nothing_dies_in_the_default_dead_letter_queue() -> None:
    for settings in (DestinationSettings(), settings_of(DestinationPolicy(pattern=DEFAULT_DEAD_LETTER))):
        last = settings.policy_of(DEFAULT_DEAD_LETTER)

        assert (last.dead_letter, last.delivery_limit, last.ttl_seconds) == ("", 0, 0)


def test_a_pattern_that_covers_its_own_dead_letter_queue_ages_nothing_there() -> None:
    settings = settings_of(
        DestinationPolicy(pattern="/queue/*", ttl_seconds=60, delivery_limit=3, max_messages=7, durable=False)
    )

    last = settings.policy_of(DEFAULT_DEAD_LETTER)

    assert (last.dead_letter, last.delivery_limit, last.ttl_seconds) == ("", 0, 0)
    assert (last.max_messages, last.durable) == (7, False)
    assert last.pattern == DEFAULT_DEAD_LETTER
    assert settings.policy_of("/queue/other").ttl_seconds == 60


def test_what_is_written_for_the_dead_letter_queue_itself_counts() -> None:
    settings = settings_of(DestinationPolicy(pattern=DEFAULT_DEAD_LETTER, ttl_seconds=60, delivery_limit=3))

    last = settings.policy_of(DEFAULT_DEAD_LETTER)

    assert (last.ttl_seconds, last.delivery_limit, last.dead_letter) == (60, 3, "")


# What is refused


@pytest.mark.parametrize(
    "pattern", ["jobs", "/queue", "/queue/", "/quee/a", "/queue/*.a", "*", "/topic/#", "/queue/#x"]
)
def test_a_pattern_that_can_match_nothing_sensible_is_refused(tmp_path: Path, pattern: str) -> None:
    (diagnostic,) = diagnostics_of(tmp_path, policy(f'pattern = "{pattern}"'))

    assert diagnostic.startswith("FILE:2: destinations.policies[0].pattern")


def test_two_policies_for_one_pattern_are_refused(tmp_path: Path) -> None:
    same = policy('pattern = "/queue/a"')

    assert diagnostics_of(tmp_path, same + policy('pattern = "/queue/a*"') + same) == [
        "FILE:5: destinations.policies[2]: must not have two entries for /queue/a"
    ]


@pytest.mark.parametrize(
    ("kind", "key"),
    [(kind, key) for kind in KEYS for other, keys in KEYS.items() for key in keys if key not in KEYS[kind]],
)
def test_a_key_that_means_nothing_for_the_kind_is_refused_with_the_reason(tmp_path: Path, kind: str, key: str) -> None:
    (diagnostic,) = diagnostics_of(tmp_path, policy(f'pattern = "{kind}a*"\n{key} = 0'))

    assert diagnostic.startswith(f"FILE:3: destinations.policies[0].{key} = 0: must be left out under {kind}: ")


def test_also_the_default_is_refused_where_it_means_nothing(tmp_path: Path) -> None:
    assert diagnostics_of(tmp_path, policy('pattern = "/topic/*"\ndurable = true\nexclusive = false')) == [
        "FILE:3: destinations.policies[0].durable = true: must be left out under /topic/: topics keep nothing; "
        "use a /fanout/ or a /queue/",
        "FILE:4: destinations.policies[0].exclusive = false: must be left out under /topic/: it is for /queue/ "
        "destinations",
    ]


def test_every_key_has_a_kind_and_every_reason_a_key() -> None:
    keys = {key for of_kind in KEYS.values() for key in of_kind}

    assert keys == set(DestinationPolicy.keys()) - {"pattern"}
    for kind, key in REASONS:
        assert key in keys and key not in KEYS[kind]


@pytest.mark.parametrize("key", ["dead_letter", "children"])
@pytest.mark.parametrize("name", ["/topic/a", "jobs", "/queue/", "/queue/a*", "/queue/a.#"])
def test_dead_letters_and_children_go_to_one_queue(tmp_path: Path, key: str, name: str) -> None:
    kind, value = ("/fanout/", f'["{name}"]') if key == "children" else ("/queue/", f'"{name}"')

    (diagnostic,) = diagnostics_of(tmp_path, policy(f'pattern = "{kind}x"\n{key} = {value}'))

    assert diagnostic.startswith("FILE:3: ")
    assert ": must be " in diagnostic


@pytest.mark.parametrize("limits", [{}, {"destination_bytes_max": 1024}])
def test_dead_letters_and_children_have_names_that_clients_may_use(limits: dict[str, int]) -> None:
    bytes_max = limits.get("destination_bytes_max", 255)
    name = "/queue/" + "é" * ((bytes_max - 7) // 2)
    dead = DestinationPolicy(pattern="/queue/a", dead_letter=f"{name}éé")
    child = DestinationPolicy(pattern="/fanout/f", children=(name, f"{name}éé"))

    with pytest.raises(ConfigError) as refused:
        check_policies(NodeSettings(limits=LimitSettings(**limits)), [dead, child])

    (said, _) = refused.value.diagnostics
    assert [one.partition(" = ")[0] for one in refused.value.diagnostics] == [
        "policies: destinations.policies[0].dead_letter",
        "policies: destinations.policies[1].children[1]",
    ]
    assert said.endswith(f": must have at most {bytes_max} bytes (limits.destination_bytes_max)")


def test_an_empty_dead_letter_drops(tmp_path: Path) -> None:
    assert DestinationPolicy(pattern="/queue/a", dead_letter="").dead_letter == ""


def test_a_queue_is_not_its_own_dead_letter_queue(tmp_path: Path) -> None:
    assert diagnostics_of(tmp_path, policy('pattern = "/queue/a"\ndead_letter = "/queue/a"')) == [
        "FILE:3: destinations.policies[0].dead_letter = '/queue/a': must be another queue than this one, "
        'or "", which drops messages'
    ]


def test_dead_letters_may_pass_several_stations() -> None:
    settings_of(
        DestinationPolicy(pattern="/queue/a", dead_letter="/queue/b"),
        DestinationPolicy(pattern="/queue/b", dead_letter="/queue/c.dead"),
        DestinationPolicy(pattern="/queue/c.*", dead_letter="/queue/c.dead"),
    )


def test_dead_letters_may_form_a_cycle() -> None:
    settings_of(
        DestinationPolicy(pattern="/queue/a*", dead_letter="/queue/b1"),
        DestinationPolicy(pattern="/queue/b*", dead_letter="/queue/a1"),
        DestinationPolicy(pattern="/queue/c", dead_letter="/exchange/x"),
        DestinationPolicy(pattern=DEFAULT_DEAD_LETTER, dead_letter="/queue/c"),
    )


@pytest.mark.parametrize(
    ("key", "target"),
    [(None, "/exchange/x"), ("k", "/exchange/x/k"), ("", "/exchange/x/"), ("a/b.c", "/exchange/x/a/b.c")],
)
def test_dead_letters_may_go_to_an_exchange_with_a_routing_key(key: str | None, target: str) -> None:
    found = DestinationPolicy(pattern="/queue/a", dead_letter="/exchange/x", dead_letter_routing_key=key)

    assert (found.dead_letter_target, found.keeps_dropped) == (target, True)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('dead_letter = "/exchange/"', "must be /exchange/NAME; the routing key is dead_letter_routing_key"),
        ('dead_letter = "/exchange/x/k"', "must be /exchange/NAME; the routing key is dead_letter_routing_key"),
        ('dead_letter = "/exchange/x*"', "must be /exchange/NAME"),
        ('dead_letter_routing_key = "k"', "must be left out, unless dead_letter is an exchange"),
        (
            'dead_letter = "/queue/b"\ndead_letter_routing_key = "k"',
            "must be left out, unless dead_letter is an exchange",
        ),
        (f'dead_letter = "/exchange/x"\ndead_letter_routing_key = "{"k" * 256}"', "must have at most 255 bytes"),
    ],
)
def test_a_dead_letter_exchange_or_key_that_is_wrong_is_refused(tmp_path: Path, keys: str, said: str) -> None:
    (diagnostic,) = diagnostics_of(tmp_path, policy(f'pattern = "/queue/a"\n{keys}'))

    assert said in diagnostic


def test_the_queue_for_what_no_binding_matches_has_no_exchange_itself(tmp_path: Path) -> None:
    (diagnostic,) = diagnostics_of(tmp_path, policy(f'pattern = "{DEFAULT_DEAD_LETTER}"\ndead_letter = "/exchange/x"'))

    assert "must be a queue: this one gets the dead letters that no binding of an exchange matches" in diagnostic


def test_a_pattern_with_an_exchange_ages_nothing_in_the_default_dead_letter_queue() -> None:
    wide = DestinationPolicy(pattern="/queue/*", dead_letter="/exchange/x", dead_letter_routing_key="k", ttl_seconds=5)

    last = settings_of(wide).policy_of(DEFAULT_DEAD_LETTER)

    assert (last.dead_letter_target, last.delivery_limit, last.ttl_seconds) == ("", 0, 0)


def test_an_alternate_is_the_name_of_an_exchange(tmp_path: Path) -> None:
    (diagnostic,) = diagnostics_of(tmp_path, policy('pattern = "/exchange/a*"\nalternate = "/exchange/b"'))

    assert diagnostic == (
        "FILE:3: destinations.policies[0].alternate = '/exchange/b': must have 1 to 127 characters, without slashes, "
        "wildcards and blanks"
    )


def test_without_creation_on_use_an_exchange_needs_no_policy() -> None:
    settings_of(DestinationPolicy(pattern="/queue/a", dead_letter="/exchange/x"), create_on_use=False)


def test_without_creation_on_use_dead_letters_and_children_must_be_covered() -> None:
    settings = NodeSettings(destinations=DestinationSettings(create_on_use=False))
    dead = DestinationPolicy(pattern="/queue/a", dead_letter="/queue/typo")
    child = DestinationPolicy(pattern="/fanout/f", children=("/queue/a", "/queue/none", "/queue/dead-letters"))

    with pytest.raises(ConfigError) as refused:
        check_policies(settings, [dead, child])

    assert refused.value.diagnostics == [
        "policies: policies[0].dead_letter = '/queue/typo': unknown dead letter: must have a policy, "
        "because create_on_use is false",
        "policies: policies[1].children[1] = '/queue/none': unknown child: must have a policy, "
        "because create_on_use is false",
    ]


def test_children_are_few_and_different(tmp_path: Path) -> None:
    twice = policy('pattern = "/fanout/f"\nchildren = ["/queue/a", "/queue/a"]')
    many = policy(f'pattern = "/fanout/f"\nchildren = {[f"/queue/{n}" for n in range(17)]}')

    assert "must not list '/queue/a' twice" in diagnostics_of(tmp_path, twice)[0]
    assert "must list at most 16 queues, not 17" in diagnostics_of(tmp_path, many)[0]


@pytest.mark.parametrize(
    ("keys", "allowed"),
    [
        ("redelivery_seconds_min = 70", "must be at least redelivery_seconds_min, 70"),
        ("redelivery_seconds_min = 0", "must be more than 0"),
        ("priority = 10", "must be at most 9"),
        ("ack_timeout_seconds = -1", "must be at least 0.0"),
        ("ttl_seconds = nan", "must be a number, not infinite"),
        ("delivery_limit = -1", "must be at least 0"),
        ('overflow = "drop"', "must be 'refuse', 'drop-oldest' or 'drop-newest'"),
        ("exclusive = 1", "must be true or false"),
    ],
)
def test_values_out_of_bounds_are_refused(tmp_path: Path, keys: str, allowed: str) -> None:
    (diagnostic,) = diagnostics_of(tmp_path, policy(f'pattern = "/queue/a"\n{keys}'))

    assert diagnostic.startswith("FILE:") and diagnostic.endswith(allowed)
