"""The parts that the workers of one gateway share: places, memory, and the rule that gives each stream one owner.

Every layer above the configuration may import this package, so it knows neither streams nor requests.
"""
