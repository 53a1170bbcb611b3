"""`python train.py …` is `jax-transformer train …`."""

import sys

from jax_transformer.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
