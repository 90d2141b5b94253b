"""The documentation: the pages, and what fills their generated parts (``python -m docs.generate``)."""
