"""The repositories whose programs the gallery proves: checked out at a commit, outside this project's tree."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

SOURCES = {
    "bonsai": ("jax-ml/bonsai", "36284254cf738d99c1c5d1e3a292d27656a0a365", ""),
    "EasyLM": ("young-geng/EasyLM", "fe5b2c354e25d697fce7cd225e23bbbe72570da3", ""),
    "flax": ("google/flax", "18f8f311c275d57f46d95e41b15aa97b454754c0", "examples"),
    "t5x": ("google-research/t5x", "cc342d419ec3e3e9c4bf1df33c82330cafdc1e16", ""),
    "big_vision": ("google-research/big_vision", "0127fb6b337ee2a27bf4e54dea79cff176527356", ""),
    "tunix": ("google/tunix", "c7d8950f12a9c55a976bf2e1a0d8b447d71c20b3", ""),
    "gemma": ("google-deepmind/gemma", "7691fd4e7f26c9ec5db38110dddb3addfab4d767", ""),
    "big_transfer": ("google-research/big_transfer", "140de6e704fd8d61f3e5ea20ffde130b7d5fd065", ""),
    "openpi": ("Physical-Intelligence/openpi", "15a9616a00943ada6c20a0f158e3adb39df2ccac", "src"),
}
"""Folder of a program's repository → repository of GitHub, commit, and the folder that Python imports from."""
VERSION = "4.57.6"
"""The version of transformers that the programs run with."""
OTHER_VERSIONS = {"openpi_pi0": "4.53.2", "openpi_pi05": "4.53.2"}
"""Program → the version of transformers that its PyTorch original replaces files of."""
PACKAGES = {
    VERSION: (
        "timm==1.0.31", "keras==3.15.1", "keras-hub==0.32.0", "namex", "optree", "h5py",
        "immutabledict", "kauldron", "lark", "chex", "toolz", "einops", "clu", "ml_collections",
    ),
    "4.53.2": ("augmax==0.4.1", "jaxtyping==0.2.36", "beartype==0.19.0", "einops", "ml_collections"),
}  # fmt: skip
"""Version of transformers → packages that the programs or their originals import. pip installs them without their
dependencies, which include TensorFlow and torchvision."""
STAND_INS = (
    "cached_property",
    "dialog",
    "gcsfs",
    "orbax.experimental",
    "seqio",
    "tensorflow",
    "tensorflow_datasets",
    "torchvision",
)
"""Packages that files of these repositories, and timm, import beside the models, which call none of them."""
BARE = {"t5x": "t5x", "tunix": "tunix"}
"""Repository → a package of it whose `__init__` isn't run: it imports trainers, which need many packages more."""


class StandIns(MetaPathFinder, Loader):
    """Imports empty modules in place of packages that aren't installed."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        is_one = any(name == one or name.startswith(f"{one}.") for one in STAND_INS)
        return ModuleSpec(name, self, is_package=True) if is_one else None

    def create_module(self, spec: ModuleSpec) -> Any:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class StandIn(ModuleType):
    """A module that has whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {})


class Nothing(type):
    """A class in place of what a module has. Nothing is an instance of it, and an array it can't be."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {})

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return Nothing(cls.__name__, (), {})


def use(name: str, folder: Path) -> None:
    """Makes the programs of a repository importable.

    Raises:
      FileNotFoundError: the folder doesn't contain it; the message says what to check out.
    """
    repository, commit, inside = SOURCES[name]
    if not (folder / name).is_dir():
        raise FileNotFoundError(f"{folder / name}: check out github.com/{repository} at {commit} there")
    sys.path.insert(0, str(folder / name / inside))
    if name in BARE:
        package = ModuleType(BARE[name])
        package.__path__ = [str(folder / name / inside / BARE[name])]
        sys.modules[BARE[name]] = package
    if not any(isinstance(finder, StandIns) for finder in sys.meta_path):
        sys.meta_path.append(StandIns())
