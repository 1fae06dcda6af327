"""What a node needs of its machine (clock, threads, sockets, memory, disk space), and what its parts may ask of it."""
