"""The aligned timeline of all ranks, cut into tiles that a canvas can draw.

:class:`Timeline` reads the columnar store lazily, rank by rank, and answers for any stretch of time what there is to
draw at a given resolution, exactly: slices at least one bucket long one by one, shorter ones counted per bucket.
"""

from moescope.views.timeline.timeline import Timeline

__all__ = ["Timeline"]
