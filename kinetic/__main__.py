"""The program: `python -m kinetic`, and what the `kinetic` command starts."""

import sys


def main() -> int:
    """Run the command line; Ctrl-C while it is still being imported ends it quietly too."""
    try:
        from kinetic.cli import main as command_line
    except KeyboardInterrupt:
        return 130
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
