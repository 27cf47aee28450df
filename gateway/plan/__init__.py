"""The cache plan in effect: its entries as tape keys, how a running gateway applies them, and warming."""
