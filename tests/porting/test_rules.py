"""The machine behind the porting tables, run on a toy table that uses everything a table can say."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_transformer.mapping import rules as porting_rules
from jax_transformer.mapping.axes import Axes
from jax_transformer.mapping.rules import Rule
from jax_transformer.storage.tensors import PortingError

DTYPES = ["float32", "float64", ml_dtypes.bfloat16]
TABLE = [
    Rule(("embed.weight", "head.weight"), "embedding"),
    Rule("pe", "constants/{encoder,decoder}_positions", "1 R D -> R D"),
    Rule("layers.{i}.attn.in_weight", "layers/attention/{query,key,value}/kernel", "(3 N H) D -> D N H"),
    Rule("layers.{i}.attn.in_bias", "layers/attention/{query,key,value}/bias", "(3 N H) -> N H"),
    Rule("layers.{i}.attn.out.weight", "layers/attention/output/kernel", "D (N H) -> N H D"),
    Rule("layers.{i}.ff.weight", "layers/hidden/kernel", "F D -> D F"),
    Rule("layers.{i}.norm", "layers/norm/scale"),
]
SHAPES = {
    "embedding": (11, 6),
    "constants/encoder_positions": (7, 6),
    "constants/decoder_positions": (7, 6),
    **{f"layers/attention/{part}/kernel": (4, 6, 2, 3) for part in ("query", "key", "value")},
    **{f"layers/attention/{part}/bias": (4, 2, 3) for part in ("query", "key", "value")},
    "layers/attention/output/kernel": (4, 2, 3, 6),
    "layers/hidden/kernel": (4, 6, 5),
    "layers/norm/scale": (4, 6),
}
TORCH_SHAPES = {
    "in_weight": (18, 6),
    "in_bias": (18,),
    "out.weight": (6, 6),
    "ff.weight": (5, 6),
    "norm": (6,),
}


def leaves_from_tensors(*arguments, **options):
    """All of them made."""
    return {path: np.asarray(leaf) for path, leaf in porting_rules.leaves_from_tensors(*arguments, **options).items()}


def tensors_from_leaves(*arguments, **options):
    return {
        name: np.asarray(tensor) for name, tensor in porting_rules.tensors_from_leaves(*arguments, **options).items()
    }


def make_tensors(dtype="float32"):
    rng = np.random.default_rng(0)
    tensors = {"pe": rng.standard_normal((1, 7, 6)), "embed.weight": rng.standard_normal((11, 6))}
    for i in range(4):
        for name, shape in TORCH_SHAPES.items():
            tensors[f"layers.{i}.{'attn.' if name[0] in 'io' else ''}{name}"] = rng.standard_normal(shape)
    tensors["head.weight"] = tensors["embed.weight"].copy()
    return {name: tensor.astype(dtype) for name, tensor in tensors.items()}


def assert_identical(received, expected):
    assert set(received) == set(expected)
    for name, array in expected.items():
        assert (received[name].shape, received[name].dtype) == (array.shape, array.dtype), name
        assert received[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trips_are_exact(dtype):
    tensors = make_tensors(dtype)
    leaves = leaves_from_tensors(TABLE, tensors, SHAPES)
    assert list(leaves) == list(SHAPES)
    back = tensors_from_leaves(TABLE, leaves, SHAPES)
    assert_identical(back, tensors)
    assert_identical(leaves_from_tensors(TABLE, back, SHAPES), leaves)


def test_what_the_transforms_do():
    tensors = make_tensors()
    leaves = leaves_from_tensors(TABLE, tensors, SHAPES)
    query, key, value = np.split(tensors["layers.2.attn.in_weight"], 3)
    x = np.random.default_rng(1).standard_normal(6)
    for name, weight in (("query", query), ("key", key), ("value", value)):
        heads = np.einsum("d,dnh->nh", x, leaves[f"layers/attention/{name}/kernel"][2])
        np.testing.assert_allclose(heads, (weight @ x).reshape(2, 3), rtol=1e-6)
    merged = np.einsum("nh,nhd->d", x.reshape(2, 3), leaves["layers/attention/output/kernel"][3])
    np.testing.assert_allclose(merged, tensors["layers.3.attn.out.weight"] @ x, rtol=1e-6)
    np.testing.assert_array_equal(leaves["layers/hidden/kernel"][1], tensors["layers.1.ff.weight"].T)


def test_nothing_is_shared_with_the_input():
    tensors = make_tensors()
    leaves = leaves_from_tensors(TABLE, tensors, SHAPES)
    assert not any(np.shares_memory(leaf, tensor) for leaf in leaves.values() for tensor in tensors.values())
    back = tensors_from_leaves(TABLE, leaves, SHAPES)
    assert not any(np.shares_memory(tensor, leaf) for tensor in back.values() for leaf in leaves.values())
    assert all(tensor.flags.c_contiguous for tensor in back.values())
    deferred = porting_rules.tensors_from_leaves(TABLE, leaves, SHAPES)
    assert deferred["embed.weight"] is deferred["head.weight"]  # so that they are tied in memory as well


def test_memory_layout_and_signed_zeros_do_not_matter():
    tensors = make_tensors()
    tensors["layers.0.ff.weight"][0, 0] = -0.0
    strided = {name: np.asarray(tensor, order="F")[::1] for name, tensor in tensors.items()}
    back = tensors_from_leaves(TABLE, leaves_from_tensors(TABLE, strided, SHAPES), SHAPES)
    assert_identical(back, tensors)


def problems_of_import(change, rules=TABLE, shapes=SHAPES):
    tensors = make_tensors()
    change(tensors)
    with pytest.raises(PortingError) as error:
        leaves_from_tensors(rules, tensors, shapes, "toy checkpoint")
    assert all(problem in str(error.value) for problem in error.value.problems)
    return error.value.problems


def problems_of_export(change):
    leaves = leaves_from_tensors(TABLE, make_tensors(), SHAPES)
    change(leaves)
    with pytest.raises(PortingError) as error:
        tensors_from_leaves(TABLE, leaves, SHAPES)
    return error.value.problems


def test_a_missing_tensor_is_named_with_its_shape_and_the_nearest_name():
    def rename(tensors):
        tensors["layers.2.ff.weigth"] = tensors.pop("layers.2.ff.weight")

    missing, unexpected = problems_of_import(rename)
    assert missing == "missing tensor layers.2.ff.weight: expected shape (5, 6) (nearest: layers.2.ff.weigth)"
    assert unexpected == "unexpected tensor layers.2.ff.weigth (5, 6) (nearest: layers.2.ff.weight)"


def test_a_rule_that_matches_nothing_is_reported_once():
    def drop(tensors):
        for i in range(4):
            tensors[f"layers.{i}.norms"] = tensors.pop(f"layers.{i}.norm")

    problems = problems_of_import(drop)
    assert problems[0] == (
        "unused rule: no tensor matches layers.{i}.norm ↔ layers/norm/scale, 4 of shape (6,) expected (nearest: "
        "layers.0.norms)"
    )
    assert [p.split()[:2] for p in problems[1:]] == [["unexpected", "tensor"]] * 4


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda t: t.update(pe=t["pe"][0]), "tensor pe: expected shape (1, 7, 6); received (7, 6)"),
        (
            lambda t: t.update({"layers.1.norm": t["layers.1.norm"].astype(int)}),
            "expected a dtype of float16, bfloat16, float32, float64",
        ),
        (
            lambda t: t.update({"layers.1.norm": t["layers.1.norm"].astype("float64")}),
            "tensor layers.1.norm: expected dtype float32, as layers.0.norm has; received float64",
        ),
        (
            lambda t: t["layers.3.attn.in_bias"].__setitem__(2, np.nan),
            "tensor layers.3.attn.in_bias (18,): 1 values are not finite",
        ),
        (
            lambda t: t["head.weight"].__setitem__((1, 2), 9),
            "tied tensors embed.weight and head.weight (11, 6) differ in 1 of 66 values",
        ),
        (lambda t: t.update(extra=np.zeros(3)), "unexpected tensor extra (3,)"),
        (lambda t: t.pop("head.weight"), "missing tensor head.weight: expected shape (11, 6)"),
    ],
)
def test_each_fault_of_a_checkpoint_is_named(change, expected):
    assert any(expected in problem for problem in problems_of_import(change))


def test_a_sign_of_zero_makes_copies_unequal():
    def change(tensors):
        tensors["embed.weight"][0, 0], tensors["head.weight"][0, 0] = 0.0, -0.0

    assert "differ in 1 of 66" in problems_of_import(change)[0]


def test_all_faults_are_reported_together():
    def change(tensors):
        tensors["pe"] = tensors["pe"][0]
        tensors["layers.3.attn.in_bias"][0] = np.inf
        tensors["extra"] = np.zeros(3)
        del tensors["layers.0.norm"]

    assert len(problems_of_import(change)) == 4


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda p: p.pop("layers/norm/scale"), "missing leaf layers/norm/scale: expected shape (4, 6)"),
        (lambda p: p.update(other=np.zeros(2)), "unexpected leaf other"),
        (
            lambda p: p.update({"layers/norm/scale": np.zeros((5, 6))}),
            "leaf layers/norm/scale: expected shape (4, 6); received (5, 6)",
        ),
        (lambda p: p["embedding"].__setitem__((0, 0), np.inf), "leaf embedding (11, 6): 1 values are not finite"),
        (
            lambda p: p["constants/decoder_positions"].__setitem__((0, 0), 5),
            "leaves that pe holds once constants/encoder_positions and constants/decoder_positions (7, 6) differ in 1 "
            "of 42 values",
        ),
        (
            lambda p: p.update({"layers/attention/key/bias": np.zeros((4, 2, 3), "float64")}),
            "expected one dtype; received float32, float64, float32",
        ),
        (lambda p: p.update({"embedding": np.zeros((11, 6), int)}), "leaf embedding: expected a dtype of"),
    ],
)
def test_each_fault_of_parameters_is_named(change, expected):
    problems = problems_of_export(change)
    assert any(expected in problem for problem in problems), problems


def test_mistakes_in_a_table_are_named():
    rules = [
        *TABLE,
        Rule("layers.{i}.gate", "layers/gate/kernel"),
        Rule("again", "embedding"),
    ]
    problems = problems_of_import(lambda t: None, rules, {**SHAPES, "left/over": (2,)})
    assert problems == [
        "unused rule: the model has no layers/gate/kernel (layers.{i}.gate ↔ layers/gate/kernel)",
        "leaf left/over (2,): no rule leads to it",
        "leaf embedding: several rules lead to it",
    ]
    twice = [*TABLE, Rule("layers.1.norm", "left/over")]
    assert problems_of_import(lambda t: None, twice, {**SHAPES, "left/over": (2,)}) == [
        "tensor layers.1.norm: several rules use it"
    ]
    wrong_rank = [*TABLE, Rule("other", "left/over", "A B -> B A")]
    assert (
        "B A are not the axes of a leaf (2,)"
        in problems_of_import(lambda t: None, wrong_rank, {**SHAPES, "left/over": (2,)})[0]
    )


def test_a_copy_that_may_be_left_out():
    rules = [Rule(("shared", "encoder.shared?"), "embedding")]
    shapes = {"embedding": (2, 3)}
    shared = np.ones((2, 3))
    leaves = leaves_from_tensors(rules, {"shared": shared}, shapes)
    both = {"shared": shared, "encoder.shared": shared}
    assert_identical(leaves_from_tensors(rules, both, shapes), leaves)
    assert list(tensors_from_leaves(rules, leaves, shapes)) == ["shared"]
    assert list(tensors_from_leaves(rules, leaves, shapes, optional=both)) == ["shared", "encoder.shared"]
    with pytest.raises(PortingError, match="tied tensors shared and"):
        leaves_from_tensors(rules, {**both, "encoder.shared": 2 * shared}, shapes)


@pytest.mark.parametrize("text", ["A B", "A B -> A", "A A -> A", "(3 N) (2 D) -> N D", "A -> A B"])
def test_malformed_axes_are_refused(text):
    with pytest.raises(ValueError, match="expected an equation"):
        Axes.parse(text)


def test_a_rule_must_have_as_many_paths_as_it_fuses_leaves():
    with pytest.raises(ValueError, match="fuses 3 leaves, and 2 paths"):
        Rule("w", "{query,key}/kernel", "(3 N) D -> D N")


def test_several_tensors_make_one_leaf():
    """One of each head, also where each holds several parts."""
    rules = [
        Rule(("layers.{i}.heads.{n}.q", "layers.{i}.again.{n}"), "layers/query/kernel", "{n} H D -> D {n} H"),
        Rule("layers.{i}.heads.{n}.kv", "layers/{key,value}/kernel", "{n} (2 H) D -> D {n} H"),
        Rule("shards.{n}", "embedding", "{n} V D -> {n} V D"),
    ]
    shapes = {f"layers/{part}/kernel": (2, 5, 3, 4) for part in ("query", "key", "value")} | {"embedding": (2, 7, 5)}
    rng = np.random.default_rng(0)
    leaves = {path: rng.standard_normal(shape).astype("float32") for path, shape in shapes.items()}
    tensors = tensors_from_leaves(rules, leaves, shapes)
    assert len(tensors) == 2 * 3 * 3 + 2
    query, value = leaves["layers/query/kernel"], leaves["layers/value/kernel"]
    np.testing.assert_array_equal(tensors["layers.1.heads.2.q"], query[1, :, 2].T)
    np.testing.assert_array_equal(tensors["layers.0.heads.1.kv"][4:], value[0, :, 1].T)
    assert_identical(leaves_from_tensors(rules, tensors, shapes), leaves)
    tensors["layers.1.heads.3.q"] = tensors.pop("layers.1.heads.2.q")
    tensors["layers.0.again.1"] = 2 * tensors["layers.0.again.1"]
    with pytest.raises(PortingError) as error:
        leaves_from_tensors(rules, tensors, shapes)
    assert [problem.split(":")[0].split(" (")[0] for problem in error.value.problems] == [
        "missing tensor layers.1.heads.2.q",
        "unexpected tensor layers.1.heads.3.q",
        "tied tensors layers.0.heads.1.q and layers.0.again.1",
    ]


def test_layers_may_have_names_of_their_own():
    rules = [Rule("layers.{i}.w", "layers/hidden/kernel", "F D -> D F", by_layer={2: ("last.w",), 0: ("a", "b")})]
    shapes = {"layers/hidden/kernel": (3, 4, 5)}
    leaves = {"layers/hidden/kernel": np.random.default_rng(0).standard_normal((3, 4, 5)).astype("float32")}
    tensors = tensors_from_leaves(rules, leaves, shapes)
    assert list(tensors) == ["a", "b", "layers.1.w", "last.w"]
    assert_identical(leaves_from_tensors(rules, tensors, shapes), leaves)
    with pytest.raises(PortingError) as error:
        leaves_from_tensors([Rule((), "layers/hidden/kernel", by_layer={0: ("a",), 4: ("w",)})], tensors, shapes)
    assert error.value.problems[:3] == [
        "leaf layers/hidden/kernel[1]: no rule leads to it",
        "leaf layers/hidden/kernel[2]: no rule leads to it",
        "unused rule: the model has no layers/hidden/kernel[4] (w)",
    ]


def test_what_counts_tensors_stands_on_both_sides():
    for names, axes in (("heads.{n}.q", "H D -> D H"), ("q", "{n} H D -> D {n} H")):
        with pytest.raises(ValueError, match=r"expected \{n\} in names and axes, or in neither"):
            Rule(names, "query/kernel", axes)
    with pytest.raises(ValueError, match=r"expected \{n\} first, as in"):
        Axes.parse("H {n} D -> D {n} H")


@given(
    st.permutations("ABCD"),
    st.permutations("ABCD"),
    st.lists(st.integers(1, 4), min_size=4, max_size=4),
    st.integers(1, 3),
    st.booleans(),
)
def test_split_and_merge_are_inverse(torch_axes, jax_axes, sizes, group, fused):
    """Whatever the order and the grouping of the axes."""
    merged = ["2", *torch_axes[:group]] if fused else torch_axes[:group]
    axes = Axes.parse(f"1 ({' '.join(merged)}) {' '.join(torch_axes[group:])} -> {' '.join(jax_axes)}")
    leaf_shape = tuple(sizes)
    tensor = np.arange(np.prod(axes.torch_shape(leaf_shape))).reshape(axes.torch_shape(leaf_shape))
    leaves = axes.split([tensor], leaf_shape)
    assert leaves.shape == (2 if fused else 1, *leaf_shape)
    np.testing.assert_array_equal(axes.merge(leaves), tensor)
    other = np.random.default_rng(0).standard_normal(leaves.shape)
    np.testing.assert_array_equal(axes.split([axes.merge(other)], leaf_shape), other)
