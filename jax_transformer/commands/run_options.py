"""Options of commands that start from a preset or a config file."""

from __future__ import annotations

from jax_transformer.config.parallel import ProcessConfig
from jax_transformer.config.presets import get_preset
from jax_transformer.config.run import RunConfig

DEFAULT_PRESET = "demo"


def first_config(preset: str | None, config_file: str | None) -> RunConfig:
    """Returns the config that options change: the preset's, with the fields that a file names."""
    config = get_preset(preset or DEFAULT_PRESET)
    if config_file is None:
        return config
    from jax_transformer.config.files import load_config

    return load_config(config_file, config)


def take_preset(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Returns the preset, which comes first if there is one, and the remaining arguments."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments


def take_option(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """Returns the value of `--name VALUE` or `--name=VALUE`, and the remaining arguments."""
    for i, argument in enumerate(arguments):
        if argument.startswith(name + "="):
            return argument.removeprefix(name + "="), arguments[:i] + arguments[i + 1 :]
        if argument == name:
            if i + 1 == len(arguments):
                raise ValueError(f"{name} expects a value; received none")
            return arguments[i + 1], arguments[:i] + arguments[i + 2 :]
    return None, arguments


def take_processes(arguments: list[str]) -> tuple[ProcessConfig, list[str]]:
    """Returns the options by which processes of a run find each other, and the remaining arguments."""
    coordinator, arguments = take_option(arguments, "--parallel.coordinator")
    count, arguments = take_option(arguments, "--parallel.processes")
    number, arguments = take_option(arguments, "--parallel.process-id")
    config = ProcessConfig(
        coordinator=coordinator or "",
        processes=_count("--parallel.processes", count),
        process_id=_count("--parallel.process-id", number),
    )
    return config, arguments


def _count(name: str, value: str | None) -> int | None:
    if value is None or value.isdigit():
        return None if value is None else int(value)
    raise ValueError(f"{name}: expected a whole number; received {value}")


def take_flag(arguments: list[str], name: str) -> tuple[bool, list[str]]:
    """Returns whether `name` is among the arguments, and the remaining arguments."""
    return name in arguments, [argument for argument in arguments if argument != name]
