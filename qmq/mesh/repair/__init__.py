"""Repair of a running node: catch-up, queue store, fanout logs, quarantine, collected incarnations."""
