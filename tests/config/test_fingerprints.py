"""Prints of destination policies: the same when files mean the same, and another one per policy when they do not."""

from qmq.config import DestinationPolicy, DestinationSettings
from qmq.config.destinations.fingerprints import ALL, CREATE_ON_USE, FINGERPRINTS_MAX, fingerprints_of


def settings(*policies: DestinationPolicy, create_on_use: bool = True) -> DestinationSettings:
    return DestinationSettings(create_on_use=create_on_use, policies=policies)


JOBS = DestinationPolicy(pattern="/queue/jobs", delivery_limit=3)
LOGS = DestinationPolicy(pattern="/fanout/logs.*", retention_seconds=60.0)


def test_order_and_written_defaults_do_not_change_fingerprints() -> None:
    again = DestinationPolicy(pattern="/queue/jobs", durable=True, delivery_limit=3)

    assert fingerprints_of(settings(JOBS, LOGS)) == fingerprints_of(settings(LOGS, again))


def test_each_policy_has_its_own_fingerprint() -> None:
    other = JOBS.replace({"delivery_limit": 4})
    one, two = fingerprints_of(settings(JOBS, LOGS)), fingerprints_of(settings(other, LOGS))

    assert one["/fanout/logs.*"] == two["/fanout/logs.*"]
    assert one["/queue/jobs"] != two["/queue/jobs"]


def test_setting_the_default_dead_letter_queue_changes_the_fingerprint() -> None:
    said = DestinationPolicy(pattern="/queue/jobs", delivery_limit=3, dead_letter="/queue/dead-letters")

    assert fingerprints_of(settings(said)) != fingerprints_of(settings(JOBS))


def test_create_on_use_is_included_only_if_it_is_off() -> None:
    assert fingerprints_of(settings()) == {}
    assert set(fingerprints_of(settings(create_on_use=False))) == {CREATE_ON_USE}


def test_very_many_policies_have_one_fingerprint() -> None:
    many = [DestinationPolicy(pattern=f"/queue/{number}") for number in range(FINGERPRINTS_MAX + 1)]
    found = fingerprints_of(settings(*many))

    assert set(found) == {ALL}
    assert found == fingerprints_of(settings(*reversed(many)))
