"""Functions that helper processes import by name."""

import os
import threading
import time


def double(value: int, pause_s: float = 0.0) -> tuple[int, int]:
    """Twice the value, and the process that computed it."""
    time.sleep(pause_s)
    return 2 * value, os.getpid()


def fail(value: int) -> int:
    """Always an error."""
    raise ValueError(f"no {value}")


def die_elsewhere(value: int, home: int) -> int:
    """Ends the process at once unless it is ``home``."""
    if os.getpid() != home:
        os._exit(1)
    return value


def lock(_value: int) -> object:
    """What cannot be pickled, after a while."""
    time.sleep(0.02)
    return threading.Lock()
