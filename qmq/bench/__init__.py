"""The load generator of `qmq bench`: plain sockets, frames made beforehand, answers counted and not parsed.

    frames      bytes to send round and round, and counters for the bytes that come back
    line        one connection: log in, subscribe, write without blocking, take leave
    exchange    a sender, its receivers, and the brake between them; warm up, measure, wait for the rest
    paced       messages at a fixed rate, and how long each took
    process     what the system knows of a process: CPU time, memory, wake-ups
    plan        what a workload is given, and the Report that it gives
    many        a backlog, many queues, many subscriptions: so many, however long it takes
    across      from one node of a mesh to others
    workloads   what is measured for so many seconds, put together from the above; and the list of all

It may cost less than a tenth of what it measures, so nothing here works per message where it can work per read.
"""
