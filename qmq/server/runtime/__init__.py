"""What a node needs of its machine: clock, threads, sockets, certificates, memory, disk space, heart-beats."""
