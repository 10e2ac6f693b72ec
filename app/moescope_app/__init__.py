"""The browser dashboard: the panels of :mod:`moescope.views`, served on the user's own machine."""
