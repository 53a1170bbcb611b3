"""Files that fairseq itself writes for BART, M2M-100 and NLLB: the head has another name, and there are numbers
that no program needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from jax_transformer import apply, import_checkpoint
from jax_transformer.porting import export_checkpoint

SIZES: dict[str, Any] = {
    "vocab_size": 37,
    "d_model": 16,
    "max_position_embeddings": 24,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 20),
}
HINTS: dict[str, Any] = {
    "num_heads": 2,
    "decoder_num_heads": 2,
    "source_pad_id": 1,
    "target_pad_id": 1,
    "scale_embedding": False,
    "activation": "gelu",
    "share_embeddings": True,
    "max_length": 24,
}
FAMILIES = {
    "bart": (transformers.BartForConditionalGeneration, transformers.BartConfig),
    "m2m_100": (transformers.M2M100ForConditionalGeneration, transformers.M2M100Config),
}


def made(family: str, folder: Path, *, is_tied: bool) -> tuple[Any, dict[str, torch.Tensor], Path]:
    """Returns a model of transformers, its tensors by fairseq's names, and a file of them."""
    torch.manual_seed(0)
    module_class, config_class = FAMILIES[family]
    config = config_class(**SIZES, activation_function="gelu", scale_embedding=False)
    module = module_class(config).eval()
    if not is_tied:
        module.lm_head.weight = torch.nn.Parameter(0.1 * torch.randn_like(module.lm_head.weight))
    left_out = ("shared.weight", "lm_head.weight", "final_logits_bias", "embed_positions.weights")
    held = {
        name.removeprefix("model."): tensor.clone()
        for name, tensor in module.state_dict().items()
        if not name.endswith(left_out)
    }
    held["decoder.output_projection.weight"] = module.lm_head.weight.detach().clone()
    for stack in ("encoder", "decoder"):
        held[f"{stack}.version"] = torch.tensor([3.0])
        if family == "m2m_100":
            held[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
    torch.save({"args": None, "cfg": None, "model": held, "extra_state": {}}, folder / "fairseq.pt")
    return module, held, folder / "fairseq.pt"


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, is_tied: bool, tmp_path: Path) -> None:
    module, held, file = made(family, tmp_path, is_tied=is_tied)
    model = import_checkpoint(file, dialect=family, **HINTS)
    assert model.config.tie_head == is_tied
    source, target = (np.random.default_rng(0).integers(4, 37, (2, length)) for length in (9, 6))
    with torch.no_grad():
        expected = module(torch.tensor(source), decoder_input_ids=torch.tensor(target)).logits.numpy()
    np.testing.assert_allclose(apply(model.config, model.params, source, target), expected, atol=1e-6)

    export_checkpoint(model, tmp_path / "back.pt")
    back = torch.load(tmp_path / "back.pt")
    back = back.get("model", back)
    assert back.keys() == held.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in held.items())
