"""The miss-ratio curve: what share of reads, and of their bytes, a cache of another size would not have had.

`references` takes silver apart into references to blocks of tapes; `kernel` and `shards` make of them the exact curve
of a least-recently-used cache of blocks, from a sample; `simulate` plays the same reads through the gateway's own
policies, which give up whole tapes, in miniature; `measure` writes both as one table.
"""
