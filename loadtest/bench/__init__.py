"""Side-by-side benchmarks: the gateway, nginx, Varnish, nchan and a bare C responder, on one core each.

`python -m loadtest.bench` starts every server itself, pins each server to one core and the load to another, and
measures in interleaved rounds, so that a slow minute of the machine affects all of them.  The results that matter are
ratios of medians within one run; absolute figures depend on the machine.
"""
