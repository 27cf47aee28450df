"""The store on disk: the bytes of streams in segment files, which outlast evictions and restarts."""
