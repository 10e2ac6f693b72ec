"""What a run directory says beside its traces: run.json and the telemetry tables written by the hooks."""

from moescope.telemetry.reader import Telemetry, open_telemetry

__all__ = ["Telemetry", "open_telemetry"]
