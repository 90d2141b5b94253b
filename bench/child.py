"""A run in a fresh process that ends with the process that started it.

    python -m bench.child run --strategy apex ...

is ``bench run --strategy apex ...``, and besides it watches its standard input. The starter holds the
other end of that pipe, writes nothing, and takes it along when it ends, however that happens: also
``kill -9`` leaves no run behind that nobody waits for.
"""

from __future__ import annotations

import os
import threading


def leave_with_starter() -> None:
    """End this process as soon as its standard input is closed; its own children follow it."""

    def watch() -> None:
        try:
            while os.read(0, 1024):
                pass
        except OSError:
            pass
        os._exit(1)

    threading.Thread(target=watch, name="leave-with-starter", daemon=True).start()


def main() -> None:
    """Run the command line until it ends or the starter does."""
    leave_with_starter()
    from bench.cli import main

    main()


if __name__ == "__main__":
    main()
