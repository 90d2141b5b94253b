"""Environments that misbehave, and commands, are those of the tests of the command line."""

import sys
from pathlib import Path

BENCH = str(Path(__file__).parents[1] / "bench")
if BENCH not in sys.path:
    sys.path.append(BENCH)  # spawned children get the same path
