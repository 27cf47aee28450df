"""Limits: the rates and resources of each client, and the capacity of the process.

A client is identified by its network, because one host may have many addresses.  All limits of a client use one record,
its account (`gateway.limits.accounts`).  This package does no I/O.
"""
