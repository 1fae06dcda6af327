"""Which settles no server will forget: the rule of `ack-level:quorum`.

An ACK is recorded by the node of its consumer. The node that serves the message's owner must not deliver it again, now
or in any later term. That is sure once nodes have the record durably that

- include the server of the latest term that is known here, and
- are a majority, counting only those that had promised no later term when they said so.

Why: a server of a later term has the votes of a majority, so of one of the counted. That one had promised nothing
beyond the known term when it had the record; so it voted afterwards, said with its vote what it had, and the new server
waits for that before it delivers anything (`qmq.mesh.membership.takeover`). A server that only confirms its claim in
a later term fetches nothing, but it is either the counted one or came by such votes. And a server of an earlier term
hands out nothing any more, because a majority has promised a later one (`ownership`).

This relies on two facts. A node reports a promise before it reports what became durable after it, over the same link.
It knows its own promises at once. Learners do not count: an earlier disk of theirs may have promised anything.

It says nothing about what was handed out before: a consumer elsewhere may have the message from a time when this node
was silent for so long that its messages were taken back. Pure.
"""

from collections.abc import Mapping

from qmq.broker.takeover.leases import Ownership


def settled_through(rules: Ownership, owner: str, marks: Mapping[str, int]) -> int:
    """Up to which of its records this node may say of settles of `owner`'s messages that no node will deliver them.

    `marks`: how far each node that counts has these records durably, this one included.
    """
    term = rules.term_of(owner)
    counted = {name: mark for name, mark in marks.items() if rules.promise_heard(name, owner) <= term.number}
    found: list[str] = []
    for name in sorted(counted, key=counted.__getitem__, reverse=True):
        found.append(name)
        if rules.is_majority(found):
            return min(counted[name], counted.get(term.server, 0))
    return 0
