"""Let helper modules beside this file be imported here, in spawned children and in subprocesses."""

import os
import sys
from pathlib import Path

TESTS = str(Path(__file__).parent)
ROOT = str(Path(__file__).parents[1])

# The root comes first: ``common`` is the package there, not the folder of tests here.
for folder in (TESTS, ROOT):
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)

before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
os.environ["PYTHONPATH"] = os.pathsep.join(
    dict.fromkeys([ROOT, TESTS, *[folder for folder in before if folder]])
)
