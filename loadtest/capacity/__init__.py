"""A capacity model of a fleet: what a million readers take, and what breaks first.

`model.py` computes the use of each resource from measured costs and a demand.  `measure.py` measures the costs, and
`check.py` a point that the model has not seen.  `page.py` writes the results into `docs/guides/million-readers.md`.
"""
