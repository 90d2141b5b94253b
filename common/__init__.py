"""The fixed parts: everything that stays the same while the strategy changes.

No file here knows a strategy by name. Imports point one way: ``bench -> strategies -> common``.
"""
