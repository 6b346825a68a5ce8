"""A cache on local disk, in blocks, of stored values that never change.

Knows neither packs nor networks: it keeps spans of values by key, and fetches what is missing.
"""
