"""Topics, fanouts, queues and receipts on real nodes: what clients send and get when nothing fails."""
