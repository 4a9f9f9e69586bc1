"""The program: `python -m kinetic`, and what the `kinetic` command starts.

Ctrl-C ends it with 130 from this module's first line to its last. Before that line there is the
interpreter's own start, where nothing of Kinetic runs yet.
"""

import os
import sys


def main() -> int:
    """Run the command line; Ctrl-C while it is imported or left ends it quietly too.

    A KeyboardInterrupt that nobody catches, raised between two statements here or while the
    interpreter shuts down, would end the process by the signal; an import can even swallow one.
    So only the command itself, which has things to put away, is interrupted by an exception.
    """
    try:
        import signal

        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not under nohup
        if usual:
            signal.signal(signal.SIGINT, _leave)
        from kinetic.cli import main as command_line

        if usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = command_line()
        if usual:
            signal.signal(signal.SIGINT, _leave)
        return code
    except KeyboardInterrupt:
        return 130


def _leave(number: int, frame: object) -> None:
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
