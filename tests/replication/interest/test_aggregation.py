"""Many names become their prefix, and the published interest always covers every subscribed name."""

import random

import pytest

from qmq.broker.topics.patterns import PatternTable
from qmq.replication.interest import aggregation
from qmq.replication.interest.aggregation import EVERYTHING, Aggregation, group_of


class Wanting:
    """Local subscribers, and a peer that obeys what it is told."""

    def __init__(self) -> None:
        self.wanted: dict[str, int] = {}
        self.aggregate = Aggregation(self.wanted)
        self.published: dict[str, bool] = {}
        self.table: PatternTable[str] = PatternTable()

    def change(self, *patterns: str, wanted: bool = True) -> dict[str, bool]:
        for pattern in patterns:
            if wanted:
                self.wanted[pattern] = 1
            else:
                del self.wanted[pattern]
        changes = self.aggregate.change(patterns)
        for pattern, on in changes.items():
            assert on != (pattern in self.published), f"{pattern} is told twice"
            if on:
                self.published[pattern] = True
                self.table.add(pattern, "a")
            else:
                del self.published[pattern]
                self.table.remove(pattern, "a")
        assert self.published.keys() == self.aggregate.published.keys()
        return changes


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Wanting:
    """With small bounds: more than 10 names of one group, more than 40 patterns in all."""
    monkeypatch.setattr(aggregation, "NAMES_MAX", 10)
    monkeypatch.setattr(aggregation, "PATTERNS_MAX", 40)
    return Wanting()


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("/topic/a", "/topic/*"),
        ("/topic/app.user.7", "/topic/app.user.*"),
        ("/topic/app/7", "/topic/app/*"),
        ("/topic/a.b/c", "/topic/a.b/*"),
        ("/topic/a/b.c", "/topic/a/b.*"),
        ("/topic/.x", "/topic/.*"),
        ("/topic/a.", None),
        ("/topic/a.*", None),
        ("/topic/#", None),
    ],
)
def test_a_name_belongs_to_the_pattern_of_its_last_word(name: str, group: str | None) -> None:
    assert group_of(name) == group
    if group is not None:
        table: PatternTable[str] = PatternTable()
        table.add(group, "a")
        assert table.match(name) == ("a",)


def test_names_are_published_one_by_one_until_there_are_too_many_under_one_prefix(few: Wanting) -> None:
    few.change(*[f"/topic/app.user.{number}" for number in range(10)], "/topic/other", "/topic/app.*")
    one_by_one = dict(few.published)

    changes = few.change("/topic/app.user.10")

    assert len(one_by_one) == 12
    assert changes == {
        **{f"/topic/app.user.{number}": False for number in range(10)},
        "/topic/app.user.*": True,
    }
    assert few.published.keys() == {"/topic/app.user.*", "/topic/other", "/topic/app.*"}


def test_the_names_come_back_when_few_of_them_are_left(few: Wanting) -> None:
    names = [f"/topic/app.user.{number}" for number in range(12)]
    few.change(*names)
    unchanged = few.change(*names[5:], wanted=False)

    changes = few.change(names[0], wanted=False)

    assert unchanged == {}
    assert changes == {"/topic/app.user.*": False, **{name: True for name in names[1:5]}}


def test_a_subscribers_own_pattern_outlives_the_prefix_that_looks_like_it(few: Wanting) -> None:
    few.change("/topic/app.user.*")
    names = [f"/topic/app.user.{number}" for number in range(12)]
    few.change(*names)

    few.change(*names, wanted=False)

    assert few.published.keys() == {"/topic/app.user.*"}


def test_too_many_patterns_in_all_become_every_topic_and_come_back(few: Wanting) -> None:
    patterns = [f"/topic/{number}.x" for number in range(41)]
    few.change(*patterns[:40])
    one_by_one = len(few.published)

    everything = few.change(patterns[40])
    while_full = few.change("/topic/late.x")
    few.change(*patterns[20:], wanted=False)
    few.change("/topic/late.x", wanted=False)

    assert one_by_one == 40
    assert everything == {EVERYTHING: True, **dict.fromkeys(patterns[:40], False)}
    assert while_full == {}
    assert few.published.keys() == set(patterns[:20])


def test_after_every_topic_new_patterns_are_published_one_by_one_again(few: Wanting) -> None:
    patterns = [f"/topic/{number}.x" for number in range(41)]
    few.change(*patterns)
    few.change(*patterns[15:], wanted=False)

    # Still more than half of what is too many: a node that took itself for full would say nothing.
    late = [f"/topic/late{number}.x" for number in range(10)]
    changes = few.change(*late)

    assert changes == dict.fromkeys(late, True)
    assert few.published.keys() == {*patterns[:15], *late}


def test_interest_is_published_however_often_it_swings_between_nothing_and_every_topic(few: Wanting) -> None:
    rng = random.Random("swings")
    names = [f"/topic/{number}.x" for number in range(80)]
    full = 0
    for swing in range(20):
        wanted = swing % 2 == 0
        while True:
            choice = [name for name in names if (name in few.wanted) != wanted]
            # Up until it is every topic, then down to a few; now and then a step the other way.
            if len(few.wanted) >= 60 if wanted else len(few.wanted) <= 5:
                break
            few.change(*rng.sample(choice, min(len(choice), rng.randrange(1, 6))), wanted=wanted)
            if few.wanted and rng.random() < 0.3:
                few.change(rng.choice(list(few.wanted)), wanted=False)

            for name in few.wanted:
                assert name in few.published or few.table.match(name), f"{name} is wanted and not told"
        full += EVERYTHING in few.published

    assert full == 10


def test_whatever_is_wanted_is_published_and_never_more_than_the_bound(few: Wanting) -> None:
    rng = random.Random("wants")
    names = [f"/topic/{first}.{second}" for first in "abcdefgh" for second in range(15)]
    names += ["/topic/a.*", "/topic/#", "/topic/b*", "/topic/x.", EVERYTHING]
    for _ in range(3000):
        wanted = rng.random() < len(names) / (len(names) + 2 * len(few.wanted))
        choice = [name for name in names if (name in few.wanted) != wanted]
        few.change(*rng.sample(choice, min(len(choice), rng.randrange(1, 4))), wanted=wanted)

        assert len(few.published) <= 40
        for name in few.wanted:
            assert name in few.published or few.table.match(name), f"{name} is wanted and not told"
        if not few.wanted:
            assert not few.published


def test_what_is_wanted_is_looked_through_no_more_often_than_it_changes(few: Wanting) -> None:
    groups = [[f"/topic/{group}.{number}" for number in range(11)] for group in range(20)]
    few.change(*[name for names in groups for name in names])
    looks = 0
    split = few.aggregate._split

    def count(touched: dict[str, None]) -> None:
        nonlocal looks
        looks += 1
        split(touched)

    few.aggregate._split = count  # type: ignore[method-assign]
    few.aggregate._changes = 0

    for number in range(7):
        for names in groups:
            few.change(names[number], wanted=False)

    assert looks == 1
    assert groups[0][10] in few.published
    assert {"/topic/1.*", "/topic/19.*"} <= set(few.published)
