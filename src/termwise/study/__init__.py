"""A grid of variants x seeds on one text: configuration, workers, budget, statistics. Written as records."""
