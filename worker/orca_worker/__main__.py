"""`python -m orca_worker`: the same as `orca worker`."""

import sys

from orca_worker.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
