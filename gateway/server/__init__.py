"""The client side: listeners, connections, the request handler, and remembered answers."""
