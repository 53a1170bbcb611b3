"""Functions and objects of the user's own modules, named on the command line as package.module:name."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from jax_transformer.runtime.extras import MissingPackage, explain
from jax_transformer.runtime.trees import nearest


def load_factory(name: str, option: str) -> Any:
    """Calls a function of the user's, named as package.module:factory, and returns its result.

    Modules are looked for in the current directory, too.

    Raises:
      ValueError: there is no such module or function; it raises.
      MissingPackage: the module imports a package of an extra that isn't installed.
    """
    factory = _attribute(name, option)
    attribute = name.partition(":")[2]
    if not callable(factory):
        raise ValueError(f"{option} {name}: expected a function {attribute}; received a {type(factory).__name__}")
    try:
        return factory()
    except (Exception, SystemExit) as error:  # the user's own code may raise anything
        raise ValueError(f"{option} {name}: {attribute}() raised {type(error).__name__}: {error}") from error


def load_named(name: str | None, option: str) -> Any:
    """Returns the value of a name of the user's; None for no name."""
    return None if name is None else _attribute(name, option)


def _attribute(name: str, option: str) -> Any:
    """Returns an attribute of a module of the user's, named as package.module:name. Raises ValueError if there is
    none."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise ValueError(f"{option}: expected package.module:name; received {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the module's code is the user's
        if isinstance(error, ImportError) and (line := explain(error, f"{option} {name}")) != str(error):
            raise MissingPackage(line, name=error.name) from error
        raise ValueError(
            f"{option} {name}: {module_name} can't be imported: {type(error).__name__}: {error}"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        near = nearest(attribute, vars(module))
        raise ValueError(
            f"{option} {name}: expected {attribute} in {module_name}; there is no such name{near}"
        ) from None
