"""What a plan is worth: the same load on the same gateway, before the pipeline has looked at its log and after.

The load is skewed, as real ones are, and has what caches suffer from: a crawler that reads everything large once, and
restarts that leave the memory empty.  A first run without a plan is what the pipeline learns from.  Then three gateways
are given one further load, which nobody has seen before: the old one, the old one's memory with the plan's lists, and
the plan as it is.  What the origin sent is counted at the origin.
"""
