"""`python -m kinetic`, the same as the `kinetic` command."""

import sys

from kinetic.cli import main

if __name__ == "__main__":
    sys.exit(main())
