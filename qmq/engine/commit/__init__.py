"""The one commit path, and the receipts that wait for it and for replicas."""
