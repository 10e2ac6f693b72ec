"""moescope: where the step of a mixture-of-experts training run goes.

``moescope.open(path)`` reads and analyses a folder of traces; see :class:`moescope.run.Run`.
"""

__version__ = "0.1.0"
