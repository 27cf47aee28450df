-- Asking where the tail is.
wrk.method = "HEAD"
