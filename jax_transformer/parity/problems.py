"""Problems: the weights and inputs that both sides of a run receive, chosen so that mistakes show.

No two sizes are equal, of the batch, the lengths and the model. Padding stands right, left and inside; there are a
sentence of one token and one of nothing but padding; another has a sentence of max_length tokens. A checkpoint's own
weights hide mistakes where its biases are zero or its norms' inputs tame, so there are problems with other weights as
well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.gates.rounding import loss_factor, nudged
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Sinusoidal, Table
from jax_transformer.config.specs import Stack, Tokens
from jax_transformer.model.features import Features
from jax_transformer.parity.oracle.formulas import StackName, position_factor, position_numbers, rows
from jax_transformer.parity.oracle.graph import FEATURE_INPUTS, model_inputs, nodes, recompute, stem_ids
from jax_transformer.runtime.trees import flatten, unflatten

ROWS = 7
"""Rows of a batch, one for each kind of padding."""
STARTED_ROWS = (0, 2, 3)
"""The rows whose targets begin with the start token: two sentences with padding, and one of the start token alone."""
SOURCE_LENGTH, TARGET_LENGTH = 11, 9
LONGEST = 523
"""The most tokens of a long sentence: more than the usual 512 rows of a table, and few enough for all attention weights
to fit in memory."""
LOWEST_IDS = 4
"""Number of the lowest ids that appear as labels, since a program may take one of them for the pad."""
MEAN = 250.0
"""The mean of a norm's inputs where it is large, hundreds of deviations: a variance computed as E[x²] − E[x]² is then
off by 1e-11 or so in float64, and a right one by less than 1e-13."""
SMALL = 1e-4
"""The deviation of a norm's inputs where it is small."""

FULLY_MASKED = "fully-masked"
"""Allows differences of queries that see no key: programs give them uniform weights, zeros or NaN."""
INNER_PADDING = "inner-padding"
"""Allows differences that depend on padding before a token: programs whose sentences are only padded at the end may
treat it in any way."""
FIRST_TOKEN = "first-token"
"""Allows differences that depend on a target's first token: programs that replace it by their own start token ignore
it."""
ALLOWANCES = (FULLY_MASKED, INNER_PADDING, FIRST_TOKEN)
"""The differences that a caller may allow."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Holds parameters and a batch; equal to nothing but itself."""

    name: str
    params: Mapping[str, Any]
    """A nested dict of arrays; floating-point ones are float32 numbers, whatever their dtype, unless they are
    `nudged`."""
    source_ids: np.ndarray
    """[B, S]. With features: which of the encoder's positions are padding, as `stem_ids` writes it."""
    decoder_input_ids: np.ndarray
    """[B, T]"""
    labels: np.ndarray
    """[B, T]"""
    loss_factor: float = 1.0
    """Multiplies the loss when gradients are computed, which are divided by it: another number changes their rounding
    alone."""
    features: Features | None = None
    """The sources of a model with a stem, with lengths; vectors are real numbers at padding, too."""

    @property
    def source(self) -> Any:
        """Returns what the encoder reads: source_ids, or the features of a model with a stem."""
        return self.source_ids if self.features is None else self.features

    @property
    def inputs(self) -> tuple[Any, np.ndarray]:
        """Returns what the model reads: `source` and decoder_input_ids."""
        return self.source, self.decoder_input_ids

    @property
    def feature_inputs(self) -> dict[str, np.ndarray]:
        """Returns the oracle's FEATURE_INPUTS by name; none without features."""
        if self.features is None:
            return {}
        vectors, lengths = map(np.asarray, self.features)
        is_real = np.arange(vectors.shape[1]) < lengths[:, None]
        return dict(zip(FEATURE_INPUTS, (vectors, is_real), strict=True))

    @property
    def ids(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns source_ids and decoder_input_ids, which say where padding is."""
        return self.source_ids, self.decoder_input_ids

    @property
    def batch(self) -> dict[str, np.ndarray]:
        """Returns all arrays of the batch by name."""
        arrays = {"source_ids": self.source_ids}
        if self.features is not None:
            vectors, lengths = map(np.asarray, self.features)
            arrays = {"source_vectors": vectors, "source_lengths": lengths}
        return arrays | {"decoder_input_ids": self.decoder_input_ids, "labels": self.labels}

    def rows(self, rows: Any, source: int | None = None, target: int | None = None) -> Problem:
        """Returns the problem with a selection of rows, and of at most so many positions of the source and the target.
        Features keep all positions, since programs may take one length alone."""
        features = self.features
        if features is not None:
            features, source = Features(*(array[rows] for array in features if array is not None)), None
        return replace(
            self,
            source_ids=self.source_ids[rows, :source],
            decoder_input_ids=self.decoder_input_ids[rows, :target],
            labels=self.labels[rows, :target],
            features=features,
        )


class Problems(NamedTuple):
    """Makes the problems of a run, which differ as little as their kinds do."""

    config: TransformerConfig
    params: Mapping[str, Any]
    seed: int
    start_id: int | None
    """The token with which some targets begin; None: none is known."""
    kept: frozenset[str] = frozenset()
    """The paths of constants that keep their values."""
    allow: frozenset[str] = frozenset()
    """The differences of ALLOWANCES that no problem shows."""

    def own(self) -> Problem:
        """Returns the model's own weights with every kind of padding.

        Raises:
          ParityError: first tokens may differ, and no token is known to begin targets.
        """
        return self._allowing(own_problem(self.config, self.params, self.seed, self.start_id))

    def others(self) -> Iterator[Problem]:
        """Yields the other problems of the forward pass, one at a time: long sentences, and other weights."""
        longer = long_problem(self.config, self.params, self.seed, self.start_id)
        if longer is not None:
            yield self._allowing(longer)
        yield from self.with_other_weights()

    def with_other_weights(self) -> Iterator[Problem]:
        """Yields problems with other weights, random ones first."""
        yield from map(self._allowing, other_weights(self.config, self.params, self.seed, self.kept, self.start_id))

    def _allowing(self, problem: Problem) -> Problem:
        """Returns a problem without what would show the differences that are allowed."""
        if INNER_PADDING in self.allow:
            problem = with_padding_at_the_end(self.config, problem)
        if FULLY_MASKED in self.allow:
            problem = with_keys_for_all(self.config, problem)
        if FIRST_TOKEN not in self.allow:
            return problem
        if self.start_id is None:
            raise ParityError(f"allow {FIRST_TOKEN}: expected the id that targets begin with: give decoder_start_id")
        return with_first_token(problem, self.start_id)


def own_problem(
    config: TransformerConfig, params: Mapping[str, Any], seed: int = 0, start_id: int | None = None
) -> Problem:
    """Returns the model's own weights with every kind of padding.

    Args:
      start_id: the token with which some targets begin, as decoded ones do; None: none is known.
    """
    return _problem("own weights", config, params, seed, start_id)


def long_problem(
    config: TransformerConfig, params: Mapping[str, Any], seed: int = 0, start_id: int | None = None
) -> Problem | None:
    """Returns the model's own weights with one sentence of max_length tokens, or LONGEST if these are fewer.

    A module with tables may compute no more than that, even if a model without tables can. A second sentence would
    double the gigabytes that attention weights need. None if the other problems have sentences of that length.
    """
    source, target = (min(stack.max_length, LONGEST) for stack in (config.encoder, config.decoder))
    lengths = _lengths(config)
    if config.stem is not None:
        source = lengths[0]
    elif source <= lengths[0]:
        return None
    if (source, target - 1) == lengths or target <= lengths[1]:
        return None
    rng = np.random.default_rng([seed, 1])
    source_ids, features = _sources(rng, config, 1, source)
    decoder_input_ids = _tokens(rng, (1, target), config.target.vocab_size, config.target.pad_id)
    if config.stem is None and _index(config.encoder) != "non_pad_count":  # else, pads would leave the table's end out
        source_ids[:, source // 4 : source // 2] = config.source.pad_id
    if _index(config.decoder) != "non_pad_count":
        decoder_input_ids[:, target // 4 : target // 2] = config.target.pad_id
    labels = _labels(rng, config, decoder_input_ids, source_ids)
    _start(decoder_input_ids, config, start_id, [0])
    return Problem("own weights, long sentences", params, source_ids, decoder_input_ids, labels, features=features)


def unseen_windows(config: TransformerConfig, own: Problem, longest: Problem) -> tuple[str, ...]:
    """Returns a remark for each window of attention that hides nothing from the sentences of a problem, or even from
    the longest ones."""
    found = []
    for axis, stack in enumerate(("encoder", "decoder")):
        window = getattr(config, stack).self_attention.window
        length, most = own.ids[axis].shape[1], longest.ids[axis].shape[1]
        what = f"the {stack}'s window of {window}"
        if window is not None and window >= most:
            found.append(f"no sentence here is longer than {what}: nothing shows how wide it is")
        elif window is not None and window >= length:
            found.append(f"what is compared on sentences of {length} tokens doesn't show {what}; forward does")
    return tuple(found)


def training_problem(config: TransformerConfig, problem: Problem, loss_counts_pads: bool) -> Problem:
    """Returns the problem to train on.

    Where pads count, it lacks the rows whose labels are all pads, which only fill up a batch, and targets that begin
    with a pad. The first pad's query sees no key, so its output and its gradient mean nothing: many programs give NaN.
    """
    if not loss_counts_pads:
        return problem
    pads = config.source.pad_id, config.target.pad_id
    counts = (problem.labels != config.target.pad_id).any(axis=1) & ~np.isin(problem.decoder_input_ids[:, 0], pads)
    return problem.rows(counts)


def decoding_problem(config: TransformerConfig, problem: Problem, more: int | None = None) -> Problem:
    """Returns the sentences to decode, without those that are all padding, which programs decode differently.

    Args:
      more: seeds as many other sentences, to tell more faults apart; None: no others.
    """
    parts = [problem] if more is None else [problem, own_problem(config, problem.params, more)]
    kept = [part.rows((part.source_ids != config.source.pad_id).any(axis=1)) for part in parts]
    features = [part.features for part in kept if part.features is not None]
    return replace(
        problem,
        source_ids=np.concatenate([part.source_ids for part in kept]),
        features=Features(*map(np.concatenate, zip(*features, strict=True))) if features else None,
    )


def nudged_problem(problem: Problem, dtype: str = "float64", draw: int = 0) -> Problem:
    """Returns the problem with weights changed in a dtype's last bit and another factor of the loss, which changes all
    rounding; tables of a formula stay."""
    leaves = {path: np.asarray(leaf) for path, leaf in flatten(problem.params).items()}
    moved = nudged({path: leaf for path, leaf in leaves.items() if not is_formula(path)}, dtype, draw)
    return replace(problem, params=unflatten(leaves | moved), loss_factor=loss_factor(draw))


def other_weights(
    config: TransformerConfig,
    params: Mapping[str, Any],
    seed: int = 0,
    kept: Collection[str] = (),
    start_id: int | None = None,
) -> Iterator[Problem]:
    """Yields the same batch with random weights; with tiny variances of the norms' inputs; with large means of them.

    Args:
      kept: the paths of leaves that keep their values, as a side can't receive others.
      start_id: as of `own_problem`.
    """
    own = own_problem(config, params, seed, start_id)
    for name, change in (
        ("random weights", _as_drawn),
        ("small variances", _with_small_variances),
        ("large means", _with_large_means),
    ):
        drawn = randomised(params, np.random.default_rng([seed, 2]))
        drawn |= {path: np.asarray(leaf) for path, leaf in flatten(params).items() if path in kept}
        leaves = change(config, drawn, own)
        rounded = {
            path: leaves.pop(path) if path in kept else _rounded(path, leaves.pop(path)) for path in list(leaves)
        }  # so that no two of a large model's copies stay
        yield replace(own, name=name, params=unflatten(rounded))
        del rounded


def swap_target_ids(config: TransformerConfig, problem: Problem, one: int, other: int) -> Problem:
    """Swaps two of the target's ids, in the weights and in the batch.

    The model computes the same with the ids' names exchanged. With it, a model that never ends a sentence does.
    """
    tables = {"target_embedding/embedding": 0, "shared_embedding/embedding": 0, "head/kernel": 1}
    axes = tables | dict.fromkeys(("head/bias", "head_bias", "constants/head_bias"), -1)

    def swapped(path: str, leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        order = np.arange(leaf.shape[axes[path]])
        order[[one, other]] = other, one
        return leaf.take(order, axis=axes[path])

    leaves = {path: swapped(path, leaf) if path in axes else leaf for path, leaf in flatten(problem.params).items()}
    new_ids = np.arange(max(config.source.vocab_size, config.target.vocab_size))
    new_ids[[one, other]] = other, one
    return replace(
        problem,
        name=f"{problem.name}, ids {one} and {other} swapped",
        params=unflatten(leaves),
        source_ids=new_ids[problem.source_ids] if config.share_embeddings else problem.source_ids,
        decoder_input_ids=new_ids[problem.decoder_input_ids],
        labels=new_ids[problem.labels],
    )


def randomised(params: Mapping[str, Any], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns new random parameters and buffers by path, scales of norms around 1; tables of a formula stay."""
    leaves = {}
    for path, leaf in flatten(params).items():
        shape = np.shape(leaf)
        if is_formula(path):
            leaves[path] = np.asarray(leaf, np.float64)
        elif path.endswith("/kernel"):
            leaves[path] = rng.standard_normal(shape) * (1.3 / np.sqrt(_fan_in(path, shape)))
        elif path.endswith("/embedding"):
            leaves[path] = rng.standard_normal(shape) * (0.5 if "relative_bias" in path else 1.3 / np.sqrt(shape[-1]))
        else:
            leaves[path] = 0.4 * rng.standard_normal(shape) + path.endswith("/scale")
    return leaves


def is_formula(path: str) -> bool:
    """Returns whether a leaf is a table that follows from a formula, so that random values aren't legal for it. A bias
    of the logits that is a buffer isn't."""
    return path.startswith("constants/") and path.endswith("_positions")


def _fan_in(path: str, shape: tuple[int, ...]) -> int:
    """Returns the number of features that one output sums."""
    inner = shape[1:] if "/layers/" in path else shape
    return int(np.prod(inner[:-1] if path.endswith("attention/output/kernel") else inner[:1]))


# --- weights that make norms' inputs extreme


Leaves = dict[str, np.ndarray]


def _as_drawn(config: TransformerConfig, leaves: Leaves, problem: Problem) -> Leaves:
    return leaves


def _with_large_means(config: TransformerConfig, leaves: Leaves, problem: Problem) -> Leaves:
    """Shifts the residual stream far from zero; the kernels that read it have columns that cancel the shift."""
    readers = ("query/kernel", "key/kernel", "value/kernel", "hidden/kernel", "gate/kernel", "head/kernel")
    changed = dict(leaves)
    for path, leaf in leaves.items():
        if path.endswith(("output/kernel", "output/bias")):
            changed[path] = 0.1 * leaf + MEAN * _is_added_before_an_inner_norm(config, path)
        elif _is_added_before_an_inner_norm(config, path):
            changed[path] = leaf + MEAN
        elif path.endswith("_residual_scale/scale"):
            changed[path] = 1.0 + 1e-4 * leaf  # or its channels would no longer have one mean
        elif path.endswith("_embedding/embedding"):
            changed[path] = 0.1 * leaf + MEAN / _factor(_reader_of(config, path))
        elif (_is_post(config, path) and path.endswith("norm/bias")) or (
            config.head.tied and path == "decoder/final_norm/bias"
        ):
            changed[path] = leaf + MEAN  # what a tied head reads, too, or its own shift would all but cancel
        elif path.endswith(("query/bias", "key/bias")) and _sublayer_of(config, path).query_key_norm:
            changed[path] = leaf + MEAN  # what the norms of queries and keys read
        elif path.endswith(readers):
            changed[path] = leaf - leaf.mean(axis=1 if "/layers/" in path else 0, keepdims=True)
    return changed


def _is_added_before_an_inner_norm(config: TransformerConfig, path: str) -> bool:
    """Returns whether the parameter is a bias whose sum a norm of a sublayer's output or of hidden units reads."""
    if path.endswith("feed_forward/hidden/bias"):
        return bool(_sublayer_of(config, path).hidden_norm)
    return path.endswith("/output/bias") and bool(_sublayer_of(config, path).output_norm)


def _sublayer_of(config: TransformerConfig, path: str) -> Any:
    """Returns the sublayer's part to whose projections a parameter, such as its output's bias, belongs."""
    return getattr(_stack_of(config, path), path.split("/")[-3])


def _stack_of(config: TransformerConfig, path: str) -> Stack:
    """Returns the stack that a parameter belongs to."""
    return config.decoder if path.startswith("decoder/") else config.encoder


def _reader_of(config: TransformerConfig, path: str) -> Stack:
    """Returns the stack that reads a table of embeddings: of a shared one, the encoder."""
    return config.decoder if path.startswith("target") else config.encoder


def _is_post(config: TransformerConfig, path: str) -> bool:
    """Returns whether the parameter belongs to a stack whose norms follow its residuals."""
    return _stack_of(config, path).norm_placement == "post"


def _with_small_variances(config: TransformerConfig, leaves: Leaves, problem: Problem) -> Leaves:
    """Makes the residual stream small but for its mean; the last row's first tokens cancel their positions."""
    changed = dict(leaves)
    for path, leaf in leaves.items():
        if path.endswith("_embedding/embedding"):  # not below SMALL, or rounding of the mean would count
            factor = _factor(_reader_of(config, path))
            changed[path] = leaf * SMALL / min(1.0, abs(factor) * np.sqrt(np.square(leaf).mean()))
        elif path.endswith(("output/kernel", "positions/embedding")):
            changed[path] = leaf * SMALL
        elif path.endswith("norm/scale"):
            offset = getattr(_stack_of(config, path).norm, "scale_offset", 0.0)
            changed[path] = (leaf + offset) * SMALL - offset
        elif path.endswith("norm/bias"):
            changed[path] = np.full_like(leaf, 0.3)
        elif path.endswith("output/bias"):  # under pre-norm, the stream adds those of all sublayers
            own = _stack_of(config, path)
            has_bias = own.norm is not None and own.norm.bias
            count = 1 if _is_post(config, path) or has_bias else 3 * own.num_layers
            changed[path] = np.full_like(leaf, 0.3 / count)
    _cancel_positions(config, changed, problem)
    return changed


def _cancel_positions(config: TransformerConfig, leaves: Leaves, problem: Problem) -> None:
    """Makes the embeddings of two tokens the negative of their positions in the last, unpadded row, but for a rest."""
    stacks: list[tuple[StackName, Tokens, np.ndarray]] = [("decoder", config.target, problem.decoder_input_ids)]
    if config.stem is None:  # whose vectors aren't rows of a table
        stacks.insert(0, ("encoder", config.source, problem.source_ids))
    done: dict[str, set[int]] = {}
    for stack, tokens, ids in stacks:
        own: Stack = getattr(config, stack)
        if not isinstance(own.positions, Sinusoidal):
            continue
        table = (
            "shared_embedding"
            if config.share_embeddings
            else "source_embedding"
            if stack == "encoder"
            else "target_embedding"
        )
        columns = [column for column in range(2) if ids[-1, column] not in done.get(table, ())]
        numbers = np.broadcast_to(position_numbers(own.positions, tokens, ids), ids.shape)[-1, columns]
        scale = position_factor(own.positions) * leaves.get(f"{stack}/position_scale/factor", 1.0)
        at_columns = scale * rows(leaves[f"constants/{stack}_positions"], numbers)
        leaves[f"{table}/embedding"][ids[-1, columns]] -= at_columns / _factor(own)
        done[table] = {int(token) for token in ids[-1, :2]}


def _factor(stack: Stack) -> float:
    """Returns the factor of a stack's token embeddings, or 1 if it is zero and they don't count."""
    return stack.embedding_factor or 1.0


def _index(stack: Stack) -> str:
    """Returns by what a stack's positions are numbered."""
    return getattr(stack.positions, "index", "column")


def _rounded(path: str, leaf: np.ndarray) -> np.ndarray:
    """Rounds to float32, which both sides hold exactly; tables of a formula stay."""
    return leaf if is_formula(path) else leaf.astype(np.float32)


# --- batches


def _problem(
    name: str, config: TransformerConfig, params: Mapping[str, Any], seed: int, start_id: int | None
) -> Problem:
    rng, (source, target), rows = np.random.default_rng(seed), _lengths(config), _rows(config)
    source_ids, features = _sources(rng, config, rows, source)
    decoder_input_ids = _tokens(rng, (rows, target), config.target.vocab_size, config.target.pad_id)
    _pad_targets(decoder_input_ids, config)
    labels = _labels(rng, config, decoder_input_ids, source_ids)
    _start(decoder_input_ids, config, start_id, STARTED_ROWS)
    return Problem(name, params, source_ids, decoder_input_ids, labels, features=features)


def _sources(
    rng: np.random.Generator, config: TransformerConfig, rows: int, length: int
) -> tuple[np.ndarray, Features | None]:
    """Draws token ids [B, S] and, if there are several rows, pads some; or features of so many positions, which are
    padded at the end alone."""
    if config.stem is None:
        ids = _tokens(rng, (rows, length), config.source.vocab_size, config.source.pad_id)
        if rows > 1:
            _pad_sources(ids, config.source.pad_id)
        return ids, None
    stem, vectors = config.stem, length * config.stem.stride
    lengths = np.full(rows, vectors)
    if rows > 1:
        lengths[1:6] = (2 * vectors) // 3, vectors - 1, vectors // 4 + 1, 1, 0
    drawn = np.round(32 * rng.standard_normal((rows, vectors, stem.features))) / 32  # exact in bfloat16, too
    is_real = np.arange(vectors) < lengths[:, None]
    return stem_ids(config, is_real[:, :: stem.stride]), Features(drawn.astype(np.float32), lengths)


def _lengths(config: TransformerConfig) -> tuple[int, int]:
    """Returns the lengths of source and target; they differ from the model's sizes if its tables allow it.

    After a stem, positions are all those of a table: programs take no fewer vectors."""
    taken, most = _sizes(config) | {_rows(config)}, _most_tokens(config)
    if config.stem is not None and isinstance(config.encoder.positions, Table):
        source = config.encoder.max_length
        return source, _free(TARGET_LENGTH, most[1], taken | {source})
    source = _free(SOURCE_LENGTH, most[0], taken)
    return source, _free(TARGET_LENGTH, most[1], taken | {source})


def _rows(config: TransformerConfig) -> int:
    """Returns the rows of a batch: ROWS, or a few more to differ from the model's sizes.

    Always ROWS if positions go by the row of the batch.
    """
    return (
        ROWS
        if "batch_row" in (_index(config.encoder), _index(config.decoder))
        else next(number for number in count(ROWS) if number not in _sizes(config))
    )


def _sizes(config: TransformerConfig) -> set[int]:
    sizes = {config.source.vocab_size, config.target.vocab_size}
    sizes |= set() if config.stem is None else {config.stem.features, config.stem.kernel}
    for stack in (config.encoder, config.decoder):
        shapes = (attention.shape(stack.d_model) for attention in stack.attentions)
        sizes |= {stack.d_model, *(size for shape in shapes for size in dataclasses.astuple(shape))}
        sizes |= {stack.feed_forward.width} if stack.feed_forward else set()
    return sizes


def _free(wanted: int, most: int, taken: set[int]) -> int:
    """Returns the wanted number, or the nearest one that isn't taken and isn't larger than the limit allows."""
    near = sorted(range(2, min(most, 2 * wanted) + 1), key=lambda number: abs(number - wanted))
    return next((number for number in near if number not in taken), min(wanted, most))


def _most_tokens(config: TransformerConfig) -> tuple[int, int]:
    """Returns the most tokens that the position tables allow, of source and target."""
    source, target = (
        stack.max_length if isinstance(stack.positions, Table) else LONGEST
        for stack in (config.encoder, config.decoder)
    )
    return source, target


def _tokens(rng: np.random.Generator, shape: tuple[int, int], vocab_size: int, pad_id: int) -> np.ndarray:
    real = np.setdiff1d(np.arange(vocab_size), [pad_id])
    return rng.choice(real, shape)


def _pad_sources(ids: np.ndarray, pad_id: int) -> None:
    length = ids.shape[1]
    ids[1, (2 * length) // 3 :] = pad_id  # right
    ids[2, : length // 3] = pad_id  # left
    ids[3, length // 4 : length // 2] = pad_id  # inside
    ids[4, 1:] = pad_id  # one token
    ids[5] = pad_id  # none


def _pad_targets(ids: np.ndarray, config: TransformerConfig) -> None:
    length, pad_id = ids.shape[1], config.target.pad_id
    ids[0, (2 * length) // 3 :] = pad_id
    ids[1, : length // 4] = pad_id
    ids[2, length // 3 : length // 2 + 1] = pad_id
    ids[3, 1:] = pad_id
    if config.source.pad_id < config.target.vocab_size:  # some decoders take it for padding
        ids[4, length // 2] = ids[5, 0] = config.source.pad_id
    ids[5, -1] = pad_id


def _start(ids: np.ndarray, config: TransformerConfig, start_id: int | None, rows: Sequence[int]) -> None:
    """Begins some targets with the start token. One that the decoder masks would leave its first query without a
    key."""
    masked = (config.target.pad_id, config.decoder.self_attention.padding_id)
    if start_id is not None and not (config.decoder.self_attention.padding != "none" and start_id in masked):
        ids[rows, 0] = start_id


def _labels(
    rng: np.random.Generator, config: TransformerConfig, decoder_input_ids: np.ndarray, source_ids: np.ndarray
) -> np.ndarray:
    """Draws labels: pads where the input is a pad, where there is nothing to read, and once in the first row.

    The last row has the lowest ids, which programs use for padding and for the ends of sentences.
    """
    labels = _tokens(rng, decoder_input_ids.shape, config.target.vocab_size, config.target.pad_id)
    lowest = min(LOWEST_IDS, config.target.vocab_size, labels.shape[1])
    labels[-1, :lowest] = np.arange(lowest)
    labels[decoder_input_ids == config.target.pad_id] = config.target.pad_id
    nothing_to_read = (source_ids == config.source.pad_id).all(axis=1)
    labels[nothing_to_read] = config.target.pad_id
    labels[0, 0] = config.target.pad_id
    return labels


# --- problems that leave out what is allowed to differ


def with_first_token(problem: Problem, token: int) -> Problem:
    """Returns the problem with one token at the beginning of every target."""
    target = problem.decoder_input_ids.copy()
    target[:, 0] = token
    return replace(problem, decoder_input_ids=target)


def with_padding_at_the_end(config: TransformerConfig, problem: Problem) -> Problem:
    """Returns the problem with tokens in place of the pads that stand before a token of their sentence."""
    source, target = problem.ids
    rng = np.random.default_rng(len(source))
    sources, targets = _pads(config)
    filled = _with_sources(config, problem, _before_a_token(source, sources), rng)
    ids = _filled(target, _before_a_token(target, targets), targets, config.target.vocab_size, rng)
    return replace(filled, decoder_input_ids=ids)


def with_keys_for_all(config: TransformerConfig, problem: Problem) -> Problem:
    """Returns the problem with tokens in place of the pads of every sentence in which a query sees no key.

    The sentences of source and target are filled apart, so that all other padding stays.
    """
    source, target = problem.ids
    filled_source, filled_target = (np.zeros(len(source), bool) for _ in range(2))
    ids = model_inputs(config, *problem.inputs)
    for node in (one for one in nodes(config) if one.kind == "mask"):
        blind = _blind(recompute(node, config, ids, {}), len(source))
        if len(node.inputs) > 1:  # of cross-attention
            filled_source |= blind & (source == config.source.pad_id).all(axis=1)
            filled_target |= blind & (config.attentions[-1].padding in ("queries", "both"))
        elif "source_ids" in node.inputs.values():
            filled_source |= blind
        else:
            filled_target |= blind
    rng = np.random.default_rng(len(source))
    _, targets = _pads(config)
    filled = _with_sources(config, problem, filled_source[:, None], rng)
    return replace(
        filled, decoder_input_ids=_filled(target, filled_target[:, None], targets, config.target.vocab_size, rng)
    )


def _with_sources(config: TransformerConfig, problem: Problem, places: np.ndarray, rng: np.random.Generator) -> Problem:
    """Returns the problem with tokens in place of the source's pads at some places, as `_filled`; features, whose pads
    stand at the end, become whole."""
    if problem.features is None:
        sources, _ = _pads(config)
        return replace(problem, source_ids=_filled(problem.source_ids, places, sources, config.source.vocab_size, rng))
    is_whole = (places & (problem.source_ids == config.source.pad_id)).any(axis=1)
    assert config.stem is not None  # as the problem has features
    vectors = np.asarray(problem.features.vectors)
    lengths = np.where(is_whole, vectors.shape[1], np.asarray(problem.features.lengths))
    is_real = np.arange(vectors.shape[1]) < lengths[:, None]
    ids = stem_ids(config, is_real[:, :: config.stem.stride])
    return replace(problem, source_ids=ids, features=Features(vectors, lengths))


def _pads(config: TransformerConfig) -> tuple[list[int], list[int]]:
    """Returns the ids that may count as padding in sources and in targets."""
    target_ids = (config.target.pad_id, config.decoder.self_attention.padding_id, config.source.pad_id)
    return [config.source.pad_id], [pad for pad in target_ids if pad is not None]


def _before_a_token(ids: np.ndarray, pads: list[int]) -> np.ndarray:
    """Returns for each place [B, T] whether a token follows."""
    is_token = ~np.isin(ids, pads)
    return np.asarray(np.flip(np.logical_or.accumulate(np.flip(is_token, axis=1), axis=1), axis=1))


def _blind(mask: np.ndarray, sentences: int) -> np.ndarray:
    """Returns for each sentence whether a query of it sees no key."""
    sees = np.asarray(mask.any(axis=-1))  # [B, 1, Q], 1 along an axis without difference
    return np.broadcast_to(~np.asarray(sees.all(axis=(1, 2))), sentences).copy()


def _filled(
    ids: np.ndarray, places: np.ndarray, pads: list[int], vocab_size: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns the ids with real tokens in place of the pads at some places ([B, T], or [B, 1] for sentences)."""
    tokens = rng.choice([token for token in range(vocab_size) if token not in pads], ids.shape)
    return np.where(places & np.isin(ids, pads), tokens, ids).astype(ids.dtype)
