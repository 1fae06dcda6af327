"""Proofs of membership: a holder of the mesh's secret can make them, an eavesdropper learns nothing from them.

Three proofs pass in the handshake (`handshake`): the dialling node's over its own nonce, the answering node's over
both, and the dialling node's second over both, which makes a replayed CONNECT worthless. The secret itself never
crosses the wire. With TLS there is no secret: certificates prove the names, and these proofs are empty.
"""

import hmac

DIAL = "dial"
ANSWER = "answer"
SUBSCRIBE = "subscribe"
TURN = "turn"
"""Replaces DIAL in a CONNECT with a reverse dial; neither proof is valid as the other."""


def make_proof(secret: str | None, purpose: str, fields: tuple[str, ...]) -> str:
    """Hex HMAC-SHA256 over `purpose` and `fields`; empty when there is no secret.

    Every part is preceded by its length, so that no two lists of fields have the same bytes.
    """
    if secret is None:
        return ""
    message = bytearray()
    for part in (purpose, *fields):
        data = part.encode()
        message += len(data).to_bytes(4, "big") + data
    return hmac.new(secret.encode(), bytes(message), "sha256").hexdigest()


def is_proof(given: str, secret: str | None, purpose: str, fields: tuple[str, ...]) -> bool:
    """Whether `given` is that proof. The time taken does not depend on how much of it was right."""
    return hmac.compare_digest(given.encode(), make_proof(secret, purpose, fields).encode())
