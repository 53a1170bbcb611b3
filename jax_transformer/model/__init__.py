"""The model's forward pass, as pure functions over a dict of arrays. Other packages import only `functional`.

Axes, in every comment and einsum of this package:

  B  batch                           D  d_model, the width of the residual stream
  S  source length                   F  d_ff, the feed-forward's hidden width
  T  target length                   N  attention heads
  Q  query length                    H  head_dim, the width of one head
  K  key length; in decoding also    V  vocabulary
     the tokens or beams of a step   L  layers of a stack
  G  heads of keys and values        P  buckets of relative positions
  W  value_dim, the width of one head's values, which is H unless the config says otherwise
"""

try:
    from flax import nnx as _nnx  # noqa: F401
except ImportError as error:
    from importlib.metadata import version

    raise ImportError(
        f"flax {version('flax')} can't be imported with jax {version('jax')} ({error}). Pairs that work: jax 0.10.2 "
        "with flax 0.12.8 (Python 3.11), jax >= 0.11.1 with flax >= 0.12.10 (Python 3.12 and later). Install them: "
        "pip install -c constraints.txt jax flax"
    ) from error
