"""Tells paths in buckets from local ones."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

PACKAGES = {"gs": "gcsfs", "s3": "s3fs", "hf": "huggingface_hub"}
"""Scheme → the package that speaks its protocol, by fsspec's interface."""
SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/(?P<second>/?)(?P<rest>.*)", re.ASCII | re.DOTALL)


class BucketError(ValueError):
    """Raised when a path in a bucket can't be read or written.

    Example:
      >>> from jax_transformer.buckets import BucketError, address_of
      >>> try:
      ...     address_of("ftp://host/model")
      ... except BucketError as error:
      ...     print(error)
      ftp://host/model: expected a local path, or one that begins with gs://, s3:// or hf://; received ftp://
    """


@dataclass(frozen=True)
class Address:
    """Names a file or a directory in a bucket.

    Example:
      >>> from jax_transformer.buckets import address_of
      >>> str(address_of("gs://corpora/run/") / "config.yaml")
      'gs://corpora/run/config.yaml'
    """

    scheme: str
    path: str
    """The bucket and the key, without a slash at the end; for hf, the repository and the path in it."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}"

    def __truediv__(self, name: str) -> Address:
        return Address(self.scheme, f"{self.path}/{name}")


def address_of(path: str | os.PathLike[str]) -> Address | None:
    """Returns the address that a path in a bucket names; None for a local path.

    A `pathlib.Path` of such a path, which has lost a slash, names the same address.

    Raises:
      BucketError: a scheme that isn't supported; a bucket without a key.

    Example:
      >>> from pathlib import Path
      >>> from jax_transformer.buckets import address_of
      >>> str(address_of(Path("s3://models/small"))), address_of("models/small")
      ('s3://models/small', None)
    """
    text = os.fspath(path)
    found = SCHEME.fullmatch(text)
    if found is None or (not found["second"] and found["scheme"] not in PACKAGES):
        return None
    *others, last = (f"{scheme}://" for scheme in PACKAGES)
    if found["scheme"] not in PACKAGES:
        raise BucketError(
            f"{text}: expected a local path, or one that begins with {', '.join(others)} or {last}; received "
            f"{found['scheme']}://"
        )
    bucket, _, key = found["rest"].strip("/").partition("/")
    if not bucket or not key:
        raise BucketError(
            f"{text}: expected a path in a bucket, such as {found['scheme']}://{bucket or 'BUCKET'}/model; received "
            f"{'no path' if bucket else 'no bucket'}"
        )
    return Address(found["scheme"], f"{bucket}/{key}")


def joined(directory: str | os.PathLike[str], name: str) -> str:
    """Returns the path of a file in a directory, which may be in a bucket.

    Example:
      >>> from jax_transformer.buckets import joined
      >>> joined("gs://corpora/run", "config.yaml"), joined("run", "config.yaml")
      ('gs://corpora/run/config.yaml', 'run/config.yaml')
    """
    address = address_of(directory)
    return os.path.join(directory, name) if address is None else str(address / name)


def named(path: str | os.PathLike[str]) -> str:
    """Returns a path as messages name it: one in a bucket with both of its slashes.

    Example:
      >>> from pathlib import Path
      >>> from jax_transformer.buckets import named
      >>> named(Path("gs://corpora/run")), named(Path("runs/demo"))
      ('gs://corpora/run', 'runs/demo')
    """
    address = address_of(path)
    return os.fspath(path) if address is None else str(address)
