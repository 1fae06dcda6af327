"""`qmq top`: a mesh, live, in a terminal.

    samples     what one node says of the mesh at one moment, and rates between two of them
    screen      a sample as lines of text; pure
    view        what is shown: order, selection, the queue that is open; pure
    keyboard    single keys of a terminal
    command     `qmq top`

The whole screen is drawn each time, with a few sequences of ECMA-48, so it needs no library and works over ssh.
"""
