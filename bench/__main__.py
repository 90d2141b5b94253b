"""The console script ``bench``, and ``python -m bench``."""

import sys


def main() -> None:
    """Run the command line; a Ctrl-C while it is still being loaded is one like any other."""
    try:
        from bench.cli import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
