"""What operators see: metrics, the access log, the admin port."""
