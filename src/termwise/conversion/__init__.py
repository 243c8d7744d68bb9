"""A pretrained model that keeps only what a plan keeps: assembled, tuned against the original, scored, written as a folder."""
