"""Which tests of this folder need the plain source."""

from qmq.build import BUILD

# The rig of two looks at decisions from inside, in a subclass of Outcome; compiled modules do not ask subclasses. And
# work is counted in bytecodes, of which compiled modules run none.
PLAIN_ONLY = ["queues/paging/test_pager.py", "queues/paging/test_paging_histories.py", "test_growth.py"]

collect_ignore = PLAIN_ONLY if BUILD == "compiled" else []
