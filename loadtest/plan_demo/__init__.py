"""Measure the value of a cache plan: the same load on a gateway without a plan and with one.

The load is skewed like real ones, and hard on caches: a crawler reads everything large once, and restarts empty the
memory.  The pipeline makes its plan from a first run without a plan.  Then three gateways get a further load, drawn
from another seed: one without a plan, one with the old memory and the plan's lists, and one with the whole plan.  The
origin counts the bytes it sends.
"""
