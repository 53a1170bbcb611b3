"""Programs of other JAX repositories and their PyTorch originals, small, as two sides of a proof.

Each function here makes one pair: it constructs both programs and their inputs. `call`, where there is one, is what had
to be written to call the JAX program on these inputs, since it takes caches, positions or masks, or images that end
with channels; its lines are counted.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from flax import nnx
from pairs import GROUPED, SENTENCES, T5, TOKENS, TWO_STACKS, VISION, VOCABULARY, pixels

from jax_transformer.parity import Side

IDS = {"input_ids": TOKENS["input_ids"]}
ROWS, LENGTH = IDS["input_ids"].shape
PATCHES = {"patch_size": (8, 8)}


@dataclass(frozen=True)
class Made:
    """A pair that is made: both programs, and their inputs."""

    candidate: Any
    reference: torch.nn.Module
    inputs: Mapping[str, np.ndarray]
    call: Callable[..., Any] | None = None
    twin: Made | None = None
    """The same two programs with settings for which they are one function. The map that is found of them is given."""

    @property
    def lines(self) -> int:
        """Returns how many lines were written beside constructors and inputs."""
        return 0 if self.call is None else len(inspect.getsource(self.call).strip().splitlines()) - 1


@dataclass(frozen=True)
class School:
    """A program of another repository."""

    source: str
    original: str
    make: Callable[[], Made]
    original_source: str = ""
    """The repository of the original, if it is one of `SOURCES`."""

    @property
    def name(self) -> str:
        return self.make.__name__


SCHOOLS: dict[str, School] = {}


def program(
    source: str, original: str, original_source: str = ""
) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Registers a function that makes a pair."""

    def register(make: Callable[[], Made]) -> Callable[[], Made]:
        SCHOOLS[make.__name__] = School(source, original, make, original_source)
        return make

    return register


def original(model: str, config: str, **sizes: Any) -> torch.nn.Module:
    """Returns a PyTorch module of transformers."""
    made = getattr(transformers, config)(**sizes)
    made._attn_implementation = "eager"
    torch.manual_seed(0)
    return getattr(transformers, model)(made).eval()


def of_nnx(module: nnx.Module, call: Callable[..., Any]) -> Side:
    """Returns an NNX module that a function calls."""
    graph, params, rest = nnx.split(module, nnx.Param, ...)

    def run(params: Any, inputs: Mapping[str, Any]) -> Any:
        return call(nnx.merge(graph, params, rest), **inputs)

    return Side(run, params=params, name=type(module).__name__)


def of_linen(module: Any, *arguments: Any, call: Callable[..., Any] | None = None, **options: Any) -> Side:
    """Returns a Linen module with variables, that a function calls: on a function that applies the module."""
    variables = module.init(jax.random.key(0), *arguments, **options)
    if call is None:
        return Side(module, params=variables)

    def run(variables: Any, inputs: Mapping[str, Any]) -> Any:
        return call(lambda *args, **kwargs: module.apply(variables, *args, **kwargs), **inputs)

    return Side(run, params=variables, name=type(module).__name__)


def positions() -> jax.Array:
    return jnp.broadcast_to(jnp.arange(LENGTH), (ROWS, LENGTH))


def causal() -> jax.Array:
    return jnp.broadcast_to(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), (ROWS, LENGTH, LENGTH))


# --- bonsai


@program("bonsai", "Qwen3ForCausalLM")
def bonsai_qwen3() -> Made:
    from bonsai.models.qwen3 import modeling

    config = modeling.ModelConfig(2, VOCABULARY, 32, 48, 4, 8, 2, 1_000_000, 8.0, 1e4, 1e-6, False)
    sizes = {**GROUPED, "head_dim": 8, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}

    def call(model: Any, input_ids: Any) -> Any:
        cache = modeling.init_cache(config, *input_ids.shape, 0, dtype=jnp.float32)
        return model(input_ids, cache=cache, segment_ids=jnp.ones_like(input_ids))

    module = modeling.Qwen3(config, rngs=nnx.Rngs(0))
    return Made(of_nnx(module, call), original("Qwen3ForCausalLM", "Qwen3Config", **sizes), IDS, call)


def gemma3(width: int) -> Made:
    from bonsai.models.gemma3 import modeling

    vision = modeling.VisionConfig(0.0, 32, 16, 48, 1e-6, 4, 3, 1, 8, False)
    modes = [modeling.AttentionMode.SLIDE, modeling.AttentionMode.FULL]
    rotary = {"rope_full_factor": 8.0, "rope_full_theta": 1e6, "rope_slide_factor": 1.0, "rope_slide_theta": 1e4}
    text = modeling.TextConfig(
        False, 0.0, 8, width, 48, modes, 32, 4, 2, 2, 1e-6, *rotary.values(), 3, VOCABULARY, jnp.float32
    )
    config = modeling.ModelConfig(vision, text, 4, "float32", None)
    sizes = {
        **GROUPED, "hidden_size": width, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention"], "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }  # fmt: skip

    def call(model: Any, input_ids: Any) -> Any:
        cache = modeling.init_cache(config, *input_ids.shape, 0, dtype=jnp.float32)
        ones = jnp.ones_like(input_ids)
        return model(input_ids, None, cache=cache, segment_ids=ones, token_type_ids=0 * ones)

    module = modeling.Gemma3Model(config, rngs=nnx.Rngs(0))
    return Made(of_nnx(module, call), original("Gemma3ForCausalLM", "Gemma3TextConfig", **sizes), IDS, call)


@program("bonsai", "Gemma3ForCausalLM")
def bonsai_gemma3() -> Made:
    return gemma3(32)


@program("bonsai", "Gemma3ForCausalLM, width 64, the root of which is exact")
def bonsai_gemma3_64() -> Made:
    return gemma3(64)


@program("bonsai", "UMT5Model")
def bonsai_umt5() -> Made:
    from bonsai.models.umt5 import modeling

    module = modeling.UMT5Model(modeling.ModelConfig(**T5), rngs=nnx.Rngs(0))
    module.eval()
    reference = original("UMT5Model", "UMT5Config", **T5)
    masks = {name: np.ones_like(ids) for name, ids in SENTENCES.items()}
    inputs = {
        "input_ids": SENTENCES["input_ids"], "attention_mask": masks["input_ids"],
        "decoder_input_ids": SENTENCES["decoder_input_ids"], "decoder_attention_mask": masks["decoder_input_ids"],
    }  # fmt: skip
    return Made(module, reference, inputs)


def vit(activation: str) -> Made:
    from bonsai.models.vit import modeling

    config = modeling.ModelConfig((16, 16), (8, 8), 3, 32, 0.0, 0.0, 4, 48, 1e-12, 2, 2)

    def call(model: Any, pixel_values: Any) -> Any:
        return model(pixel_values.transpose(0, 2, 3, 1), rngs=None)

    module = modeling.ViTClassificationModel(config, rngs=nnx.Rngs(0))
    reference = original("ViTForImageClassification", "ViTConfig", **VISION, hidden_act=activation)
    return Made(of_nnx(module, call), reference, pixels(16), call)


@program("bonsai", "ViTForImageClassification")
def bonsai_vit() -> Made:
    return replace(vit("gelu"), twin=vit("gelu_pytorch_tanh"))


@program("bonsai", "ViTForImageClassification, hidden_act=gelu_pytorch_tanh")
def bonsai_vit_tanh() -> Made:
    return vit("gelu_pytorch_tanh")


@program("bonsai", "DINOv3ViTModel")
def bonsai_dinov3() -> Made:
    from bonsai.models.dinov3 import modeling

    sizes = {name: size for name, size in VISION.items() if name != "patch_size"}
    module = modeling.Dinov3ViTModel(modeling.ModelConfig(**PATCHES, **sizes), nnx.Rngs(0))
    return Made(module, original("DINOv3ViTModel", "DINOv3ViTConfig", **VISION, num_register_tokens=4), pixels(16))


@program("bonsai", "WhisperModel")
def bonsai_whisper() -> Made:
    from bonsai.models.whisper import modeling

    sizes = {**TWO_STACKS, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16}
    for name in ("max_position_embeddings", "forced_eos_token_id"):
        del sizes[name]
    own = {name: size for name, size in sizes.items() if name in inspect.signature(modeling.ModelConfig).parameters}
    config = modeling.ModelConfig(**{**vars(modeling.ModelConfig.whisper_tiny()), **own, "max_length": 16})

    def call(model: Any, input_features: Any, decoder_input_ids: Any) -> Any:
        encoded = model.encoder(input_features.transpose(0, 2, 1))
        mask = nnx.make_causal_mask(decoder_input_ids)
        return model.decoder(decoder_input_ids, mask, encoded, None, decode=False)

    module = modeling.Whisper(config, rngs=nnx.Rngs(0))
    features = np.random.default_rng(0).normal(size=(2, 8, 20)).astype(np.float32)
    inputs = {"input_features": features, "decoder_input_ids": SENTENCES["decoder_input_ids"]}
    return Made(of_nnx(module, call), original("WhisperModel", "WhisperConfig", **sizes), inputs, call)


@program("bonsai", "ConvNextForImageClassification")
def bonsai_convnext() -> Made:
    from bonsai.models.convnext import modeling

    config = modeling.ModelConfig((1, 1, 1, 1), (8, 8, 16, 16), 0.0, 2)
    sizes = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16]}

    def call(model: Any, pixel_values: Any) -> Any:
        return model(pixel_values.transpose(0, 2, 3, 1), rngs=None)

    module = modeling.ConvNeXt(config, rngs=nnx.Rngs(0))
    reference = original("ConvNextForImageClassification", "ConvNextConfig", **sizes)
    return Made(of_nnx(module, call), reference, pixels(32), call)


@program("bonsai", "Mamba2ForCausalLM")
def bonsai_mamba2() -> Made:
    from bonsai.models.mamba2 import modeling

    own = {"vocab_size": VOCABULARY, "hidden_size": 16, "state_size": 8, "head_dim": 8, "chunk_size": 8}
    sizes = {**own, "num_hidden_layers": 2, "num_heads": 4, "n_groups": 1, "tie_word_embeddings": True}
    module = modeling.Mamba2ForCausalLM(modeling.ModelConfig(**own, num_hidden_layers=2), rngs=nnx.Rngs(0))
    return Made(module, original("Mamba2ForCausalLM", "Mamba2Config", **sizes, expand=2), IDS)


@program("bonsai", "VJEPA2ForVideoClassification")
def bonsai_vjepa2() -> Made:
    from bonsai.models.vjepa2 import modeling

    sizes = {
        "patch_size": 8, "crop_size": 16, "frames_per_clip": 4, "hidden_size": 32, "num_attention_heads": 2,
        "num_hidden_layers": 2, "pred_hidden_size": 16, "pred_num_attention_heads": 1, "pred_num_hidden_layers": 1,
        "num_pooler_layers": 1,
    }  # fmt: skip

    def call(model: Any, pixel_values_videos: Any) -> Any:
        return model(pixel_values_videos.transpose(0, 1, 3, 4, 2))["logits"]

    inputs = {"pixel_values_videos": np.random.default_rng(0).normal(size=(1, 4, 3, 16, 16)).astype(np.float32)}
    module = modeling.VJEPA2ForVideoClassification(modeling.ModelConfig(**sizes, num_labels=2), nnx.Rngs(0))
    return Made(of_nnx(module, call), original("VJEPA2ForVideoClassification", "VJEPA2Config", **sizes), inputs, call)


def convolutional(name: str, make: Callable[[Any], Any], reference: torch.nn.Module, size: int) -> Made:
    """Returns a pair of networks that take images; bonsai's have batch statistics beside their weights."""

    def call(model: Any, pixel_values: Any) -> Any:
        return model(pixel_values.transpose(0, 2, 3, 1))

    module = make(nnx.Rngs(0))
    graph, params = nnx.split(module)

    def run(params: Any, inputs: Mapping[str, Any]) -> Any:
        return call(nnx.merge(graph, params), **inputs)

    return Made(Side(run, params=params, name=name), reference.eval(), pixels(size), call)


@program("bonsai", "ResNetForImageClassification")
def bonsai_resnet() -> Made:
    from bonsai.models.resnet import modeling

    sizes = {"depths": [1, 1, 1, 1], "num_labels": 2}
    reference = original("ResNetForImageClassification", "ResNetConfig", **sizes)
    config = modeling.ModelConfig([1, 1, 1, 1], 2)
    return convolutional("ResNet", lambda rngs: modeling.ResNet(config, rngs=rngs), reference, 32)


class KerasModel(torch.nn.Module):
    """A model of Keras whose variables are parameters and buffers, by their paths."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.run, self.variables = model.stateless_call, {}
        for kind, variables in (("trained", model.trainable_variables), ("untrained", model.non_trainable_variables)):
            for variable in variables:
                name = f"{kind}_{variable.path.replace('/', '_')}"
                value = torch.nn.Parameter(variable.value.detach().clone(), requires_grad=kind == "trained")
                self.register_parameter(name, value)
                self.variables.setdefault(kind, []).append(name)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        trained, untrained = (
            [getattr(self, name) for name in self.variables.get(kind, ())] for kind in ("trained", "untrained")
        )
        return self.run(trained, untrained, inputs, training=False)[0]


def keras_hub(make: Callable[[Any], Any], reference: Callable[[Any], Any], size: int) -> Made:
    """Returns a pair of networks that take images with channels last, the original of KerasHub run by PyTorch."""
    os.environ["KERAS_BACKEND"] = "torch"
    models = importlib.import_module("keras_hub").models

    def call(model: Any, inputs: Any) -> Any:
        return model(inputs)

    module = make(nnx.Rngs(0))
    graph, params = nnx.split(module)

    def run(params: Any, inputs: Mapping[str, Any]) -> Any:
        return call(nnx.merge(graph, params), **inputs)

    inputs = {"inputs": pixels(size)["pixel_values"].transpose(0, 2, 3, 1)}
    return Made(
        Side(run, params=params, name=type(module).__name__), KerasModel(reference(models)).eval(), inputs, call
    )


class Rectified(nnx.Conv):
    """A convolution with ReLU."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return nnx.relu(super().__call__(inputs))


def vgg19(is_mended: bool) -> Made:
    from bonsai.models.vgg19 import modeling

    config = modeling.ModelConfig(2, (1, 1, 1, 1, 1), (4, 4, 8, 8, 8, 16))

    def make(rngs: Any) -> Any:
        module = modeling.VGG(config, rngs=rngs)
        for layer in module.classifier.layers[: 2 * is_mended]:
            layer.__class__, layer.padding = Rectified, "VALID"
        return module

    def reference(models: Any) -> Any:
        backbone = models.VGGBackbone(config.block_layers, config.channels[:5], image_shape=(224, 224, 3))
        return models.VGGImageClassifier(backbone, 2, pooling_hidden_dim=16)

    return keras_hub(make, reference, 224)


@program("bonsai", "KerasHub VGGImageClassifier, run by PyTorch")
def bonsai_vgg19() -> Made:
    return replace(vgg19(is_mended=False), twin=vgg19(is_mended=True))


def densenet(is_mended: bool) -> Made:
    from bonsai.models.densenet121 import modeling

    config = modeling.ModelConfig(2, (1, 1, 1, 1), 32)

    def make(rngs: Any) -> Any:
        module = modeling.DenseNet(config, rngs=rngs)
        pool = module.init_pool
        module.init_pool = (lambda x: pool(nnx.relu(x))) if is_mended else pool
        return module

    def reference(models: Any) -> Any:
        sys.modules[models.DenseNetBackbone.__module__].BN_EPSILON = 1e-5 if is_mended else 1.001e-5
        backbone = models.DenseNetBackbone(config.dense_block_layers, growth_rate=32, image_shape=(32, 32, 3))
        return models.DenseNetImageClassifier(backbone, 2)

    return keras_hub(make, reference, 32)


@program("bonsai", "KerasHub DenseNetImageClassifier, run by PyTorch")
def bonsai_densenet121() -> Made:
    return replace(densenet(is_mended=False), twin=densenet(is_mended=True))


# --- EasyLM


def easylm(theta: float) -> Made:
    from EasyLM.models.llama.llama_model import FlaxLLaMAForCausalLM, LLaMAConfigurator

    sizes = {**GROUPED, "rope_theta": theta, "rms_norm_eps": 1e-6}
    config = LLaMAConfigurator.finalize_config(LLaMAConfigurator.get_default_config(sizes))
    model = FlaxLLaMAForCausalLM(config)

    def call(params: Any, inputs: Mapping[str, Any]) -> Any:
        return model(params=params, **inputs, position_ids=positions()).logits

    side = Side(call, params=model.params, name="FlaxLLaMAForCausalLM")
    return Made(side, original("LlamaForCausalLM", "LlamaConfig", **sizes), IDS, call)


@program("EasyLM", "LlamaForCausalLM")
def easylm_llama() -> Made:
    return easylm(1e4)


@program("EasyLM", "LlamaForCausalLM, rope_theta=5e5 as in its llama3_8b")
def easylm_llama3() -> Made:
    return replace(easylm(5e5), twin=easylm(1e4))


# --- Flax's examples


@program("flax", "writings.Translator")
def flax_wmt() -> Made:
    from wmt import models
    from writings import Translator

    config = models.TransformerConfig(
        VOCABULARY, VOCABULARY, share_embeddings=True, logits_via_embedding=True, emb_dim=32, num_heads=4,
        num_layers=2, qkv_dim=32, mlp_dim=48, max_len=16, deterministic=True,
    )  # fmt: skip
    inputs = {"inputs": SENTENCES["input_ids"], "targets": SENTENCES["decoder_input_ids"]}
    side = of_linen(models.Transformer(config), *inputs.values())
    return Made(side, Translator(VOCABULARY, 32, 4, 48, 2, 16).eval(), inputs)


@program("flax", "GemmaForCausalLM")
def flax_gemma() -> Made:
    import sys

    sys.path.insert(0, f"{sys.path[0]}/gemma")
    import modules
    import transformer
    import transformer_cfg

    types = [modules.AttentionType.GLOBAL] * 2
    config = transformer_cfg.TransformerConfig(2, VOCABULARY, 32, 48, 4, 8, 2, None, False, False, types)

    def call(model: Any, input_ids: Any) -> Any:
        return model(input_ids, positions(), None, causal())[0]

    module = transformer.Transformer(config, rngs=nnx.Rngs(0))
    reference = original("GemmaForCausalLM", "GemmaConfig", **GROUPED, head_dim=8)
    return Made(of_nnx(module, call), reference, IDS, call)


# --- T5X


def t5x_pair(network: Any, **options: Any) -> Made:
    config = network.T5Config(VOCABULARY, emb_dim=32, num_heads=4, num_encoder_layers=2, num_decoder_layers=2,
                              head_dim=8, mlp_dim=48, mlp_activations=("gelu", "linear"), **options)  # fmt: skip
    reference = original(
        "T5ForConditionalGeneration", "T5Config", **T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False
    )

    def call(apply: Any, input_ids: Any, decoder_input_ids: Any) -> Any:
        targets = jnp.ones_like(decoder_input_ids)
        return apply(input_ids, decoder_input_ids, targets, enable_dropout=False)

    ids = [jnp.asarray(one) for one in SENTENCES.values()]
    side = of_linen(network.Transformer(config), *ids, jnp.ones_like(ids[1]), enable_dropout=False, call=call)
    return Made(side, reference, SENTENCES, call)


@program("t5x", "T5ForConditionalGeneration")
def t5x_t5() -> Made:
    from t5x.examples.t5 import network

    return t5x_pair(network)


@program("t5x", "T5ForConditionalGeneration")
def t5x_scalable_t5() -> Made:
    from t5x.examples.scalable_t5 import network

    return t5x_pair(network, scan_layers=True)


# --- big_vision


def of_images(module: Any, reference: torch.nn.Module, name: str = "x", size: int = 16) -> Made:
    def call(apply: Any, **images: Any) -> Any:
        return apply(images[name].transpose(0, 2, 3, 1))[0]

    inputs = {name: pixels(size)["pixel_values"]}
    return Made(of_linen(module, jnp.zeros((2, size, size, 3)), call=call), reference.eval(), inputs, call)


VIT = {"patch_size": (8, 8), "width": 32, "depth": 2, "mlp_dim": 48, "num_heads": 4}


def timm_vit(**options: Any) -> torch.nn.Module:
    import timm

    return timm.models.vision_transformer.VisionTransformer(
        img_size=16, patch_size=8, embed_dim=32, depth=2, num_heads=4, mlp_ratio=1.5, num_classes=5,
        act_layer="gelu_tanh", **options,
    )  # fmt: skip


@program("big_vision", "timm VisionTransformer, as vit_*_siglip")
def big_vision_vit_map() -> Made:
    from big_vision.models import vit

    return of_images(vit.Model(5, **VIT, pool_type="map"), timm_vit(class_token=False, global_pool="map"))


@program("big_vision", "timm VisionTransformer, as vit_*_gap")
def big_vision_vit_gap() -> Made:
    from big_vision.models import vit

    reference = timm_vit(class_token=False, global_pool="avg", fc_norm=False)
    return of_images(vit.Model(5, **VIT, pool_type="gap", scan=True), reference)


@program("big_vision", "SiglipVisionModel")
def big_vision_siglip() -> Made:
    from big_vision.models import vit

    reference = original("SiglipVisionModel", "SiglipVisionConfig", **VISION)
    reference.vision_model.head = None
    reference.vision_model.use_head = False
    return of_images(vit.Model(None, **VIT, pool_type="none"), reference, "pixel_values")


@program("big_vision", "timm MlpMixer")
def big_vision_mixer() -> Made:
    import timm
    from big_vision.models import mlp_mixer

    reference = timm.models.mlp_mixer.MlpMixer(
        num_classes=5, img_size=16, patch_size=8, num_blocks=2, embed_dim=32, mlp_ratio=(0.5, 4.0)
    )
    module = mlp_mixer.Model(5, patch_size=(8, 8), num_blocks=2, hidden_dim=32, tokens_mlp_dim=16, channels_mlp_dim=128)
    return of_images(module, reference)


class Half(int):
    """A width factor of one half: `ResNetV2` only multiplies whole numbers by it."""

    def __rmul__(self, other: int) -> int:
        return other // 2


def bit(root: tuple[torch.nn.Module, torch.nn.Module] | None = None) -> Made:
    from big_vision.models import bit_paper
    from bit_pytorch.models import ResNetV2

    reference = ResNetV2([1, 1, 1, 1], Half(), head_size=5)
    if root is not None:
        reference.root.pad, reference.root.pool = root
    return of_images(bit_paper.Model(5, depth=(1, 1, 1, 1), width=0.5), reference, size=32)


@program("big_vision", "bit_pytorch of github.com/google-research/big_transfer", "big_transfer")
def big_vision_bit() -> Made:
    return replace(bit(), twin=big_vision_bit_padded())


@program("big_vision", "bit_pytorch, with the max pooling that its comment advises against", "big_transfer")
def big_vision_bit_padded() -> Made:
    return bit((torch.nn.Identity(), torch.nn.MaxPool2d(3, 2, padding=1)))


# --- tunix


def of_tunix(module: nnx.Module, reference: torch.nn.Module) -> Made:
    def call(model: Any, input_ids: Any) -> Any:
        return model(input_ids, positions(), None, causal())[0]

    return Made(of_nnx(module, call), reference, IDS, call)


TUNIX = {"num_layers": 2, "vocab_size": VOCABULARY, "embed_dim": 32, "hidden_dim": 48, "num_heads": 4, "head_dim": 8}
TUNIX = {**TUNIX, "num_kv_heads": 2, "norm_eps": 1e-5}
NOT_TIED = {**GROUPED, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}


def rotary_tunix(family: str, theta: int, **sizes: Any) -> Made:
    model = importlib.import_module(f"tunix.models.{family}.model")
    kind = {"llama3": "Llama3", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    module = getattr(model, kind)(model.ModelConfig(**{**TUNIX, "rope_theta": theta}), rngs=nnx.Rngs(0))
    name = kind.removesuffix("3") if family == "llama3" else kind
    return of_tunix(module, original(f"{name}ForCausalLM", f"{name}Config", **NOT_TIED, rope_theta=theta, **sizes))


@program("tunix", "LlamaForCausalLM, rope_theta=5e5 as in its llama3p1_8b")
def tunix_llama3() -> Made:
    return replace(rotary_tunix("llama3", 500_000), twin=rotary_tunix("llama3", 1_000_000))


@program("tunix", "LlamaForCausalLM, rope_theta=1e6")
def tunix_llama3_1e6() -> Made:
    return rotary_tunix("llama3", 1_000_000)


@program("tunix", "Qwen2ForCausalLM")
def tunix_qwen2() -> Made:
    return rotary_tunix("qwen2", 1_000_000)


@program("tunix", "Qwen3ForCausalLM")
def tunix_qwen3() -> Made:
    return rotary_tunix("qwen3", 1_000_000, head_dim=8)


GEMMA = {"num_layers": 2, "num_embed": VOCABULARY, "embed_dim": 32, "hidden_dim": 48, "num_heads": 4, "head_dim": 8}
GEMMA = {**GEMMA, "num_kv_heads": 2}


@program("tunix", "GemmaForCausalLM")
def tunix_gemma() -> Made:
    from tunix.models.gemma import model

    types = (model.AttentionType.GLOBAL,) * 2
    config = model.ModelConfig(
        **GEMMA, final_logit_softcap=None, use_post_attn_norm=False, use_post_ffw_norm=False, attention_types=types
    )
    module = model.Gemma(config, rngs=nnx.Rngs(0))
    return of_tunix(module, original("GemmaForCausalLM", "GemmaConfig", **GROUPED, head_dim=8))


@program("tunix", "Gemma2ForCausalLM")
def tunix_gemma2() -> Made:
    from tunix.models.gemma import model

    types = (model.AttentionType.LOCAL_SLIDING, model.AttentionType.GLOBAL)
    config = model.ModelConfig(
        **GEMMA, final_logit_softcap=30.0, use_post_attn_norm=True, use_post_ffw_norm=True, attention_types=types,
        attn_logits_soft_cap=50.0, sliding_window_size=3,
    )  # fmt: skip
    sizes = {**GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 3}
    return of_tunix(model.Gemma(config, rngs=nnx.Rngs(0)), original("Gemma2ForCausalLM", "Gemma2Config", **sizes))


GEMMA3 = {
    **GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 3, "rope_theta": 1e6,
    "rope_local_base_freq": 1e4, "layer_types": ["sliding_attention"] * 5 + ["full_attention"], "num_hidden_layers": 6,
}  # fmt: skip


@program("tunix", "Gemma3ForCausalLM")
def tunix_gemma3() -> Made:
    from tunix.models.gemma3 import model

    config = model.ModelConfig(
        **{**GEMMA, "num_layers": 6}, sliding_window_size=3, global_base_frequency=1_000_000, param_dtype=jnp.float32
    )
    reference = original("Gemma3ForCausalLM", "Gemma3TextConfig", **GEMMA3)
    return of_tunix(model.Gemma3(config, rngs=nnx.Rngs(0)), reference)


# --- gemma


def deepmind(reference: torch.nn.Module, **options: Any) -> Made:
    from gemma.gm.nn import _config, _transformer

    sizes = {name: size for name, size in GEMMA.items() if name != "num_layers"}

    class Small(_transformer.Transformer):
        config: Any = _config.TransformerConfig(**sizes, **options)

    def call(apply: Any, input_ids: Any) -> Any:
        return apply(input_ids).logits

    side = of_linen(Small(dtype=jnp.float32, tokens="tokens"), jnp.asarray(IDS["input_ids"]), call=call)
    return Made(side, reference, IDS, call)


@program("gemma", "GemmaForCausalLM")
def gemma_gemma() -> Made:
    from gemma.gm.nn import _modules

    options = {"final_logit_softcap": None, "use_post_attn_norm": False, "use_post_ffw_norm": False}
    types = (_modules.AttentionType.GLOBAL,) * 2
    reference = original("GemmaForCausalLM", "GemmaConfig", **GROUPED, head_dim=8)
    return deepmind(reference, **options, attention_types=types)


@program("gemma", "Gemma3ForCausalLM")
def gemma_gemma3() -> Made:
    from gemma.gm.nn import _modules

    types = (_modules.AttentionType.LOCAL_SLIDING, _modules.AttentionType.GLOBAL)
    options = {
        "final_logit_softcap": None, "use_post_attn_norm": True, "use_post_ffw_norm": True, "use_qk_norm": True,
        "sliding_window_size": 3, "local_base_frequency": 10_000, "global_base_frequency": 1_000_000,
    }  # fmt: skip
    sizes = {**GEMMA3, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    reference = original("Gemma3ForCausalLM", "Gemma3TextConfig", **sizes)
    return deepmind(reference, **options, attention_types=types)


# --- openpi


@program("openpi", "SiglipVisionModel")
def openpi_siglip() -> Made:
    from openpi.models import siglip as own

    reference = original("SiglipVisionModel", "SiglipVisionConfig", **VISION)
    reference.vision_model.head = None
    reference.vision_model.use_head = False
    return of_images(own.Module(None, **VIT, pool_type="none", scan=True), reference, "pixel_values")


def pi0(*, is_pi05: bool) -> Made:
    from pi0 import pair

    return replace(pair(is_pi05=is_pi05, has_prefix=False), twin=pair(is_pi05=is_pi05, has_prefix=True))


@program("openpi", "PI0Pytorch with pi05=False, transformers 4.53.2")
def openpi_pi0() -> Made:
    return pi0(is_pi05=False)


@program("openpi", "PI0Pytorch with pi05=True, transformers 4.53.2")
def openpi_pi05() -> Made:
    return pi0(is_pi05=True)
