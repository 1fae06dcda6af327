"""Ownership of queue messages: terms, leases, votes and quorum acknowledgements."""
