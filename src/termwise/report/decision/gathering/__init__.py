"""One module a command: from what a run folder holds to what is known of each candidate."""
