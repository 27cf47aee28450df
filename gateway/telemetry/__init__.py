"""What the request path reports, without knowing who records it: metrics, access records, traces."""
