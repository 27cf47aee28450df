"""The data pipeline on Spark: what the access log tells of the traffic, and what follows from it for the gateway.

The way of a line: `events` brings it in, bronze keeps it as it came, silver types it and counts it once, gold adds it
up, `curve` asks what a cache of another size would have done, `plan` says what to do about it, `report` shows it.
`tables` names every table and its columns.  Needs the extra `pipeline`; nothing else of the gateway imports this
package, and nothing in it serves.
"""
