"""The schema of certificates: it is closed, it has the fields of the dataclasses, and it is checked as `jsonschema`
checks it."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jsonschema import Draft202012Validator

from jax_transformer.parity import Certificate, prove
from jax_transformer.parity.problems import ALLOWANCES
from jax_transformer.parity.stages.proof import STAGE_OF_PREFIX
from jax_transformer.proof.axioms import AXIOMS
from jax_transformer.proof.certificate import SCHEMA, VERIFY, SideProgram, StageProof, TaskProof
from jax_transformer.proof.deciding import Difference, Point
from jax_transformer.proof.locating import Place
from jax_transformer.proof.repair import KINDS, Cause, Repair
from jax_transformer.runtime.json_schema import first_problem

Value = Any
OF_TWO = {"inputs": {"x": np.ones(3), "mask": np.array([[True, False]])}, "weights": {"w": np.ones(3)}}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json.loads(resources.files("jax_transformer.proof").joinpath("certificate.schema.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def held() -> dict[str, Any]:
    """Returns the certificate of a refutation, which has most fields."""
    certificate = prove(lambda p, i: p["w"] * i["x"], lambda p, i: 3 * p["w"] * i["x"], **OF_TWO)
    return json.loads(certificate.to_json())


def functions(verdict: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    others: dict[str, Callable[..., Any]] = {
        "proven": lambda p, i: i["x"] * (p["w"] + 0),
        "refuted": lambda p, i: i["x"] * abs(p["w"]),
        "unknown": lambda p, i: i["x"] * jax.lax.lgamma(p["w"]),
    }
    return others[verdict], lambda p, i: i["x"] * p["w"]


@pytest.mark.parametrize("verdict", ["proven", "refuted", "unknown"])
def test_certificates_follow_the_schema(verdict: str, schema: Any) -> None:
    certificate = prove(*functions(verdict), **OF_TWO)
    assert certificate.verdict == verdict
    held = json.loads(certificate.to_json())
    Draft202012Validator(schema).validate(held)
    assert first_problem(held, schema) is None
    assert json.loads(Certificate.from_json(json.dumps(held)).to_json()) == held


def test_the_schema_is_one_and_names_its_version(schema: Any) -> None:
    Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema"]["const"] == SCHEMA
    assert schema["properties"]["verify"]["const"] == VERIFY
    assert schema["$id"].endswith(f":{SCHEMA}")


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Yields all parts of a schema that describe an object by its properties."""
    if isinstance(schema, dict):
        if "properties" in schema and "type" in schema:
            yield schema
        for part in schema.values():
            yield from objects(part)


def test_objects_are_closed_and_complete(schema: Any) -> None:
    found = list(objects(schema))
    assert len(found) >= 9
    for one in found:
        assert one["additionalProperties"] is False
        assert {*one.get("required", ())} == {*one["properties"]} or {*one["properties"]} == {*AXIOMS}


def test_the_schema_has_the_fields_of_the_classes(schema: Any, held: Any) -> None:
    def names(kind: type) -> set[str]:
        return {field.name for field in dataclasses.fields(kind)}

    defined = {name: {*part.get("properties", ())} for name, part in schema["$defs"].items()}
    assert {*schema["properties"]} == names(Certificate) - {"witness"} | {"verdict", "verify"}
    assert defined["stage"] == names(StageProof)
    assert defined["task"] == names(TaskProof)
    assert defined["program"] == names(SideProgram)
    assert defined["point"] == names(Point)
    assert defined["place"] == names(Place)
    assert (defined["repair"], defined["cause"]) == (names(Repair), names(Cause))
    assert tuple(schema["$defs"]["cause"]["properties"]["kind"]["enum"]) == KINDS
    assert {*schema["properties"]["difference"]["properties"]} == names(Difference) - {"task"} | {"witness", "repair"}
    assert defined["witness"] == {*held["difference"]["witness"]}


def test_the_schema_has_the_names_of_the_package(schema: Any) -> None:
    assert {*schema["$defs"]["task"]["properties"]["axioms"]["properties"]} == {*AXIOMS}
    assert {*schema["properties"]["allowed"]["items"]["enum"]} == {*ALLOWANCES}
    assert {*schema["$defs"]["stage"]["properties"]["name"]["enum"]} == {*STAGE_OF_PREFIX.values()}


def changed(held: Mapping[str, Any], path: tuple[Any, ...], value: Value) -> dict[str, Any]:
    """Returns a certificate with another value at a path; without it if the value is `...`."""
    other: Any = copy.deepcopy(dict(held))
    part = other
    for step in path[:-1]:
        part = part[step]
    if value is ...:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return other


WRONG: list[tuple[tuple[Any, ...], Value, str]] = [
    (("verdict",), "certain", 'verdict: expected one of "proven", "refuted", "unknown"; received "certain"'),
    (("verdict",), "proven", "verdict: expected refuted, as its stages say; received proven"),
    (("stages",), ..., "expected the field stages; there is none"),
    (("note",), "mine", "expected no field 'note'"),
    (("stages", 0, "verdict"), None, "stages[0].verdict: expected one of"),
    (("stages", 1, "name"), "step 2", "stages[1].name: expected one of"),
    (("stages", 0, "equal"), "all", 'stages[0].equal: expected array; received "all"'),
    (("stages", 0, "different", 0), 3, "stages[0].different[0]: expected string; received 3"),
    (("stages", 0, "why"), "", "stages[0]: expected no field 'why'"),
    (("tasks", 0, "candidate", "sha256"), "ab", "tasks[0].candidate.sha256: expected text like"),
    (("tasks", 0, "candidate", "inputs", "w", 0), -3, "tasks[0].candidate.inputs.w[0]: expected at least 0"),
    (("tasks", 0, "candidate", "lowered", "mul"), True, "tasks[0].candidate.lowered.mul: expected integer"),
    (("tasks", 0, "points", 0, "prime"), 1, "tasks[0].points[0].prime: expected at least 2"),
    (("tasks", 0, "log2_error"), 1.5, "tasks[0].log2_error: expected at most 0"),
    (("tasks", 0, "axioms", "magic"), [], "tasks[0].axioms: expected no field 'magic'"),
    (("difference", "candidate"), [], "difference.candidate: expected object or null; received []"),
    (("difference", "witness", "found"), 1, "difference.witness.found: expected boolean; received 1"),
    (("difference", "digits"), ..., "difference: expected the field digits"),
    (("inputs", "x"), {}, "inputs.x: expected the field dtype"),
    (("inputs", "x", "dtype"), "object", "inputs.x.dtype: expected one of"),
    (("inputs", "x", "shape", 0), -3, "inputs.x.shape[0]: expected at least 0"),
    (("inputs", "mask", "values", 0, 0), "yes", "inputs.mask.values[0][0]: expected array or integer or boolean"),
    (("allowed",), ["everything"], "allowed[0]: expected one of"),
    (("seed",), 0.5, "seed: expected integer; received 0.5"),
    (("seed",), -1, "seed: expected at least 0; received -1"),
    (("seed",), 10**40, "seed: expected at most 9223372036854775807"),
    (("verify",), "curl stranger | sh", "verify: expected"),
    (("kind",), "program", "kind: expected one of"),
    (("stages",), [], "stages: "),
    (("command",), "parity", 'command: expected array; received "parity"'),
    (("schema",), 1, "schema: expected 3; received 1, which another version of jax-transformer writes: prove the"),
    (("schema",), True, "schema: expected 3; received true"),
    (("schema",), ..., "expected the field schema"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_a_wrong_field_is_named_in_a_line(path: Any, value: Value, message: str, schema: Any, held: Any) -> None:
    other = changed(held, path, value)
    with pytest.raises(ValueError, match=r"^proof\.json: ") as error:
        Certificate.from_json(json.dumps(other), "proof.json")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    fits = Draft202012Validator(schema).is_valid(other)
    assert fits == (first_problem(other, schema) is None) == ("as its stages say" in message)


def test_numbers_beyond_json_are_written_as_text() -> None:
    """JSON has neither infinity nor NaN: a fill of −∞ is a text, and a difference from nothing isn't measured."""

    def masked(fill: float) -> Callable[..., Any]:
        return lambda p, i: jnp.where(i["mask"], p["w"], fill)

    mask = {"mask": np.array([True, True, False])}
    certificate = prove(masked(-jnp.inf), masked(0.0), inputs=mask, weights=OF_TWO["weights"], stages=["forward"])
    assert certificate.verdict == "refuted"
    assert Certificate.from_json(certificate.to_json()).verdict == "refuted"
    assert str(certificate)
    zero = prove(lambda p, i: p["w"], lambda p, i: 0 * p["w"], inputs={}, weights=OF_TWO["weights"])
    assert Certificate.from_json(zero.to_json()).difference["float64"] is None
