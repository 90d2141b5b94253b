"""The command line, the runner and the reports. Nothing in ``common`` or ``strategies`` imports it."""

import os

# Before anything else: numpy, torch and their BLAS read these once, when they are loaded, and child
# processes inherit them. The names are those of common.processes.THREAD_VARIABLES, written out because
# importing that module would load numpy first. A user's own setting is overridden: several threads in
# each of several processes make all of them wait for each other.
for _name in (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
):
    os.environ[_name] = "1"
