"""`compare`: parity of models, PyTorch modules, JAX functions and named arrays."""

from __future__ import annotations

from typing import Any

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.named_arrays import compare_arrays
from jax_transformer.comparison.report.report import Report
from jax_transformer.comparison.sides import DTYPES, name_of, selected
from jax_transformer.parity.sides.options import Options, as_side, kind_of, read_names


def compare(candidate: Any, reference: Any = None, options: Options | None = None, **changes: Any) -> Report:
    """Compares a candidate with a reference on the same weights and inputs, and explains where and why they differ.

    Each call is one of these comparisons:

    - `compare(model)`: a model with the PyTorch program of its dialect.
    - `compare(model, module)`: a model with a PyTorch module of yours; `compare(module)` ports the module's weights.
    - `compare(function, model=model)`, `compare(function, module)`, `compare(function, model)`: a JAX function
      `(params, inputs) -> (logits, trace)` in place of the model. It receives the model's parameters, a nested dict,
      and a dict of `source_ids` [B, S] and `decoder_input_ids` [B, T].
    - `compare(function, module, inputs={...})`: a JAX function and any PyTorch module. The function receives the
      module's state_dict as a dict of arrays, and the inputs.
    - `compare(program, program, inputs={...})`: programs with weights of their own, PyTorch, NNX, Equinox and Linen
      modules, or `Side(function, params=tree)`. Each runs in its own dtypes, and is judged in these and in float64,
      layer by layer.
    - `compare(side, "reference.frozen")`: a JAX program with its weights, a PyTorch module, or another frozen one, and
      what `freeze` kept of a program, on its weights and inputs.
    - `compare(arrays, arrays)`: two mappings of names to arrays, or two `.npz` files.

    For models of more than 20 million parameters the process is set to return freed memory to the system (glibc only).

    Args:
      candidate: a `Model`; the path of a model directory, run directory or checkpoint; a torch.nn.Module in evaluation
        mode; a function; a mapping of names to NumPy, JAX or PyTorch arrays; the path of an `.npz`; or a `Side`, which
        holds one of these with a name, and a loss and an optimizer of yours.
      reference: a torch.nn.Module in evaluation mode, a `Model` or its path, a mapping of arrays or the path of an
        `.npz`, in execution order; or a `Side`. None: the program of the model's dialect.
      options: see `Options`. Its stages are a selection of weights, inputs, masks, forward, loss, gradients, step,
        trajectory and decode; with `inputs`, of inputs, forward and gradients; with
        a frozen reference, of weights, forward, loss, gradients and steps. None: all. If asked for, also resume:
        each side continues the training that the other began, with its optimizer's state ported; ctranslate2, which
        scores the same sentences; and proof: both are proven to be one function for all weights, as by `prove`.
      **changes: options by name, such as seed=1, and hints: fields of the config that a checkpoint or module doesn't
        tell, as of `import_checkpoint`: `num_heads`, `source_pad_id`, … With programs of yours on both sides, `train`
        may be left out; differences are then found and not explained.

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
    ours, theirs, asked = as_side(candidate), as_side(reference), Options.of(options, changes)
    kinds = ours.kind, theirs.kind
    sort = asked.sort_of(kinds)
    asked.check(sort, ours, theirs)
    if sort == "a frozen reference":
        from jax_transformer.parity.freezing import compare_frozen

        return compare_frozen(ours, theirs, kinds, asked)
    if sort == "two programs by numbers":
        from jax_transformer.parity.layerwise.api import compare_programs

        return compare_programs((ours, theirs), kinds, asked)
    if sort == "named arrays":
        return compare_arrays(ours.program, theirs.program, asked.truth, asked.tolerance, ours.name, theirs.name)
    if sort == "a function and a module on inputs":
        from jax_transformer.comparison.any_two import compare_on_inputs

        return compare_on_inputs(
            ours.program,
            theirs.program,
            asked.inputs or {},
            read_names(asked.names),
            asked.stages,
            asked.dtypes,
            ours.name,
            theirs.name,
        )
    if asked.model is not None and kind_of(asked.model) != "model":
        raise ParityError(f"model: expected a Model or its path; received {type(asked.model).__name__}")
    from jax_transformer.parity.problems import ALLOWANCES
    from jax_transformer.parity.run_results import OPTIONAL, STAGES
    from jax_transformer.parity.sides.pairing import Sides, compare_models

    return compare_models(
        Sides.of(ours, theirs, kinds, asked),
        stages=selected(asked.stages, STAGES, "stages", OPTIONAL),
        dtypes=selected(asked.dtypes, DTYPES, "dtypes"),
        allow=() if asked.allow is None else selected(asked.allow, ALLOWANCES, "allow"),
    )


def assert_parity(candidate: Any, reference: Any = None, options: Options | None = None, **changes: Any) -> None:
    """Compares the sides as `compare` does, and raises unless they pass.

    Args:
      candidate, reference, options, **changes: as of `compare`.

    Raises:
      Divergence: the sides differ, or the comparison is inconclusive; an AssertionError whose message is the report.
      ValueError: as of `compare`.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parity import assert_parity
      >>> assert_parity({"logits": np.ones(3)}, {"logits": np.ones(3) + 1e-9}, tolerance=1e-6)
    """
    compare(candidate, reference, options, **changes).raise_for_divergence()


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
    from jax_transformer.comparison.capture import check_module
    from jax_transformer.parity.backends.modules import names_for_draft
    from jax_transformer.parity.names.drafts import draft
    from jax_transformer.parity.sides.pairing import load

    check_module(module, name_of(module))
    return draft(*names_for_draft(module, name_of(module), load(model, dialect, hints)))
