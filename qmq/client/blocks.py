"""What works only inside its block: a client, a subscription, a transaction; and the error when it is used outside.

Without it, a subscription that no node knows would wait for ever, and a transaction would never be sent.
"""


def not_entered(what: str, block: str) -> RuntimeError:
    """`block` is how the style of program enters `what`."""
    return RuntimeError(f"{what} works only inside its block: enter it with `{block}`")
