"""`qmq backup` and `qmq restore`.

command     the commands, and the files of a node of this machine
remote      the files of a node that is asked for them over a connection
"""
