"""``python -m bench``."""

import sys

if __name__ == "__main__":
    try:
        from bench.cli import main
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    main()
