"""``python -m moescope`` is the ``moescope`` command."""

import sys

from moescope.cli import main

if __name__ == "__main__":
    sys.exit(main())
