"""Interfaces for what the request path reports: metrics, access records, traces.  `gateway.ops` implements them."""
