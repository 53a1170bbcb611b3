"""Reads and writes files in buckets: gs://, s3:// and hf:// paths, wherever a path is taken.

`local_file` and `local_directory` download what a path names and return a local path, so that the code behind them
reads local files alone. `written` uploads what a block has written. A `Mirror` keeps a directory in a bucket equal to
a local one that a run writes.
"""

from jax_transformer.buckets.address import Address, BucketError, address_of, joined, named
from jax_transformer.buckets.copies import PLACE, cache, local_directory, local_file
from jax_transformer.buckets.mirror import Mirror
from jax_transformer.buckets.uploads import check_free, written

__all__ = [
    "PLACE",
    "Address",
    "BucketError",
    "Mirror",
    "address_of",
    "cache",
    "check_free",
    "joined",
    "local_directory",
    "local_file",
    "named",
    "written",
]
