"""A program for one of several processes with four CPU devices together: they compute what one device computes, and
process 0 prints the largest differences as JSON.

    python tests/parallel/process_cases.py NAME FOLDER ADDRESS PROCESSES NUMBER

test_processes.py runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from mesh_cases import FAMILIES, PLAIN, TRAIN, Sizes, batches, compare, first_params, placed, random_state, same, train

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.parallel import ParallelConfig
from jax_transformer.decoding.generation import generate
from jax_transformer.decoding.prepared import prepare
from jax_transformer.decoding.scoring import score
from jax_transformer.parallel import ProcessConfig, join_processes, make_mesh, tree_shardings
from jax_transformer.parallel.placement import fetch
from jax_transformer.runtime.garbage import collect_nothing_at_exit, collect_rarely
from jax_transformer.storage.model_directory import Model
from jax_transformer.training.checkpoints import Checkpoints
from jax_transformer.training.state import all_params

MESHES: tuple[Sizes, ...] = ((1, 2, 2), (1, 1, 4))
"""The first divides rows and parameters among processes. In the second, each process has every row."""
STEPS = 5


def mesh_of(sizes: Sizes) -> Any:
    return make_mesh(ParallelConfig(data=sizes[0], fsdp=sizes[1], tensor=sizes[2]))


def training(folder: Path) -> dict[str, Any]:
    trained = {str(sizes): train(PLAIN, TRAIN, sizes, STEPS) for sizes in MESHES}
    if jax.process_index():
        return {}
    alone = train(PLAIN, TRAIN, None, STEPS)
    return {sizes: compare(received, alone) for sizes, received in trained.items()}


def placing(folder: Path) -> dict[str, Any]:
    """Each process makes the rows of its devices."""
    (batch,) = batches(PLAIN, 1)
    return {str(sizes): same(fetch(placed(batch, mesh_of(sizes), 1)), batch) for sizes in MESHES}


def decoding(folder: Path) -> dict[str, Any]:
    """Greedy decoding and scores on one mesh, beam search on the other, of sentences whose number no mesh divides."""
    source, targets = [[4, 5, 6], [7, 8], [9, 10, 11, 12], [5, 5], [6]], [[4, 9, 3], [5, 3], [6, 7, 8, 3], [9], [10, 3]]
    t5 = next(iter(FAMILIES.values()))
    model = Model(t5, first_params(t5), None, None, GenerationConfig(decoder_start_id=2, eos_id=3))
    of_rows, of_all = (prepare(model, mesh_of(sizes)) for sizes in MESHES)
    scores = [score(each, source, targets).log_probs for each in (model, of_rows)]
    found = {"scores": bool(np.allclose(*scores, rtol=1e-12))}
    for name, divided, options in (("greedy", of_rows, {}), ("beams", of_all, {"beam_size": 3, "num_return": 2})):
        tokens = [generate(each, source, max_new_tokens=6, **options).sequences for each in (model, divided)]
        found[name] = np.array_equal(*tokens)
    return found


def saving(folder: Path) -> dict[str, Any]:
    """Saves a state that these processes share."""
    checkpoints = Checkpoints(folder / "checkpoints", TRAIN)
    checkpoints.save(_on(random_state(), (2, 2, 1)), None, {})
    checkpoints.close()
    return {"saved": True}


def restoring(folder: Path) -> dict[str, Any]:
    """Restores the state that other processes saved, and saves it again."""
    expected, found = random_state(), {}
    checkpoints = Checkpoints(folder / "checkpoints", TRAIN)
    for sizes in MESHES:
        restored = checkpoints.restore(int(expected.step), _on(jax.tree.map(np.zeros_like, expected), sizes))
        found[str(sizes)] = same(fetch(restored), expected)
    checkpoints.close()
    again = Checkpoints(folder / "again", TRAIN)
    again.save(restored, None, {})
    again.close()
    return found


def _on(state: Any, sizes: Sizes) -> Any:
    """Returns a state, complete on the host, on a mesh."""
    mesh = mesh_of(sizes)
    shardings = tree_shardings(state, all_params(state), mesh)
    make: Callable[..., jax.Array] = jax.make_array_from_callback
    return jax.tree.map(
        lambda leaf, lie: make(np.shape(leaf), lie, lambda index: np.asarray(leaf)[index]), state, shardings
    )


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    case.__name__: case for case in (training, placing, decoding, saving, restoring)
}

if __name__ == "__main__":
    collect_rarely()
    collect_nothing_at_exit()
    names, directory, address, count, number = sys.argv[1:]
    processes = join_processes(ProcessConfig(coordinator=address, processes=int(count), process_id=int(number)))
    with processes.together(), jax.enable_x64(True):
        assert jax.device_count() == 4, jax.devices()
        results = {name: CASES[name](Path(directory)) for name in names.split(",")}
        if processes.is_first:
            print(json.dumps(results))
