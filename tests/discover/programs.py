"""Small encoder-decoders in PyTorch, each written in another style."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SOURCE, TARGET, D, N, H, W, FF = 29, 31, 24, 4, 6, 5, 40


def sinusoids(rows: int, width: int) -> Tensor:
    position = torch.arange(rows, dtype=torch.float64)[:, None]
    angle = position / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class SequenceFirst(nn.Module):
    """torch.nn.Transformer in [T, B] layout, with masks that the caller makes and log-probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.src_tok = nn.Embedding(SOURCE, D)
        self.tgt_tok = nn.Embedding(TARGET, D)
        self.register_buffer("pe", sinusoids(64, D)[:, None].float())
        self.core = nn.Transformer(D, N, 2, 3, FF, 0.0, norm_first=True)
        self.generator = nn.Linear(D, TARGET)

    def forward(
        self, src: Tensor, tgt: Tensor, tgt_mask: Tensor, src_key_padding_mask: Tensor, tgt_key_padding_mask: Tensor
    ) -> Tensor:
        x = self.src_tok(src) * math.sqrt(D) + self.pe[: len(src)]
        y = self.tgt_tok(tgt) * math.sqrt(D) + self.pe[: len(tgt)]
        out = self.core(
            x,
            y,
            tgt_mask=tgt_mask,
            src_key_padding_mask=src_key_padding_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=src_key_padding_mask,
        )
        return F.log_softmax(self.generator(out), dim=-1)


class Functional(nn.Module):
    """No submodules: parameters in one dictionary, query, key and value in one tensor, einsum throughout."""

    def __init__(self, pad: int = 1) -> None:
        super().__init__()
        self.pad_id = pad
        weights = {"emb": torch.randn(SOURCE, D), "pos_e": torch.randn(40, D), "pos_d": torch.randn(36, D)}
        for stack, layers in (("e", 2), ("d", 2)):
            for i in range(layers):
                weights |= {f"{stack}{i}_qkv": torch.randn(3, N, D, H) / 4, f"{stack}{i}_o": torch.randn(N, H, D) / 4}
                weights |= {f"{stack}{i}_in": torch.randn(D, FF) / 5, f"{stack}{i}_out": torch.randn(FF, D) / 5}
                weights |= {f"{stack}{i}_n{k}": torch.rand(D) + 0.5 for k in range(2)}
                if stack == "d":
                    weights |= {f"d{i}_cq": torch.randn(D, D) / 4, f"d{i}_ckv": torch.randn(D, 2 * D) / 4}
                    weights |= {f"d{i}_co": torch.randn(D, D) / 4, f"d{i}_n2": torch.rand(D) + 0.5}
        self.p = nn.ParameterDict(weights)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.p[name]

    def positions(self, name: str, ids: Tensor) -> Tensor:
        return self.p[name][: ids.shape[1]]

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        scores = torch.einsum("bnqh,bnkh->bnqk", q, k) * H**-0.5
        weights = scores.masked_fill(hidden, -1e9).softmax(-1)
        return torch.einsum("bnqk,bnkh->bnqh", weights, v)

    def attend(self, x: Tensor, name: str, hidden: Tensor) -> Tensor:
        q, k, v = torch.einsum("btd,pndh->pbnth", x, self.p[f"{name}_qkv"])
        return torch.einsum("bnth,nhd->btd", self.mix(q, k, v, hidden), self.p[f"{name}_o"])

    def forward(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        p, pads = self.p, (source == self.pad_id)[:, None, None, :]
        x = p["emb"][source] + self.positions("pos_e", source)
        for i in range(2):
            x = self.norm(x + self.attend(x, f"e{i}", pads), f"e{i}_n0")
            x = self.norm(x + F.silu(x @ p[f"e{i}_in"]) @ p[f"e{i}_out"], f"e{i}_n1")
        y = p["emb"][target] + self.positions("pos_d", target)
        size = target.shape[1]
        later = torch.ones(size, size, dtype=torch.bool).triu(1) | (target == self.pad_id)[:, None, None, :]
        for i in range(2):
            y = self.norm(y + self.attend(y, f"d{i}", later), f"d{i}_n0")
            q = (y @ p[f"d{i}_cq"]).unflatten(-1, (N, H)).transpose(1, 2)
            k, v = (x @ p[f"d{i}_ckv"]).unflatten(-1, (2, N, H)).permute(2, 0, 3, 1, 4)
            y = self.norm(y + self.mix(q, k, v, pads).transpose(1, 2).flatten(2) @ p[f"d{i}_co"], f"d{i}_n2")
            y = self.norm(y + F.silu(y @ p[f"d{i}_in"]) @ p[f"d{i}_out"], f"d{i}_n1")
        return {"logits": self.logits(y)}

    def logits(self, y: Tensor) -> Tensor:
        return y @ self.p["emb"].T


class Head(nn.Module):
    """One head by itself, with values narrower than keys."""

    def __init__(self, most: float = math.inf) -> None:
        super().__init__()
        self.most = most
        self.q, self.k, self.v = nn.Linear(D, H), nn.Linear(D, H), nn.Linear(D, W)

    def forward(self, x: Tensor, y: Tensor, may: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(y).transpose(-2, -1) / math.sqrt(H)
        if self.most < math.inf:
            scores = torch.minimum(scores, torch.tensor(self.most, dtype=scores.dtype))
        return scores.masked_fill(~may, float("-inf")).softmax(-1) @ self.v(y)


class Heads(nn.Module):
    """Heads whose contexts are normed together."""

    def __init__(self, most: float = math.inf) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(most) for _ in range(N))
        self.norm, self.out = OwnNorm(N * W), nn.Linear(N * W, D)

    def forward(self, x: Tensor, y: Tensor, may: Tensor) -> Tensor:
        return self.out(self.norm(torch.cat([head(x, y, may) for head in self.heads], dim=-1)))


class OwnNorm(nn.Module):
    """A norm by deviation, unbiased, with epsilon outside of the root."""

    def __init__(self, size: int = D) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.shift


class SingleHeads(nn.Module):
    """Heads as modules, a feed-forward of convolutions, norms written out, positions computed as they are needed."""

    def __init__(self, odd: str = "") -> None:
        super().__init__()
        self.odd, self.src_pad_idx, self.trg_pad_idx = odd, 0, 0
        self.src, self.trg = nn.Embedding(SOURCE, D, padding_idx=0), nn.Embedding(TARGET, D, padding_idx=0)
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        for stack, count in ((self.encoder, 1), (self.decoder, 2)):
            for _ in range(2):
                attentions = nn.ModuleList(Heads(30.0 if odd == "most" else math.inf) for _ in range(count))
                convolutions = nn.ModuleList([nn.Conv1d(D, FF, 1), nn.Conv1d(FF, D, 1)])
                stack.append(
                    nn.ModuleList([attentions, convolutions, nn.ModuleList(OwnNorm() for _ in range(count + 1))])
                )
        self.ends = nn.ModuleList([OwnNorm(), OwnNorm()])
        self.head = nn.Linear(D, TARGET, bias=False)

    def feed_forward(self, x: Tensor, parts: Any) -> Tensor:
        hidden = parts[0](x.transpose(1, 2))
        hidden = torch.sin(hidden) if self.odd == "activation" else F.gelu(hidden)
        if self.odd == "clamp":
            hidden = hidden.clamp(max=50)
        return parts[1](hidden).transpose(1, 2)

    def embedded(self, ids: Tensor, table: nn.Embedding) -> Tensor:
        x = table(ids) * math.sqrt(D)
        return x + sinusoids(ids.shape[1], D).to(x.dtype)

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        real, past = (src != 0)[:, None, :], torch.ones(trg.shape[1], trg.shape[1], dtype=torch.bool).tril()
        near = real
        if self.odd == "window":
            column = torch.arange(src.shape[1])
            near = real & ((column[:, None] - column).abs() < 80)
        x, y = self.embedded(src, self.src), self.embedded(trg, self.trg)
        for (attention,), convolutions, norms in self.encoder:
            if self.odd == "threshold":
                x = torch.where(x > 90, 0 * x, x)
            h = norms[0](x)
            x = x + attention(h, h, near)
            x = x + self.feed_forward(norms[1](x), convolutions)
        x = self.ends[0](x)
        for (own, cross), convolutions, norms in self.decoder:
            h = norms[0](y)
            y = y + own(h, h, past & (trg != 0)[:, None, :])
            y = y + cross(norms[1](y), x, real)
            if self.odd == "gate":
                y = y * torch.sigmoid(y)
            y = y + self.feed_forward(norms[2](y), convolutions)
        return self.head(self.ends[1](y))


class Modern(nn.Module):
    """Rotary positions by complex numbers, grouped heads, a gated feed-forward, fused weights, softmax in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.pad_token_id = 2
        self.embed = nn.Embedding(SOURCE, D)
        self.stacks = nn.ModuleDict(
            {name: nn.ModuleList(self.layer(name) for _ in range(2)) for name in ("enc", "dec")}
        )
        self.last = nn.ModuleDict({name: nn.RMSNorm(D, eps=1e-6) for name in ("enc", "dec")})
        self.lm_head = nn.Linear(D, SOURCE, bias=False)
        self.lm_head.weight = self.embed.weight

    @staticmethod
    def layer(name: str) -> nn.ModuleDict:
        layer = nn.ModuleDict({"q": nn.Linear(D, D, bias=False), "kv": nn.Linear(D, D, bias=False)})
        layer.update({"o": nn.Linear(D, D, bias=False)})
        layer.update({"gate_up": nn.Linear(D, 2 * FF, bias=False), "down": nn.Linear(FF, D, bias=False)})
        layer.update({f"n{k}": nn.RMSNorm(D, eps=1e-6) for k in range(3 if name == "dec" else 2)})
        if name == "dec":
            layer.update({"cq": nn.Linear(D, D, bias=False), "ckv": nn.Linear(D, D, bias=False)})
            layer.update({"co": nn.Linear(D, D, bias=False)})
        return layer

    @staticmethod
    def rotate(x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * 5e5 ** -(torch.arange(0, H, 2).double() / H)
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
            torch.ones_like(angles), angles
        )
        return torch.view_as_real(turned).flatten(-2).type_as(x)

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
        k, v = (one.repeat_interleave(2, dim=1) for one in (k, v))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(H)
        scores = scores.masked_fill(~may, torch.finfo(scores.dtype).min)
        return (scores.float().softmax(-1).type_as(q) @ v).transpose(1, 2).flatten(2)

    def normed(self, layer: Any, name: str, x: Tensor) -> Tensor:
        """Returns queries or keys as they are projected; others may norm them."""
        return x

    def own(self, layer: Any, x: Tensor, may: Tensor) -> Tensor:
        q = layer["q"](x).unflatten(-1, (N, H)).transpose(1, 2)
        k, v = layer["kv"](x).unflatten(-1, (2, N // 2, H)).permute(2, 0, 3, 1, 4)
        q, k = (self.rotate(self.normed(layer, name, one)) for name, one in (("q_norm", q), ("k_norm", k)))
        return layer["o"](self.attend(q, k, v, may))

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> tuple[Tensor, ...]:
        real = (input_ids != 2)[:, None, None, :]
        x, y = self.embed(input_ids), self.embed(decoder_input_ids)
        for layer in self.stacks["enc"]:
            x = x + self.own(layer, layer["n0"](x), real)
            gate, up = layer["gate_up"](layer["n1"](x)).chunk(2, dim=-1)
            x = x + layer["down"](F.silu(gate) * up)
        x = self.last["enc"](x)
        size = decoder_input_ids.shape[1]
        past = torch.ones(size, size, dtype=torch.bool).tril() & (decoder_input_ids != 2)[:, None, None, :]
        for layer in self.stacks["dec"]:
            y = y + self.own(layer, layer["n0"](y), past)
            q = layer["cq"](layer["n1"](y)).unflatten(-1, (N, H)).transpose(1, 2)
            k, v = layer["ckv"](x).unflatten(-1, (2, N // 2, H)).permute(2, 0, 3, 1, 4)
            q, k = self.normed(layer, "cq_norm", q), self.normed(layer, "ck_norm", k)
            y = y + layer["co"](self.attend(q, k, v, real))
            gate, up = layer["gate_up"](layer["n2"](y)).chunk(2, dim=-1)
            y = y + layer["down"](F.silu(gate) * up)
        return (self.lm_head(self.last["dec"](y) * D**-0.5),)


class Distances(nn.Module):
    """One layer for all places, biases by distance, scaled residuals, unscaled attention and a leaky ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.src, self.tgt = nn.Embedding(SOURCE, D, padding_idx=0), nn.Embedding(TARGET, D, padding_idx=0)
        self.maps = nn.ParameterDict()
        for stack, kinds in (("e", "s"), ("d", "sc")):
            for kind in kinds:
                self.maps.update({f"{stack}{kind}{part}": torch.randn(D, D) / 5 for part in "qkvo"})
            self.maps.update({f"{stack}1": torch.randn(FF, D) / 5, f"{stack}2": torch.randn(D, FF) / 6})
            self.maps.update({f"{stack}b1": torch.randn(FF), f"{stack}b2": torch.randn(D)})
        self.norms = nn.ModuleDict({name: nn.LayerNorm(D) for name in ("es", "ef", "ds", "dc", "df")})
        self.bias = nn.ModuleDict({stack: nn.Embedding(8, N) for stack in "ed"})
        self.head = nn.Linear(D, TARGET, bias=False)

    def buckets(self, length: int, causal: bool) -> Tensor:
        offset = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        count, first = (8, 0) if causal else (4, (offset > 0).long() * 4)
        distance = (-offset).clamp(min=0) if causal else offset.abs()
        near = count // 2
        far = near + (torch.log(distance.clamp(min=1).float() / near) / math.log(20 / near) * (count - near)).long()
        return first + torch.where(distance < near, distance, far.clamp(max=count - 1))

    def attend(self, x: Tensor, y: Tensor, name: str, hidden: Tensor) -> Tensor:
        pairs = ((x, "q"), (y, "k"), (y, "v"))
        q, k, v = (F.linear(one, self.maps[name + part]).unflatten(-1, (N, H)).transpose(1, 2) for one, part in pairs)
        scores = q @ k.mT
        if name[1] == "s":
            stack = name[0]
            scores = scores + self.bias[stack](self.buckets(x.shape[1], stack == "d")).permute(2, 0, 1)
        mixed = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v
        return F.linear(mixed.transpose(1, 2).reshape(x.shape), self.maps[f"{name}o"])

    def feed_forward(self, x: Tensor, stack: str) -> Tensor:
        m = self.maps
        hidden = F.leaky_relu(F.linear(x, m[f"{stack}1"], m[f"{stack}b1"]), 0.2)
        return F.linear(hidden, m[f"{stack}2"], m[f"{stack}b2"])

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        pads = (source == 0)[:, None, None]
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1) | (target == 0)[:, None, None]
        x, y = 3.0 * self.src(source), 3.0 * self.tgt(target)
        for _ in range(2):
            x = self.norms["es"](1.5 * x + self.attend(x, x, "es", pads))
            x = self.norms["ef"](1.5 * x + self.feed_forward(x, "e"))
        for _ in range(3):
            y = self.norms["ds"](2.0 * y + self.attend(y, y, "ds", later))
            y = self.norms["dc"](2.0 * y + self.attend(y, x, "dc", pads))
            y = self.norms["df"](2.0 * y + self.feed_forward(y, "d"))
        return self.head(y)


class Parallel(nn.Module):
    """A layer whose sublayers read one norm side by side."""

    def __init__(self, decodes: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D, bias=False)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, FF, bias=False), nn.Linear(FF, D, bias=False)
        names = ["own", "ff", "cross"][: 3 if decodes else 2]
        self.scales = nn.ParameterDict({name: torch.full((D,), 0.1) for name in names})
        if decodes:
            self.cross = nn.MultiheadAttention(D, N, bias=False, batch_first=True)

    def forward(self, x: Tensor, hidden: Tensor, memory: Tensor | None = None, pads: Tensor | None = None) -> Tensor:
        h = self.norm(x)
        q, k, v = self.qkv(h).unflatten(-1, (3, N, H)).permute(2, 0, 3, 1, 4)
        offset = torch.arange(x.shape[1])[None, :] - torch.arange(x.shape[1])[:, None]
        slopes = 2.0 ** (-8.0 / N * torch.arange(1, N + 1, dtype=x.dtype))
        bias = -slopes[:, None, None] * offset.abs()
        mixed = F.scaled_dot_product_attention(q, k, v, bias.masked_fill(hidden, -torch.inf))
        total = x + self.scales["own"] * self.out(mixed.transpose(1, 2).flatten(2))
        if memory is not None:
            total = total + self.scales["cross"] * self.cross(h, memory, memory, pads, need_weights=False)[0]
        return total + self.scales["ff"] * self.down(F.relu(self.up(h)).square())


class SideBySide(nn.Module):
    """Parallel layers with ALiBi and trained scales."""

    def __init__(self) -> None:
        super().__init__()
        self.pad = 0
        self.tokens = nn.ModuleList([nn.Embedding(SOURCE, D), nn.Embedding(TARGET, D)])
        self.encoder = nn.ModuleList(Parallel(False) for _ in range(2))
        self.decoder = nn.ModuleList(Parallel(True) for _ in range(2))
        self.ends = nn.ModuleList(nn.LayerNorm(D, bias=False) for _ in range(2))
        self.head = nn.Linear(D, TARGET)

    def forward(self, src_ids: Tensor, tgt_ids: Tensor) -> Tensor:
        pads = src_ids == self.pad
        x, y = self.tokens[0](src_ids), self.tokens[1](tgt_ids)
        for layer in self.encoder:
            x = layer(x, pads[:, None, None])
        x = self.ends[0](x)
        later = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1) | (tgt_ids == self.pad)[:, None, None]
        for layer in self.decoder:
            y = layer(y, later, x, pads)
        return self.head(self.ends[1](y))


class OffsetNorm(nn.Module):
    """A norm with 1 more than the scale that it stores."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.zeros(D)), nn.Parameter(torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (D,), 1.0 + self.gain, self.shift)


class Mixed(nn.Module):
    """Sinusoids and GELU in the encoder, trained positions and ReLU in the decoder; one bias in feed-forwards,
    norms whose scale is stored minus 1, and logits that are halved."""

    def __init__(self) -> None:
        super().__init__()
        self.pad_id = 0
        self.source, self.target = nn.Embedding(SOURCE, D), nn.Embedding(TARGET, D)
        self.register_buffer("table", sinusoids(40, D).float())
        self.places = nn.Embedding(50, D)
        self.maps, self.norms = nn.ModuleDict(), nn.ModuleDict()
        for name in ("e0", "e1", "d0", "d1"):
            for kind in "sc" if name[0] == "d" else "s":
                self.maps.update({f"{name}{kind}{part}": nn.Linear(D, D) for part in "qkvo"})
            self.maps.update({f"{name}up": nn.Linear(D, FF), f"{name}down": nn.Linear(FF, D, bias=False)})
            self.norms.update({f"{name}{k}": OffsetNorm() for k in range(3)})
        self.head = nn.Linear(D, TARGET)

    def attend(self, x: Tensor, y: Tensor, name: str, hidden: Tensor) -> Tensor:
        pairs = ((x, "q"), (y, "k"), (y, "v"))
        q, k, v = (self.maps[name + part](one).unflatten(-1, (N, H)).transpose(1, 2) for one, part in pairs)
        weights = ((q @ k.mT) / H**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        return self.maps[f"{name}o"]((weights @ v).transpose(1, 2).flatten(2))

    def feed_forward(self, x: Tensor, name: str) -> Tensor:
        activation = F.gelu if name[0] == "e" else F.relu
        return self.maps[f"{name}down"](activation(self.maps[f"{name}up"](x)))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        pads, size = (src == self.pad_id)[:, None, None], tgt.shape[1]
        later = torch.ones(size, size, dtype=torch.bool).triu(1) | (tgt == self.pad_id)[:, None, None]
        table = self.table if src.shape[1] <= len(self.table) else sinusoids(src.shape[1], D)
        x = self.source(src) + table[: src.shape[1]].to(self.places.weight)
        for name in ("e0", "e1"):
            x = self.norms[f"{name}0"](x + self.attend(x, x, f"{name}s", pads))
            x = self.norms[f"{name}1"](x + self.feed_forward(x, name))
        y = self.target(tgt) + self.places(torch.arange(size))
        for name in ("d0", "d1"):
            y = self.norms[f"{name}0"](y + self.attend(y, y, f"{name}s", later))
            y = self.norms[f"{name}1"](y + self.attend(y, x, f"{name}c", pads))
            y = self.norms[f"{name}2"](y + self.feed_forward(y, name))
        return self.head(y) / 2


def built(name: str, *options: Any) -> nn.Module:
    """Returns the module of this name, in evaluation mode."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        module: nn.Module = globals()[name](*options).eval()
    return module
