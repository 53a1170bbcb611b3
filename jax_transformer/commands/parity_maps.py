"""jax-transformer parity MODEL --reference package.module:factory --draft-map FILE: which names of a module may be
which of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.commands.parallel_text import write_lines
from jax_transformer.parity.pairing import check_module, load, made_by

if TYPE_CHECKING:
    from jax_transformer.commands.parity import ParityOptions


def draft_map(options: ParityOptions) -> int:
    """Writes the draft; returns the exit code.

    Raises:
      ValueError: no model or no module; one that can't be run.
    """
    if not (options.model and options.reference and options.draft_map):
        raise ValueError(
            "--draft-map: expected a model, whose names are mapped to, and --reference, whose names are mapped"
        )
    module = made_by(options.reference, "--reference")
    check_module(module, options.reference)
    model = load(options, module)

    from jax_transformer.parity.backends.modules import names_for_draft
    from jax_transformer.parity.names.drafts import draft

    theirs, ours = names_for_draft(module, model)
    write_lines(options.draft_map, draft(theirs, ours).splitlines())
    counted = f"{len(theirs.parameters)} parameters and {len(theirs.activations)} activations"
    print(f"{options.draft_map}: a draft for {counted} of {options.reference}.")
    print(
        "Read it and edit it: it goes by shapes, order and words, and what it isn't sure of is commented out. Then "
        "give it with --map."
    )
    return 0
