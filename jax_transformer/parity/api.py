"""`compare`: parity of models, PyTorch modules, JAX functions and named arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jax_transformer.parity.gates.arrays import ParityError
from jax_transformer.parity.report.report import Report
from jax_transformer.parity.runs.array_pairs import compare_arrays, compare_on_inputs
from jax_transformer.parity.sides.options import Path, check_options, kind_of, rule_of, selected

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.config.run import TrainConfig
    from jax_transformer.porting.names.maps import NameMap


def compare(
    candidate: Any,
    reference: Any = None,
    *,
    model: Any = None,
    inputs: Mapping[str, Any] | Path | None = None,
    names: NameMap | Path | None = None,
    stages: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    node: str | None = None,
    seed: int = 0,
    allow: Sequence[str] | None = None,
    truth: Mapping[str, Any] | Path | None = None,
    tolerance: float | None = None,
    dialect: str | None = None,
    train: TrainConfig | Path | None = None,
    loss: Callable[..., Any] | None = None,
    optimizer: Callable[..., Any] | None = None,
    decode: Callable[..., Any] | None = None,
    decoding: DecodingConfig | None = None,
    jax_loss: Callable[..., Any] | None = None,
    jax_optimizer: Any = None,
    mesh: Mesh | None = None,
    candidate_name: str | None = None,
    reference_name: str | None = None,
    progress: Callable[[str], None] = lambda what: None,
    **hints: Any,
) -> Report:
    """Compares a candidate with a reference on the same weights and inputs, and explains where and why they differ.

    Each call is one of these comparisons:

    - `compare(model)`: a model with the PyTorch program of its dialect.
    - `compare(model, module)`: a model with a PyTorch module of yours; `compare(module)` ports the module's weights.
    - `compare(function, model=model)`, `compare(function, module)`, `compare(function, model)`: a JAX function
      `(params, inputs) -> (logits, trace)` in place of the model. It receives the model's parameters, a nested dict,
      and a dict of `source_ids` [B, S] and `decoder_input_ids` [B, T].
    - `compare(function, module, inputs={...})`: a JAX function and any PyTorch module. The function receives the
      module's state_dict as a dict of arrays, and the inputs.
    - `compare(arrays, arrays)`: two mappings of names to arrays, or two `.npz` files.

    For models of more than 20 million parameters the process is set to return freed memory to the system (glibc only).

    Args:
      candidate: a `Model`; the path of a model directory, run directory or checkpoint; a torch.nn.Module in evaluation
        mode; a function; a mapping of names to NumPy, JAX or PyTorch arrays; or the path of an `.npz`.
      reference: a torch.nn.Module in evaluation mode, a `Model` or its path, a mapping of arrays or the path of an
        `.npz`, in execution order. None: the program of the model's dialect.
      model: with a function, the model whose parameters it receives; a `Model` or a path.
      inputs: with a function and a module, the arguments of the module's `forward` by name; arrays or an `.npz`.
      names: a map from the reference's names to the candidate's, or the path of its YAML file, where no dialect names
        them.
      stages: a selection of weights, inputs, masks, forward, loss, gradients, step, trajectory and decode; with
        `inputs`, of inputs, forward and gradients. None: all. If asked for, also resume: each side continues the
        training that the other began, with its optimizer's state ported; ctranslate2: that program scores the
        same sentences; and proof: both are proven to be one function for all weights, as by `prove`.
      dtypes: a selection of float64, float32 and bfloat16. float64 decides; the others are judged by their distance
        from it. None: all.
      node: the only activation to look at, in float64.
      seed: seeds the inputs and the random weights.
      allow: differences that don't count: "fully-masked", what an attention gives a query that sees no key;
        "inner-padding", what depends on padding before a token of its sentence; "first-token", what a target's first
        token does: all begin with the model's decoder_start_id. None: all count.
      truth: with arrays in lower precision, the reference's arrays in float64, computed from weights and inputs
        rounded to that precision.
      tolerance: with arrays, the largest relative RMS of the difference that passes. None: the gate of the dtype,
        1e-12 in float64.
      dialect: the dialect of the checkpoint's or module's names.
      train: the rule that `loss` and `optimizer` should follow; a config.yaml or the directory of a run. None: the
        config of the run that the candidate is.
      loss: a PyTorch loss of yours, (logits [B, T, V], labels [B, T]) → a scalar, in place of the built-in one.
      optimizer: a PyTorch optimizer of yours, a function module → an object with `zero_grad()` and `step()`. Its step
        does everything that follows `loss.backward()`: clipping, the optimizer's step, the scheduler's.
      decode: a PyTorch decoder of yours, (module, source_ids [B, S], start_id=, eos_id=, max_new_tokens=) → ids [B, T]
        without the start token: up to the end token, then pads; or a list of each sentence's ids. It may return (ids,
        scores), the scores [B] as `generate` has them.
      decoding: the search that `decode` should make: beam_size, max_new_tokens, semantics, length_penalty and
        early_stopping. None: greedy, 12 tokens.
      jax_loss, jax_optimizer: programs of yours on the candidate's side, as `make_train_step` takes them: (logits,
        labels) → losses [B, T], and an optax.GradientTransformation. With both sides yours, `train` may be left out;
        differences are then found and not explained.
      mesh: the devices that share the candidate's weights and rows, as `make_mesh` returns them: what it computes there
        is compared. None: one device.
      candidate_name, reference_name: the names of the sides in the report.
      progress: called with the name of each piece of work before it begins.
      **hints: fields of the config that a checkpoint or module doesn't tell, as of `import_checkpoint`: `num_heads`,
        `source_pad_id`, …

    Returns:
      A Report: its verdict is "passed", "diverged" or "inconclusive".

    Raises:
      ValueError: the sides can't be compared; an option doesn't apply to them; a file can't be read; the module or
        function can't be run.
      ImportError: the reference needs PyTorch or transformers, which isn't installed.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parity import compare
      >>> x = np.linspace(0, 1, 6)
      >>> compare({"output": x + 1e-15}, {"output": x}).verdict
      'passed'
      >>> import torch
      >>> module = torch.nn.Linear(6, 2).eval()
      >>> def linear(params, inputs):
      ...     return params["weight"] @ inputs["input"] - params["bias"], {}
      >>> report = compare(linear, module, inputs={"input": x.astype(np.float32)}, dtypes=["float64"])
      >>> report.verdict, report.faults[0].finding.node
      ('diverged', 'output')
    """
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0; received {tolerance}")
    options = {
        "model": model,
        "inputs": inputs,
        "names": names,
        "stages": stages,
        "dtypes": dtypes,
        "node": node,
        "seed": seed or None,
        "allow": allow,
        "truth": truth,
        "tolerance": tolerance,
        "dialect": dialect,
        "train": train,
        "loss": loss,
        "optimizer": optimizer,
        "decode": decode,
        "decoding": decoding,
        "jax_loss": jax_loss,
        "jax_optimizer": jax_optimizer,
        "mesh": mesh,
        **hints,
    }
    given = [name for name, value in options.items() if value is not None]
    kinds = kind_of(candidate), None if reference is None else kind_of(reference)
    if "arrays" in kinds:
        check_options("named arrays", given)
        return compare_arrays(candidate, reference, truth, tolerance, candidate_name, reference_name)
    if inputs is not None:
        if kinds != ("function", "module"):
            raise ValueError("inputs: only a JAX function compared with a torch.nn.Module takes them")
        check_options("a function and a module on inputs", given)
        return compare_on_inputs(candidate, reference, inputs, names, stages, dtypes, candidate_name, reference_name)
    check_options("models", given, hints)
    if model is not None and kind_of(model) != "model":
        raise ParityError(f"model: expected a Model or its path; received {type(model).__name__}")
    from jax_transformer.parity.allowances import ALLOWANCES
    from jax_transformer.parity.rules import Programs, make_rules
    from jax_transformer.parity.run_results import DTYPES, OPTIONAL, STAGES
    from jax_transformer.parity.sides.pairing import Sides, compare_models

    ours, theirs = Programs(jax_loss, jax_optimizer), Programs(loss, optimizer, decode)
    rules = make_rules(rule_of(candidate, train, ours, theirs), ours, theirs, decoding)
    return compare_models(
        Sides(
            candidate,
            reference,
            kinds,
            model,
            names,
            dialect,
            hints,
            candidate_name,
            reference_name,
            rules,
            candidate_programs=ours,
            reference_programs=theirs,
            mesh=mesh,
        ),
        stages=selected(stages, STAGES, "stages", OPTIONAL),
        dtypes=selected(dtypes, DTYPES, "dtypes"),
        seed=seed,
        node=node,
        allow=() if allow is None else selected(allow, ALLOWANCES, "allow"),
        progress=progress,
    )


def assert_parity(candidate: Any, reference: Any = None, **options: Any) -> None:
    """Compares the sides as `compare` does, and raises unless they pass.

    Args:
      candidate, reference, **options: as of `compare`.

    Raises:
      Divergence: the sides differ, or the comparison is inconclusive; an AssertionError whose message is the report.
      ValueError: as of `compare`.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parity import assert_parity
      >>> assert_parity({"logits": np.ones(3)}, {"logits": np.ones(3) + 1e-9}, tolerance=1e-6)
    """
    compare(candidate, reference, **options).raise_for_divergence()


def draft_map(model: Any, module: Any, *, dialect: str | None = None, **hints: Any) -> str:
    """Guesses, from shapes, order and words, which of a module's names are which of a model's.

    Args:
      model: a Model, or the path of a model directory or checkpoint.
      module: a PyTorch module in evaluation mode with parameters of the same shapes.
      dialect, **hints: as of `compare`.

    Returns:
      A draft of a map in YAML, to be read and edited; unsure lines are commented out.

    Raises:
      ParityError: the module can't be run on ids.

    Example:
      >>> import jax
      >>> import torch
      >>> from jax_transformer.config.decoding import GenerationConfig
      >>> from jax_transformer.config.model import TransformerConfig
      >>> from jax_transformer.model.functional import init_params
      >>> from jax_transformer.parity import draft_map
      >>> from jax_transformer.storage.model_directory import Model
      >>> from torch_reference.pytorch import PytorchTransformer
      >>> sizes = dict(source_vocab_size=11, target_vocab_size=13, d_model=4, num_heads=2, d_ff=8, max_length=6,
      ...              num_encoder_layers=1, num_decoder_layers=1, source_pad_id=0, target_pad_id=0)
      >>> config = TransformerConfig(**sizes)
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None, GenerationConfig())
      >>> print(draft_map(model, PytorchTransformer(**sizes).eval())[:9])
      # A DRAFT
    """
    from jax_transformer.parity.backends.module_names import names_for_draft
    from jax_transformer.parity.names.drafts import draft
    from jax_transformer.parity.sides.loading import load, name_of
    from jax_transformer.parity.sides.pairing import check_module

    check_module(module, name_of(module))
    return draft(*names_for_draft(module, name_of(module), load(model, dialect, hints)))
