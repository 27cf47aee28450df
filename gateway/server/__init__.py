"""The client side: listeners, connections, the request handler, and answers remembered by a request's bytes."""
