"""Intervals and paired comparisons: numbers in, numbers out. A leaf, so that what measures and what reports use the same."""
