"""Limits: who a client is, how much of what all share it uses, how often it may ask, and what a process can bear.

A client is known by its network, because one host may have many addresses.  All limits of a client read one record, its
account (`accounts`).  Everything here is plain functions and state: nothing waits.
"""
