"""Operations: metrics, the access log, tracing, and the admin port with its console."""
