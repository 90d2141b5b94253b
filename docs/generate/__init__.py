"""Fills the generated parts of the pages from the code, so that the reference cannot go stale."""
