"""moescope: where the step of a mixture-of-experts training run goes."""

__version__ = "0.1.0"
