"""The on-disk format: records, batches, segments, checksums, and the interfaces of every store."""
