"""Figures of other tools beside ours, and what explains each difference."""
