"""The only place that runs things: sockets, tasks, the commit path, timers."""
