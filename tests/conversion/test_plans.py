"""Plans that do not fit are refused before anything is written, naming what is wrong."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from tests.conversion.tiny_conversion import MIXED, SIZES, WIDTH, group, original, plan

from termwise.attention.catalogue import catalogue
from termwise.conversion.assemble import converted, open_source
from termwise.conversion.plan import read_plan


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original")
    original(folder)
    return open_source(str(folder))


def read(given, source):
    return read_plan(str(given), source.model.config, source.family, "abc")


MODEL = {"folder": "tiny", "family": "llama", "head_dim": WIDTH, **SIZES}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema": 2}, "schema 2 was written by a newer termwise"),
        ({"schema": None}, "schema None was never written"),
        ({"model": None}, "a plan holds `model`"),
        ({"layers": {}}, "and `layers`"),
        ({"model": MODEL | {"family": "qwen3"}}, "made for tiny: family 'qwen3' .the model has 'llama'."),
        ({"model": MODEL | {"num_kv_heads": 4}}, "num_kv_heads 4 .the model has 2."),
        ({"model": MODEL | {"head_dim": 8, "num_layers": 9}}, "num_layers 9 .the model has 3.*head_dim 8"),
        ({"model": MODEL | {"config_hash": "abd"}}, "another one of the same sizes .abd, this model's is abc."),
        ({"layers": MIXED[:2]}, "2 layers are planned, the model has 3"),
        ({"layers": [MIXED[0], [group([0], "exp")], MIXED[2]]}, r"layers\[1\]: .*kv heads \[1\] not at all"),
        ({"layers": [[group([0, 1], "exp"), group([1], "drop+w8")], *MIXED[1:]]}, r"layers\[0\]: .*\[1\] twice"),
        ({"layers": [[group([0, 1, 2], "exp")], *MIXED[1:]]}, "2. that are not there"),
        ({"layers": [group([0, 1], "exp"), *MIXED[1:]]}, r"layers\[0\] is no list of groups"),
        (
            {"layers": [[group([0, 1], "exp|layer")], *MIXED[1:]]},
            "needs norm_weight, norm_bias, which the original has no",
        ),
        ({"layers": [[group([0, 1], "taylor:0..2+ga+decay")], *MIXED[1:]]}, "needs output gate, decay, which"),
        ({"context": 0}, "context=0; allowed are whole numbers from 1"),
        ({"context": 10**9}, "context=1000000000; the model was made for"),
        ({"measured": {"loss_rise": float("nan")}}, "NaN is no number"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_by_name(source, changes, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        read(plan(tmp_path, **changes), source)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("tailor:0..2", "did you mean"),
        ("exp|layer", "needs norm_weight"),
        ("taylor:0..2+gi", "needs input gate"),
        ("2mamba", "changes the layer as well"),
    ],
)
def test_a_name_that_cannot_be_is_refused(source, given, says):
    with pytest.raises(ValueError, match=says):
        read(given, source)


@pytest.mark.parametrize("given", ["r/plan", "plan.json", "~/plans/r"])
def test_a_path_where_nothing_is_is_named_as_one(source, given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = (
        rf"no file or folder '{given}'; give the plan\.json of termwise plan or its folder, one spec .*, or identity"
    )
    with pytest.raises(ValueError, match=wanted):
        read(given, source)


def test_the_slash_of_a_scale_makes_no_path_of_a_name(source):
    assert read("relu/sqrtd", source).layers[0][0].spec == catalogue["relu/sqrtd"]


def test_files_that_are_no_plan_are_told(source, tmp_path):
    with pytest.raises(ValueError, match=r"holds no plan\.json"):
        read(tmp_path, source)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        read(tmp_path, source)
    (tmp_path / "plan.json").write_text(json.dumps([1]))
    with pytest.raises(ValueError, match="not a JSON object"):
        read(tmp_path / "plan.json", source)


NAME = "taylor:0..1@mean3+w4s1h4e16"
CENTERED = [[group([0], "exp"), group([1], NAME)], [group([0, 1], NAME)], [group([0, 1], "exp")]]
PLACES = ["layers.0.centers.1", "layers.1.centers.0", "layers.1.centers.1"]


def test_centers_come_from_the_plan_and_reach_the_model(source, tmp_path):
    wanted = {name: torch.randn(3, WIDTH) for name in PLACES}
    path = plan(tmp_path, CENTERED)
    save_file(wanted, tmp_path / "plan.safetensors")
    state = converted(source.model, read(path, source)).state_dict()
    assert torch.equal(state["model.layers.0.self_attn.groups.1.centers"], wanted[PLACES[0]][None])
    assert torch.equal(state["model.layers.1.self_attn.centers"], torch.stack([wanted[name] for name in PLACES[1:]]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop(PLACES[1]), r"tensor layers\.1\.centers\.0 is missing"),
        (
            lambda t: t.update({PLACES[0]: torch.zeros(3, 4)}),
            r"layers\.0\.centers\.1 has shape \(3, 4\), the spec wants \(3, 6\)",
        ),
        (lambda t: t[PLACES[2]].fill_(float("nan")), r"layers\.1\.centers\.1 holds numbers that are not finite"),
        (lambda t: t.update({"layers.2.centers.0": torch.zeros(3, 6)}), r"layers\.2\.centers\.0 belongs to no head"),
    ],
)
def test_wrong_centers_are_refused(source, change, says, tmp_path):
    tensors = {name: torch.randn(3, WIDTH) for name in PLACES}
    change(tensors)
    path = plan(tmp_path, CENTERED)
    save_file(tensors, tmp_path / "plan.safetensors")
    with pytest.raises(ValueError, match=says):
        read(path, source)


def test_files_of_centers_that_are_not_there_or_cut_are_told(source, tmp_path):
    path = plan(tmp_path, CENTERED)
    with pytest.raises(ValueError, match="which stand in it"):
        read(path, source)
    (tmp_path / "plan.safetensors").write_bytes(b"cut")
    with pytest.raises(ValueError, match="damaged or cut short"):
        read(path, source)
    with pytest.raises(ValueError, match=r"which only a plan\.json brings"):
        read(NAME, source)
