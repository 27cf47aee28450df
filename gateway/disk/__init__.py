"""The store on disk: the bytes of streams in segment files, which survive evictions and restarts."""
