"""In-memory implementations of the interfaces of storage, which fail and crash on demand."""
