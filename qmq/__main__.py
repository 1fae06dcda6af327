"""`python -m qmq`: the command line without the installed script; how `qmq mesh up` starts its nodes."""

from .cli import main

if __name__ == "__main__":
    main()
