"""Every part of a spec refuses what it is not, in code, in tables and in files."""

from __future__ import annotations

import json
import math

import pytest

from termwise.attention.catalogue import LayerOptions, catalogue
from termwise.attention.kernels import Exp, FeatureMap, Minimax, Polynomial, Power
from termwise.attention.names import parse
from termwise.attention.normalizers import RMS, Layer, RowSum, RunningGateSum
from termwise.attention.refusals import check_fields, check_spec
from termwise.attention.spec import AttentionSpec, Local
from tests.attention.compare import equal, refused


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Local(0), ("window=0", "from 1")),
        (lambda: Local(4, -1), ("sinks=-1", "from 0")),
        (lambda: Local(True), ("window=True",)),
        (lambda: Polynomial(()), ("orders=()",)),
        (lambda: Polynomial((2, 1)), ("increasing", "(1, 2)")),
        (lambda: Polynomial((0, 0)), ("increasing",)),
        (lambda: Polynomial((-1,)), ("orders=(-1,)",)),
        (lambda: Polynomial((80,)), ("79",)),
        (lambda: Polynomial((0,), center="median"), ("median", "'mean'")),
        (lambda: Polynomial((0,), "pade"), ("pade", "taylor", "Minimax")),
        (lambda: Polynomial((0, 1), (1.0,)), ("1 coefficients for 2 orders",)),
        (lambda: Polynomial((0, 1), (1.0, 0.0)), ("last one not zero",)),
        (lambda: Polynomial((0,), (math.nan,)), ("finite",)),
        (lambda: Power(0), ("degree=0", "from 1")),
        (lambda: Power(80), ("79",)),
        (lambda: FeatureMap("elu"), ("elu", "elu1")),
        (lambda: FeatureMap("elu1", 0), ("power=0",)),
        (lambda: FeatureMap("elu1", 2, "both"), ("power_of", "product")),
        (lambda: FeatureMap("relu", clamp=math.inf), ("clamp",)),
        (lambda: Exp(math.nan), ("clamp", "Exp(clamp=5.0)")),
        (lambda: Minimax(-1.0), ("radius", "positive")),
        (lambda: RowSum(floor=0.0), ("floor",)),
        (lambda: RowSum(eps=-1.0), ("eps",)),
        (lambda: RMS(eps=0.0), ("eps", "positive")),
        (lambda: Layer(eps=0.0), ("eps", "positive")),
        (lambda: RunningGateSum(floor=-1.0), ("floor",)),
        (lambda: LayerOptions(conv_size=-1), ("conv_size",)),
        (lambda: LayerOptions(conv_activation="silu"), ("convolution",)),
        (lambda: LayerOptions(conv_size=2, conv_activation="gelu"), ("gelu", "silu")),
    ],
)
def test_fields_validate_themselves(make, words):
    with refused(*words):
        make()


def unchecked(**fields) -> AttentionSpec:
    """A spec whose fields nobody has looked at: the tests' own type checker would refuse them first."""
    spec = object.__new__(AttentionSpec)
    for name, value in {**vars(AttentionSpec()), **fields}.items():
        object.__setattr__(spec, name, value)
    return spec


def test_the_fields_of_a_spec_are_checked():
    from_dict = AttentionSpec.from_dict
    with refused("'kernal'", "did you mean 'kernel'"):
        from_dict({"kernal": {"type": "Exp"}})
    with refused("'Expp'", "did you mean 'Exp'"):
        from_dict({"kernel": {"type": "Expp"}})
    with refused("kernel", "None"):
        from_dict({"kernel": None})
    with refused("'clmp'", "did you mean 'clamp'"):
        from_dict({"kernel": {"type": "Exp", "clmp": 5}})
    with refused("Power", "degree"):
        from_dict({"kernel": {"type": "Power"}})
    for wrong, words in (
        ({"input_gate": "yes"}, ("input_gate='yes'", "'count'")),
        ({"output_gate": "middle"}, ("output_gate='middle'", "'before'")),
        ({"log_decay": "yes"}, ("log_decay='yes'", "True")),
        ({"local": 64}, ("local=64", "Local(window=64, sinks=4)")),
        ({"kernel": "exp"}, ("kernel='exp'", "Exp()")),
        ({"normalizer": None}, ("normalizer=None", "RowSum()")),
    ):
        with refused(*words):
            check_spec(unchecked(**wrong))
    with refused("'sink'", "did you mean 'sinks'"):
        from_dict({"kernel": {"type": "Drop"}, "local": {"window": 3, "sink": 1}})
    with refused("normalizer", "'L3'"):
        from_dict({"normalizer": {"type": "L3"}})
    for broken in ([1, 2], "exp", None):
        with refused("AttentionSpec", repr(broken), "no table of fields"):
            check_fields("AttentionSpec", broken, ["kernel"])


def test_spec_files(tmp_path):
    path = tmp_path / "mine.json"
    spec = parse("taylor:0..2@mean+w8s2|l2+decay")
    path.write_text(json.dumps({**spec.to_dict(), "layer": {"rotary": False}, "note": "mine"}))
    variant = catalogue.variant(str(path))
    equal(
        (variant.spec, variant.layer, variant.note, variant.name),
        (spec, LayerOptions(rotary=False), "mine", "mine"),
        "a spec file",
    )
    for content, words in (
        ("{", ("not JSON",)),
        ("[]", ("JSON object",)),
        ('{"kernal": 1}', ("kernal", "did you mean")),
        ('{"layer": {"rotery": true}}', ("rotery", "rotary")),
    ):
        path.write_text(content)
        with refused(str(path), *words):
            catalogue.variant(str(path))
    with refused("no such spec file"):
        catalogue.variant(str(tmp_path / "none.json"))
