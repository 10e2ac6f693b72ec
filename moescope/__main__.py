"""The ``moescope`` command, also as ``python -m moescope``."""

import signal
import sys


def main() -> int:
    """Run the command line; an interrupt before it has begun or after it is done is no crash."""
    try:
        from moescope.cli import main as run  # noqa: PLC0415 - an interrupt while modules are imported is caught

        code = run()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("moescope: Interrupted.", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
