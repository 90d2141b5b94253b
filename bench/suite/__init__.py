"""Benchmarks with pytest-benchmark: ``pytest bench/suite --benchmark-only``.

Not part of the tests: nothing here asserts a speed. A group is one table; what a user would otherwise
take stands in the same group, and is skipped with a reason where it is not installed (extra ``suite``).
"""
