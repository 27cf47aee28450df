"""The cache: blocks of bytes, an index of offset tokens, and eviction under a byte budget."""
