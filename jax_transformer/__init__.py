"""Train an encoder-decoder Transformer in JAX, and prove that it is the same function as the PyTorch one.

```python
import jax_transformer as jt
```

Names load when they are first used, so that `import jax_transformer` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.compiler_flags import keep_products_apart
from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer import config, data, decoding, forecasting, parallel, parity, porting, speech, training
    from jax_transformer.config.data import DataConfig
    from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
    from jax_transformer.config.lora import LoraConfig
    from jax_transformer.config.model import TransformerConfig
    from jax_transformer.config.parallel import ParallelConfig
    from jax_transformer.config.run import RunConfig, TrainConfig
    from jax_transformer.decoding.generation import generate
    from jax_transformer.decoding.scoring import score
    from jax_transformer.decoding.translation import translate
    from jax_transformer.forecasting.prediction import forecast
    from jax_transformer.frozen.record import Frozen
    from jax_transformer.model.features import Features
    from jax_transformer.model.functional import (
        apply,
        decode,
        decode_step,
        encode,
        init_params,
        join_constants,
        split_constants,
        start_decoding,
    )
    from jax_transformer.model.module import Transformer
    from jax_transformer.parity.api import compare
    from jax_transformer.parity.freezing import freeze
    from jax_transformer.parity.proofs.api import assert_same, prove
    from jax_transformer.porting.exporting import export_checkpoint
    from jax_transformer.porting.importing import import_checkpoint
    from jax_transformer.speech.transcription import transcribe
    from jax_transformer.storage.added_tokens import add_tokens
    from jax_transformer.storage.model_directory import Model, load_model, save_model
    from jax_transformer.storage.model_tokenizers import with_tokenizers
    from jax_transformer.training.loop import train
    from jax_transformer.training.state import init_state
    from jax_transformer.training.step import make_train_step

keep_products_apart()

__version__ = "0.1.0"
__all__ = [
    "DataConfig",
    "DecodingConfig",
    "Features",
    "Frozen",
    "GenerationConfig",
    "LoraConfig",
    "Model",
    "ParallelConfig",
    "RunConfig",
    "TrainConfig",
    "Transformer",
    "TransformerConfig",
    "add_tokens",
    "apply",
    "assert_same",
    "compare",
    "config",
    "data",
    "decode",
    "decode_step",
    "decoding",
    "encode",
    "export_checkpoint",
    "forecast",
    "forecasting",
    "freeze",
    "generate",
    "import_checkpoint",
    "init_params",
    "init_state",
    "join_constants",
    "load_model",
    "make_train_step",
    "parallel",
    "parity",
    "porting",
    "prove",
    "save_model",
    "score",
    "speech",
    "split_constants",
    "start_decoding",
    "train",
    "training",
    "transcribe",
    "translate",
    "with_tokenizers",
]
SUBPACKAGES = ("config", "data", "decoding", "forecasting", "parallel", "parity", "porting", "speech", "training")
_HOMES = {
    "jax_transformer.config.data": ("DataConfig",),
    "jax_transformer.config.decoding": ("DecodingConfig", "GenerationConfig"),
    "jax_transformer.config.lora": ("LoraConfig",),
    "jax_transformer.config.model": ("TransformerConfig",),
    "jax_transformer.config.parallel": ("ParallelConfig",),
    "jax_transformer.config.run": ("RunConfig", "TrainConfig"),
    "jax_transformer.decoding.generation": ("generate",),
    "jax_transformer.decoding.scoring": ("score",),
    "jax_transformer.decoding.translation": ("translate",),
    "jax_transformer.model.features": ("Features",),
    "jax_transformer.model.functional": (
        "apply",
        "decode",
        "decode_step",
        "encode",
        "init_params",
        "join_constants",
        "split_constants",
        "start_decoding",
    ),
    "jax_transformer.model.module": ("Transformer",),
    "jax_transformer.forecasting.prediction": ("forecast",),
    "jax_transformer.frozen.record": ("Frozen",),
    "jax_transformer.parity.api": ("compare",),
    "jax_transformer.parity.freezing": ("freeze",),
    "jax_transformer.parity.proofs.api": ("assert_same", "prove"),
    "jax_transformer.porting.exporting": ("export_checkpoint",),
    "jax_transformer.porting.importing": ("import_checkpoint",),
    "jax_transformer.speech.transcription": ("transcribe",),
    "jax_transformer.storage.added_tokens": ("add_tokens",),
    "jax_transformer.storage.model_directory": ("Model", "load_model", "save_model"),
    "jax_transformer.storage.model_tokenizers": ("with_tokenizers",),
    "jax_transformer.training.loop": ("train",),
    "jax_transformer.training.state": ("init_state",),
    "jax_transformer.training.step": ("make_train_step",),
}
__getattr__, __dir__ = lazy_exports(__name__, _HOMES, SUBPACKAGES)
