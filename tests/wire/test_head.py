from qmq.wire.stomp import Head, HeadCache, HeadCaches, Limits, Version
from qmq.wire.stomp.cache import CACHED_BLOCKS_MAX, CACHES_MAX
from qmq.wire.stomp.head import CachedBlock


def block(number: int) -> tuple[bytes, CachedBlock]:
    return b"SEND\nn:%d" % number, CachedBlock(Head("SEND", {"n": str(number)}, Version.V12), -1)


def test_cache_holds_at_most_two_generations() -> None:
    cache = HeadCache()

    for number in range(5 * CACHED_BLOCKS_MAX):
        cache.put(*block(number))

    assert len(cache.young) + len(cache.old) <= 2 * CACHED_BLOCKS_MAX


def test_block_in_use_survives_a_flood_of_others() -> None:
    cache = HeadCache()
    raw, known = block(-1)
    cache.put(raw, known)

    for number in range(5 * CACHED_BLOCKS_MAX):
        cache.put(*block(number))
        if number % 100 == 0:
            assert cache.get(raw) is known

    assert cache.get(block(0)[0]) is None


def test_connections_with_equal_limits_and_version_share_one_cache() -> None:
    caches = HeadCaches()

    assert caches.cache(Version.V12, Limits()) is caches.cache(Version.V12, Limits())
    assert caches.cache(Version.V12, Limits()) is not caches.cache(Version.V11, Limits())
    assert caches.cache(Version.V12, Limits()) is not caches.cache(Version.V12, Limits(header_count_max=3))


def test_reloading_limits_for_ever_keeps_a_bounded_number_of_caches() -> None:
    caches = HeadCaches()
    first = caches.cache(Version.V12, Limits())

    for count in range(1, CACHES_MAX + 1):
        caches.cache(Version.V12, Limits(header_count_max=count))

    assert caches.cache(Version.V12, Limits()) is not first
