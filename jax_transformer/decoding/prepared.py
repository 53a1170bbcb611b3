"""Prepared models: parameters on the devices, and the decoder's layers unstacked for single steps.

`generate`, `translate`, `score` and `align` prepare a model once and cache the result on the Model object. Don't change
`model.params` in place afterwards: decoding would still use the old values. Make a new model with
`dataclasses.replace(model, params=…)` instead.
"""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from functools import cached_property

import jax
from jax.sharding import Mesh

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.decoding.cache import Weights
from jax_transformer.decoding.checks import check_model
from jax_transformer.parallel.placement import place_params
from jax_transformer.parallel.rules import check_divides
from jax_transformer.parallel.tracing import in_mesh
from jax_transformer.storage.model_directory import Model

_LOCK = threading.Lock()


@dataclass(frozen=True)
class PreparedModel(Model):
    """Holds a model whose parameters are on the devices, ready for decoding. Every function that takes a Model accepts
    it.

    Example:
      >>> issubclass(PreparedModel, Model)
      True
    """

    mesh: Mesh | None = None
    """The devices that share the parameters and the rows of a batch. None: JAX's default device alone."""

    @cached_property
    def weights(self) -> Weights:
        """Returns the parameters in the form that decoding reads. The first access unstacks the decoder's layers."""
        with in_mesh(self.mesh):
            return Weights.of(self.config, self.params)

    def with_generation(self, generation: GenerationConfig) -> PreparedModel:
        """Returns the model with different generation settings. Both share one copy of the weights."""
        return self.sharing_weights(dataclasses.replace(self, generation=generation))

    def sharing_weights(self, other: PreparedModel) -> PreparedModel:
        """Returns another model of the same parameters, such as one under a target tag, which reads this one's
        weights."""
        other.__dict__["weights"] = self.weights
        return other


def prepare(model: Model, mesh: Mesh | None = None) -> PreparedModel:
    """Puts a model's parameters on the device, or on the devices of a mesh, for decoding.

    Decoding functions call this themselves. Call it to choose the moment, or to free the host's copy of the parameters
    by dropping `model`.

    Args:
      model: the model. A prepared one is returned unchanged.
      mesh: the devices, which share the parameters and the rows; see `make_mesh`. None: JAX's default device.

    Returns:
      The prepared model. Without a mesh, it is the same object for the same Model.

    Raises:
      ConfigError: the mesh doesn't divide the model's heads, feed-forward units or features.
      DecodingError: not a Model.

    Example:
      >>> import jax
      >>> from jax_transformer.config.decoding import GenerationConfig
      >>> from jax_transformer.config.model import TransformerConfig
      >>> from jax_transformer.model.functional import init_params
      >>> config = TransformerConfig(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8)
      >>> generation = GenerationConfig(decoder_start_id=1, eos_id=2)
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None, generation)
      >>> prepared = prepare(model)
      >>> prepared is prepare(model) is prepare(prepared)
      True
    """
    check_model(model)
    if isinstance(model, PreparedModel):
        return model
    fields = {field.name: getattr(model, field.name) for field in dataclasses.fields(model) if field.init}
    if mesh is not None and mesh.size > 1:
        check_divides(model.config, mesh)
        return PreparedModel(**fields | {"params": place_params(model.params, mesh)}, mesh=mesh)
    with _LOCK:
        if model._prepared is None:
            fields["params"] = jax.device_put(model.params)
            object.__setattr__(model, "_prepared", PreparedModel(**fields))
    prepared: PreparedModel = model._prepared
    return prepared
