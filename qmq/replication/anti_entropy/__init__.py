"""Anti-entropy of journals between nodes: which batches a peer needs, which are accepted, and which are missing."""
