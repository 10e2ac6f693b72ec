"""The ``moescope`` command, also as ``python -m moescope``."""

import signal
import sys


def main() -> int:
    """Run the command line; an interrupt before it has begun or after it is done is no crash."""
    try:
        from moescope.cli import main as run  # noqa: PLC0415 - an interrupt while modules are imported is caught

        code = run()
        _ignore_interrupts()
    except KeyboardInterrupt:
        _ignore_interrupts()
        print("moescope: Interrupted.", file=sys.stderr)
        return 130
    return code


def _ignore_interrupts() -> None:
    """The outcome is known and told: all that is left to do is to end the process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


if __name__ == "__main__":
    sys.exit(main())
