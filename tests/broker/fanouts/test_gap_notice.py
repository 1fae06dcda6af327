"""Gap notices: each says as much as its header may have, and not a byte more."""

import pytest

from qmq.broker.fanouts.gap_notice import GAP_BYTES_MAX, Claim, gap_notices
from qmq.model.dots import Origin


def claim_of(bytes_of_text: int) -> Claim:
    """A claim whose text, `NODE-INCARNATION=1-9`, has so many bytes."""
    rest = len(f"{Origin('', 1)}=1-9")
    return Origin("n" * (bytes_of_text - rest), 1), 0, 9


@pytest.mark.parametrize(("last", "counts"), [(0, [2]), (1, [1, 1])])
def test_a_notice_is_full_exactly_at_its_bound(last: int, counts: list[int]) -> None:
    first = 100
    missing = [claim_of(first), claim_of(GAP_BYTES_MAX - first - len(",") + last)]

    notices = gap_notices("/fanout/f", missing)

    assert [len(claims) for _, claims in notices] == counts
    assert [claim for _, claims in notices for claim in claims] == missing
    texts = [envelope.headers.partition(b":")[2].rstrip(b"\n") for envelope, _ in notices]
    assert max(map(len, texts)) <= GAP_BYTES_MAX


def test_one_claim_that_is_longer_than_the_bound_is_a_notice_by_itself() -> None:
    missing = [claim_of(GAP_BYTES_MAX + 1), claim_of(50)]

    assert [claims for _, claims in gap_notices("/fanout/f", missing)] == [(missing[0],), (missing[1],)]
