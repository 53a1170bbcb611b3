"""openpi's π0 and π0.5, small: the JAX program and its PyTorch original, on one batch with given noise and time.

Both have their sizes written into functions, so these are given small ones here. What transformers lacks for the
PyTorch program, openpi has in files of its own, which are read in place of those of transformers 4.53.2.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import torch
import transformers
from flax import nnx
from pairs import VOCABULARY
from schools import Made

from jax_transformer.parity import Side

SIZE, TOKENS, ACTIONS, WIDTH = 28, 5, (4, 6), {"language": 32, "expert": 16}
VISION = {"width": 24, "depth": 2, "mlp_dim": 36, "num_heads": 4, "patch_size": (14, 14)}


def pair(*, is_pi05: bool, has_prefix: bool) -> Made:
    """Returns both programs, from images, state, prompt and actions to the loss at given noise and time. The third
    camera and the end of the prompt are masked.

    Args:
      is_pi05: π0.5, whose norms depend on time.
      has_prefix: return what the language model computes, too, so that all weights of its last layer are read; nothing
        is masked then.
    """
    use_replaced_files()
    models = small()
    config = models.pi0_config.Pi0Config(
        dtype="float32", paligemma_variant="language", action_expert_variant="expert", action_dim=ACTIONS[1],
        action_horizon=ACTIONS[0], max_token_len=TOKENS, pi05=is_pi05, pytorch_compile_mode=None,
    )  # fmt: skip
    names = models.model.IMAGE_KEYS
    masks = [np.array([has_prefix or name != names[2]]) for name in names]
    prompt_mask = np.array([[True, True, True, has_prefix, has_prefix]])

    def call(model: Any, images: Any, prompt: Any, state: Any, actions: Any, noise: Any, beta: Any) -> Any:
        cameras = {name: image.transpose(0, 2, 3, 1) for name, image in zip(names, images, strict=True)}
        seen = models.model.Observation(cameras, dict(zip(names, masks, strict=True)), state, prompt, prompt_mask)
        with (
            mock.patch.object(jax.random, "normal", return_value=noise),
            mock.patch.object(jax.random, "beta", return_value=beta),
        ):
            return model.compute_loss(jax.random.key(0), seen, actions)

    graph, params, rest = nnx.split(nnx.eval_shape(config.create, jax.random.key(0)), nnx.Param, ...)
    rng = np.random.default_rng(0)
    params, rest = (jax.tree.map(lambda leaf: drawn(rng, leaf), tree) for tree in (params, rest))
    language = type(nnx.merge(graph, params, rest).PaliGemma.llm)

    def run(params: Any, inputs: Mapping[str, Any]) -> Any:
        outputs: list[Any] = []
        with mock.patch.object(language, "__call__", spied(language.__call__, outputs)):
            loss = call(nnx.merge(graph, params, rest), **inputs)
        return jnp.concatenate([loss.ravel(), outputs[-1].ravel()]) if has_prefix else loss

    class Original(torch.nn.Module):
        """The PyTorch program, which draws neither noise nor time, and augments no images."""

        def __init__(self) -> None:
            super().__init__()
            self.model = models.pi0_pytorch.PI0Pytorch(config)

        def forward(self, images: Any, prompt: Any, state: Any, actions: Any, noise: Any, beta: Any) -> torch.Tensor:
            outputs: list[Any] = []
            seen = types.SimpleNamespace(
                images=dict(zip(names, images, strict=True)), state=state, tokenized_prompt=prompt,
                image_masks={name: torch.from_numpy(mask) for name, mask in zip(names, masks, strict=True)},
                tokenized_prompt_mask=torch.from_numpy(prompt_mask), token_ar_mask=None, token_loss_mask=None,
            )  # fmt: skip
            preprocess, both = self.model._preprocess_observation, self.model.paligemma_with_expert
            with (
                mock.patch.object(models.pi0_pytorch, "sample_beta", return_value=beta),
                mock.patch.object(
                    self.model, "_preprocess_observation", lambda seen, train: preprocess(seen, train=False)
                ),
                mock.patch.object(both, "forward", spied(both.forward, outputs)),
            ):
                loss = self.model(seen, actions, noise).mean(-1)
            return torch.cat([loss.flatten(), outputs[-1].flatten()]) if has_prefix else loss

    inputs = {
        "images": rng.uniform(-1, 1, (3, 1, 3, SIZE, SIZE)).astype(np.float32),
        "prompt": rng.integers(0, VOCABULARY, (1, TOKENS)).astype(np.int32),
        "state": rng.normal(size=(1, ACTIONS[1])).astype(np.float32),
        "actions": rng.normal(size=(1, *ACTIONS)).astype(np.float32),
        "noise": rng.normal(size=(1, *ACTIONS)).astype(np.float32),
        "beta": np.array([0.3], np.float32),
    }
    return Made(Side(run, params=params, name="Pi0"), Original().eval(), inputs, call)


def use_replaced_files() -> None:
    """Makes Python read openpi's files in place of those of transformers."""
    folder = Path(importlib.import_module("openpi").__path__[0]) / "models_pytorch" / "transformers_replace" / "models"
    for family in ("gemma", "paligemma", "siglip"):
        path = importlib.import_module(f"transformers.models.{family}").__path__
        if str(folder / family) not in path:
            path.insert(0, str(folder / family))


def small() -> types.SimpleNamespace:
    """Returns openpi's modules, which make small models now."""
    jaxtyping.config.update("jaxtyping_disable", True)  # openpi's checks walk the stack at every call
    folders = {
        "models": ("gemma", "model", "pi0_config", "siglip"),
        "models_pytorch": ("gemma_pytorch", "pi0_pytorch", "preprocessing_pytorch"),
    }
    found = {
        name: importlib.import_module(f"openpi.{folder}.{name}") for folder, names in folders.items() for name in names
    }
    models = types.SimpleNamespace(**found)
    models.gemma.get_config = lambda variant: models.gemma.Config(
        width=WIDTH[variant], depth=2, mlp_dim=48, num_heads=8, num_kv_heads=1, head_dim=4
    )
    models.gemma.PALIGEMMA_VOCAB_SIZE = VOCABULARY
    models.siglip.decode_variant = lambda variant: dict(VISION)
    models.model.IMAGE_RESOLUTION = (SIZE, SIZE)
    for preprocess in (
        models.model.preprocess_observation, models.preprocessing_pytorch.preprocess_observation_pytorch
    ):  # fmt: skip
        preprocess.__kwdefaults__["image_resolution"] = (SIZE, SIZE)
    models.gemma_pytorch.PaliGemmaForConditionalGeneration = language_model
    models.gemma_pytorch.GemmaForCausalLM = expert
    return models


def language_model(config: Any) -> torch.nn.Module:
    vision = {
        "hidden_size": VISION["width"], "num_hidden_layers": VISION["depth"], "intermediate_size": VISION["mlp_dim"],
        "num_attention_heads": VISION["num_heads"], "patch_size": 14, "image_size": SIZE,
        "projection_dim": WIDTH["language"],
    }  # fmt: skip
    config.vision_config.update(vision)
    config.text_config.vocab_size = VOCABULARY
    return transformers.PaliGemmaForConditionalGeneration(config)


def expert(config: Any) -> torch.nn.Module:
    config.vocab_size = VOCABULARY
    return transformers.GemmaForCausalLM(config)


def drawn(rng: np.random.Generator, leaf: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key(0)
    return jnp.asarray(rng.normal(size=leaf.shape) / 5, leaf.dtype)


def spied(function: Any, outputs: list[Any]) -> Any:
    """Returns a function that also keeps what the language model returns for the prefix."""

    def run(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if isinstance(result, (tuple, list)) and isinstance(result[0], (tuple, list)):
            outputs.append(result[0][0])
        return result

    return run
