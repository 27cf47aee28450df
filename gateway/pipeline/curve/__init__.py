"""The miss-ratio curve: the share of reads, and of their bytes, that a cache of another size would miss.

The modules, in the order of their work:

- `references` finds the reads of each tape in silver.
- `scale` derives byte positions of offsets.  `placing` uses them to find the bytes of each read.
- `sampling` chooses the tapes to replay, and estimates the misses of all tapes from those of the sample.
- `simulate` replays the reads through the gateway's own eviction policies.  `copies` adds the coded bodies and the
  remembered answers.
- `measure` writes the curves as a table.
- `streams` computes the figures of each stream that the plan is made from.
"""
