"""`qmq doctor`: what is wrong with the files of a node, its machine, or a running mesh, and what to do about it.

findings    a finding, and findings as text
files       the files of a node, and the machine that it is to run on
processes   which process listens at a port
facts       what a running mesh says of itself, asked over one connection
live        what these facts mean; pure
command     `qmq doctor`
support     `qmq support`, which packs all of it
"""
