"""What a node does with its peers: requests, membership, takeover, catch-up and repair."""
