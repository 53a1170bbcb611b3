"""Runs a PyTorch module as a side of a parity run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from jax_transformer.comparison.sides import Arrays, CannotRun, Dtype
from jax_transformer.comparison.torch_tensors import to_array, to_tensor
from jax_transformer.comparison.user_errors import cannot_run, shapes_of
from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.parity.backends.side import (
    Gradients,
    Halt,
    Hypotheses,
    NotFinite,
    Plan,
    Training,
    layer_by_layer,
    starts_and_ends,
)
from jax_transformer.parity.backends.torch_programs import (
    BuiltInOptimizer,
    Optimizer,
    call_decoder,
    call_loss,
    clear_gradients,
    make_optimizer,
    take_step,
)
from jax_transformer.parity.backends.torch_resuming import halted, load_state
from jax_transformer.parity.problems import Problem
from jax_transformer.parity.rules import BUILT_IN, NO_PROGRAMS, Programs, Rules
from jax_transformer.programs.torch_precision import deterministic
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_files import as_arrays

if TYPE_CHECKING:
    import torch
    from torch import nn


class Pass(NamedTuple):
    """Holds the results of one forward pass."""

    logits: torch.Tensor
    """[B, T, V]"""
    activations: Callable[[], Mapping[str, torch.Tensor]]
    """Returns activations and masks by our names, in execution order."""
    gradients: Callable[[], Mapping[str, torch.Tensor]]
    """Returns the gradients of the activations after the backward pass; zeros where none arrived."""
    apart: float = 0.0
    """Distance of the logits from those of an unwatched pass, relative to their RMS; 0 if it is within bounds."""


class Reference(Protocol):
    """Runs one kind of PyTorch model as a side."""

    @property
    def notes(self) -> Mapping[str, str]:
        """Returns notes for a report on how the model is run, by title."""

    def build(self, dtype: torch.dtype) -> nn.Module:
        """Returns a module of this dtype, in evaluation mode, with any weights."""

    def own(self) -> Mapping[str, np.ndarray] | None:
        """Returns the weights of the user's module; None for a program that receives the candidate's weights."""

    def state_dict(self, params: Mapping[str, Any], names: Collection[str]) -> Mapping[str, np.ndarray]:
        """Returns the state_dict of `build`'s module with these parameters."""

    def leaves(self, state_dict: Mapping[str, np.ndarray]) -> Arrays:
        """Returns the stacked leaves by path: the inverse of `state_dict`, also used for gradients."""

    def run(
        self,
        module: nn.Module,
        source_ids: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        *,
        watched: bool,
        gradients: bool,
    ) -> Pass:
        """Runs a forward pass; returns only logits unless `watched`."""

    def outputs(
        self, module: nn.Module, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Runs a forward pass once, with gradients if they are enabled, and returns the logits, or their log-softmax,
        and activations by the module's own names. Reads no values, so that a proof can trace it."""

    def renamed(self, arrays: Arrays, ids: Sequence[tuple[int, ...]]) -> Arrays:
        """Renames activations of `outputs` to our names.

        Args:
          ids: the shapes of source_ids and decoder_input_ids.
        """

    def greedy(
        self, module: nn.Module, source_ids: torch.Tensor, start_id: int, eos_id: int, most: int
    ) -> torch.Tensor: ...

    def beams(
        self, module: nn.Module, source_ids: torch.Tensor, start_id: int, eos_id: int, most: int, beam_size: int
    ) -> torch.Tensor:
        """Runs a beam search. Raises CannotRun if the program has none."""


class TorchSide:
    """Runs a reference, and a user's own loss, optimizer and decoder, if any.

    Keeps the module in float64 and in the last other dtype. Loads each problem's parameters into it.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        reference: Reference,
        rules: Rules = BUILT_IN,
        programs: Programs = NO_PROGRAMS,
    ) -> None:
        self.name, self.reference, self.rules, self.programs = name, reference, rules, programs
        self.config, self.generation, self.params = model.config, model.generation, model.params
        self.doubts: dict[str, None] = {}
        self._modules: dict[str, nn.Module] = {}
        self._loaded: dict[str, Any] = {}
        self._importing: Thread | None = None

    def in_force(self, dtype: Dtype) -> dict[str, Any]:
        import torch

        with deterministic():
            parameter = next(self._module(dtype).parameters())
            return {
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "TF32": torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32,
                "fast path": torch.backends.mha.get_fastpath_enabled(),
                "device": parameter.device.type,
                **self.reference.notes,
            }

    def get_ready(self, plan: Plan) -> None:
        """Imports torch._dynamo in the background, which PyTorch's first optimizer would import in a second. No module
        runs until it is imported."""
        if {"step", "trajectory", "resume"} & {*plan.stages}:
            self._importing = Thread(target=importlib.import_module, args=("torch._dynamo",))
            self._importing.start()

    def rest(self) -> None:
        """Drops the modules, which are built again on use."""
        self._modules.clear()
        self._loaded.clear()

    def weights(self) -> Arrays:
        """Returns the weights of the user's module, or those that the model gives to a program without weights."""
        own = self.reference.own()
        if own is None:
            own = as_arrays(self._given(self.params, "float64").state_dict())
        return layer_by_layer(self.reference.leaves(own))

    def forward(self, problem: Problem, dtype: Dtype) -> Arrays:
        import torch

        module = self._with(problem, dtype)
        with torch.no_grad(), deterministic():
            done = self._run(module, problem, dtype, watched=True, gradients=False)
        return {name: to_array(value) for name, value in done.activations().items()}

    def gradients(self, problem: Problem) -> Gradients:
        module = self._trainable(problem)
        module.zero_grad(set_to_none=True)
        with deterministic():
            done = self._run(module, problem, "float64", watched=True, gradients=True)
            loss = self._loss(done.logits, problem)
            self._pass_back(problem.loss_factor * loss)
        activations = {name: to_array(value) / problem.loss_factor for name, value in done.gradients().items()}
        _divide_gradients(module, problem.loss_factor)
        parameters = self._gradients(module)
        module.zero_grad(set_to_none=True)  # gradients are as large as the model
        return Gradients(loss.item(), parameters, activations)

    def train(self, problem: Problem, steps: int, *, keep_all: bool) -> Training:
        module = self._trainable(problem)
        self._loaded.pop("float64")  # it changes
        finite = [name for name, tensor in module.named_parameters() if tensor.isfinite().all()]
        program = self.programs.optimizer or partial(
            BuiltInOptimizer, train=self.rules.train, d_model=self.config.d_model, steps=steps
        )
        optimizer = make_optimizer(program, module)
        losses, gradients = [], []
        parameters = [self._parameters(module, finite)] if keep_all else []
        for _ in range(steps):
            clear_gradients(program, optimizer)
            with deterministic():
                done = self._run(module, problem, "float64", watched=False, gradients=True)
                loss = self._loss(done.logits, problem)
                self._pass_back(problem.loss_factor * loss)
            _divide_gradients(module, problem.loss_factor)
            if keep_all:
                gradients.append(self._gradients(module))
            take_step(program, optimizer)
            losses.append(loss.item())
            if keep_all:
                parameters.append(self._parameters(module, finite))
        del optimizer  # its moments are twice as large as the model
        module.zero_grad(set_to_none=True)
        return Training(np.array(losses), tuple(parameters or [self._parameters(module, finite)]), tuple(gradients))

    def resume(self, problem: Problem, steps: int, halt: Halt | None = None) -> Halt:
        module = self._trainable(problem if halt is None else replace(problem, params=halt.params))
        self._loaded.pop("float64")  # it changes
        done = 0 if halt is None else halt.state.step
        program = self.programs.optimizer or partial(
            BuiltInOptimizer, train=self.rules.train, d_model=self.config.d_model, steps=done + steps, done=done
        )
        optimizer = make_optimizer(program, module)
        if halt is not None:
            load_state(optimizer, module, self.reference, halt)
        losses = []
        for _ in range(steps):
            losses.append(self._step(module, problem, optimizer, program))
        return halted(optimizer, module, self.reference, done + steps, losses)

    def _step(self, module: nn.Module, problem: Problem, optimizer: Optimizer, program: Callable[..., Any]) -> float:
        """Takes an optimizer step, and returns the loss before it."""
        clear_gradients(program, optimizer)
        with deterministic():
            done = self._run(module, problem, "float64", watched=False, gradients=True)
            loss = self._loss(done.logits, problem)
            self._pass_back(loss)
        take_step(program, optimizer)
        return loss.item()

    def decode(self, problem: Problem, decoding: DecodingConfig) -> Hypotheses:
        import torch

        start_id, eos_id = starts_and_ends(self.generation)
        most, beam_size = decoding.max_new_tokens or self.config.decoder.max_length, decoding.beam_size or 1
        module, (source_ids, _) = self._with(problem, "float64"), input_tensors(problem)
        with torch.no_grad(), deterministic():
            if self.programs.decode is not None:
                return call_decoder(
                    self.programs.decode,
                    module,
                    source_ids,
                    start_id=start_id,
                    eos_id=eos_id,
                    max_new_tokens=most,
                    pad_id=self.config.target.pad_id,
                )
            with cannot_run(f"the reference {self.name}", f"{shapes_of({'source_ids': source_ids})}, to decode"):
                if beam_size == 1:
                    tokens = self.reference.greedy(module, source_ids, start_id, eos_id, most)
                else:
                    tokens = self.reference.beams(module, source_ids, start_id, eos_id, most, beam_size)
            return Hypotheses(tokens.numpy())

    def _run(self, module: nn.Module, problem: Problem, dtype: Dtype, *, watched: bool, gradients: bool) -> Pass:
        """Runs a forward pass, and adds a doubt if watching it changes the logits.

        Raises:
          CannotRun: the module raised an exception.
        """
        import torch

        def once() -> Pass:
            with torch.set_grad_enabled(gradients):
                return self.reference.run(module, *input_tensors(problem, dtype), watched=watched, gradients=gradients)

        ids = {name: array for name, array in problem.batch.items() if name != "labels"}
        with cannot_run(f"the reference {self.name}", f"{shapes_of(ids)} in {dtype}", module, once):
            done = once()
        if gradients:
            self._check_trains(done.logits)
        if done.apart:
            where = f"{problem.name}, {'with gradients' if gradients else dtype}"
            self.doubts[
                f"the reference computes something else when it is watched: its logits ({where}, {shapes_of(ids)}) are "
                f"off by a relative RMS of {done.apart:.1e}"
            ] = None
        return done

    def _trainable(self, problem: Problem) -> nn.Module:
        """Returns the module with the problem's parameters. Raises CannotRun if they can't be trained."""
        module = self._with(problem, "float64")
        if not all(parameter.is_leaf for parameter in module.parameters()):
            raise CannotRun(
                f"the reference {self.name} can't be trained: a copy of it has no parameters of its own (is it of "
                "torch.jit?): return the module that it is made of"
            )
        return module

    def _check_trains(self, logits: torch.Tensor) -> None:
        """Raises CannotRun for logits without gradients, NotFinite for rows with NaN or infinities."""
        if not logits.requires_grad:
            raise CannotRun(
                f"the reference {self.name} has no gradients: no parameter leads to its logits (does its forward run "
                "under torch.no_grad, or detach them?)"
            )
        rows = (~logits.isfinite()).flatten(1).any(dim=1).nonzero().flatten().tolist()
        if rows:
            raise NotFinite(
                f"the reference {self.name} has logits that aren't finite in rows {rows} of {len(logits)}", rows
            )

    def _pass_back(self, loss: torch.Tensor) -> None:
        """Runs the backward pass. Raises CannotRun if it fails."""
        with cannot_run(f"the reference {self.name}", "its own loss, backwards"):
            loss.backward()

    def _module(self, dtype: str) -> nn.Module:
        import torch

        if self._importing is not None:
            self._importing.join()
        module = self._modules.get(dtype)
        if module is None:
            with cannot_run(f"the reference {self.name}", f"a copy of it in {dtype}"):
                module = self.reference.build(getattr(torch, dtype)).eval()
            self._modules = {kept: one for kept, one in self._modules.items() if kept == "float64"} | {dtype: module}
            self._loaded = {kept: one for kept, one in self._loaded.items() if kept == "float64"}
        return module

    def _with(self, problem: Problem, dtype: Dtype) -> nn.Module:
        return self._given(problem.params, dtype)

    def _given(self, params: Mapping[str, Any], dtype: Dtype) -> nn.Module:
        """Returns the module with these parameters."""
        import torch

        module = self._module(dtype)
        if self._loaded.get(dtype) is not params:
            held = module.state_dict()
            given = self.reference.state_dict(params, held.keys())
            with torch.no_grad():
                for name, array in given.items():
                    held[name].copy_(to_tensor(array))
            self._loaded[dtype] = params
        return module

    def _loss(self, logits: torch.Tensor, problem: Problem) -> torch.Tensor:
        import torch

        labels = torch.from_numpy(problem.labels.astype(np.int64))
        if self.programs.loss is not None:
            return call_loss(self.programs.loss, logits, labels)
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1),
            labels.flatten(),
            ignore_index=self.config.target.pad_id,
            label_smoothing=self.rules.train.label_smoothing,
        )

    def _gradients(self, module: nn.Module) -> Arrays:
        import torch

        gradients = {name: p.grad for name, p in module.named_parameters(remove_duplicate=False) if p.grad is not None}
        self._check_finite("gradient", gradients)
        found = {
            name: gradients[name] if name in gradients else torch.zeros_like(tensor)
            for name, tensor in module.state_dict().items()
        }
        return self._trained(as_arrays(found))

    def _check_finite(self, what: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raises CannotRun for tensors that aren't finite."""
        bad = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
        if bad:
            others = f" (nor are those of {len(bad) - 1} others)" if len(bad) > 1 else ""
            raise CannotRun(f"the reference {self.name} has a {what} of {bad[0]} that isn't finite{others}")

    def _parameters(self, module: nn.Module, finite: Collection[str]) -> Arrays:
        """Returns the trained leaves. Raises CannotRun if one of the parameters `finite` no longer is. (The rest never
        were, and aren't the model's.)"""
        self._check_finite("trained value", {name: module.get_parameter(name) for name in finite})
        return self._trained(as_arrays(module.state_dict()))

    def _trained(self, state_dict: Mapping[str, np.ndarray]) -> Arrays:
        """Returns the leaves of a state_dict without constants, in separate memory."""
        leaves = {
            path: leaf for path, leaf in self.reference.leaves(state_dict).items() if not path.startswith("constants/")
        }
        for path, leaf in leaves.items():
            if any(np.may_share_memory(leaf, array) for array in state_dict.values()):
                leaves[path] = leaf.copy()
        return layer_by_layer(leaves)


def _divide_gradients(module: nn.Module, factor: float) -> None:
    if factor != 1.0:
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(factor)


def input_tensors(problem: Problem, dtype: str = "float64") -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what a module reads: ids [B, S] or feature vectors [B, S, F] of a dtype, and decoder_input_ids."""
    import torch

    source, target = (torch.from_numpy(ids.astype(np.int64)) for ids in problem.ids)
    if problem.features is not None:
        vectors: Any = problem.features.vectors
        source = vectors if isinstance(vectors, torch.Tensor) else torch.from_numpy(vectors).to(getattr(torch, dtype))
    return source, target
