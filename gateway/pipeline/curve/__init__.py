"""The miss-ratio curve: the share of reads, and of their bytes, that a cache of another size would miss.

`references` turns silver into references to blocks of tapes.  `kernel` and `shards` compute from a sample of them the
exact curve of an LRU cache of blocks.  `simulate` replays the same reads through the gateway's own policies, which
evict whole tapes, in miniature.  `measure` writes both as one table.
"""
