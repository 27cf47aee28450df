"""What the workers of one gateway share: their places, their memory, and the rule by which each stream has one owner.

Imported by every layer above the configuration, so it knows neither streams nor requests.
"""
