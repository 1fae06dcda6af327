"""Finding what damaged stores have lost, and restoring it from the journal, the quarantine or peers."""
