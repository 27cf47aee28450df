"""The cache: the bytes of streams, an index of their offsets, and eviction under a byte budget."""
