"""`python -m gateway` is the command `durable-gateway`."""

import sys

from gateway.cli import main

if __name__ == "__main__":
    sys.exit(main())
