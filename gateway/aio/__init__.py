"""Time, tasks and signals on one event loop: what asyncio leaves to its users."""
