"""What is computed. Outside this package, `functional` is the only door."""

try:
    from flax import nnx as _nnx  # noqa: F401
except ImportError as error:
    from importlib.metadata import version

    raise ImportError(
        f"flax {version('flax')} can't be imported with jax {version('jax')} ({error}). Pairs that work: jax 0.10.2 "
        "with flax 0.12.8 "
        "(Python 3.11), jax >= 0.11.1 with flax >= 0.12.10 (Python 3.12 and later). Install them: pip install -c "
        "constraints.txt jax flax"
    ) from error
