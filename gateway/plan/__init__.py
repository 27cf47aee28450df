"""The cache plan in effect: resolving its entries to tape keys, applying them to a running engine, and warming."""
