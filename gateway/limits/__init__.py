"""Limits: the network of a client, its share of the common resources, its rates, and the capacity of a process.

A client is identified by its network, because one host may have many addresses.  All limits of a client read one
record, its account (`accounts`).  This package consists of plain functions and state: nothing waits.
"""
