"""`python -m jax_transformer` is the command."""

import sys

from jax_transformer.cli import main

if __name__ == "__main__":
    sys.exit(main())
