"""Resources of the machine (clock, threads, sockets, memory, disk space), and the contexts of the node's parts."""
