"""Live reads: one follower a stream at the origin, a topic that fans what it brings out to every live client."""
