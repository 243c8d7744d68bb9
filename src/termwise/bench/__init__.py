"""`termwise bench`: time and memory against torch's fused attention with a key/value cache, as records."""
