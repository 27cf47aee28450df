"""Side-by-side benchmarks: the gateway beside nginx, Varnish, nchan and a bare C responder, on one core each.

`python -m loadtest.bench` starts every peer itself, pins each server to one core and the load to another, and measures
in interleaved rounds, so that a slow minute of the machine hits all alike.  What counts is the ratio of medians within
one run; absolute figures are worth what the machine is worth.
"""
