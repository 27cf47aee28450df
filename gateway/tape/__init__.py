"""What the gateway remembers: blocks of bytes, an index of offset tokens, eviction under a byte budget."""
