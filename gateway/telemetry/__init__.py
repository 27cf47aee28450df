"""The interfaces that the request path reports to: metrics, access records and traces.  `gateway.ops` implements
them."""
