"""How the gateway fetches: one HTTP client towards origins, and flights, the fetches that many readers share."""
