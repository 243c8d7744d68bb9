"""Saving and loading, names, starting weights, refusals."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_models import VARIANTS, VOCAB, small, tokens
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from termwise.attention.names import parse
from termwise.models import PRESETS, TermwiseConfig, TermwiseForCausalLM, build, extra_parameters, load, num_parameters


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", VARIANTS)
def test_saved_models_are_bit_equal(name, tied, tmp_path):
    model = small(name, tie_word_embeddings=tied)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(tmp_path)
    again, tokenizer = load(tmp_path)
    assert tokenizer is None
    assert {p.name for p in tmp_path.iterdir()} == {"config.json", "generation_config.json", "model.safetensors"}
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied
    assert again.config.to_dict() == model.config.to_dict() | {"_name_or_path": str(tmp_path)} | {
        "dtype": again.config.to_dict()["dtype"]
    }
    for (key, before), (key_again, after) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        assert key == key_again
        assert torch.equal(before, after)
    assert torch.equal(model(tokens(2, 9)).logits, again(tokens(2, 9)).logits)


def test_auto_classes_know_the_model(tmp_path):
    model = small("taylor:0..2@mean+w8s2")
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), TermwiseConfig)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(again, TermwiseForCausalLM)
    assert again.config.specs == model.config.specs
    assert torch.equal(model(tokens(1, 9)).logits, again(tokens(1, 9)).logits)


def test_a_layer_has_a_parameter_only_where_it_is_declared():
    declared = {
        "softmax": set(),
        "taylor:0..2@mean+w8s2": set(),
        "power:2+decay": {"decay_proj", "q_conv", "k_conv", "v_conv"},
        "exp<5|layer+gi+ga": {
            "input_gate_proj",
            "output_gate_proj",
            "norm_weight",
            "norm_bias",
            "q_conv",
            "k_conv",
            "v_conv",
            "blank_tokens",
        },
        "unit|identity+gc": {"count_exponent"},
        "identity|identity+decay": {"decay_proj", "value_step_proj", "output_norm", "q_norm", "k_norm"},
        "exp<5|runninggate>=1": {"running_gate_proj"},
        "mixed": {
            "input_gate_proj",
            "output_gate_proj",
            "norm_weight",
            "norm_bias",
            "value_step_proj",
            "output_norm",
            "q_norm",
            "k_norm",
        },
    }
    plain = num_parameters(small("softmax"))
    for name, expected in declared.items():
        model = small(name)
        assert set(extra_parameters(model)) == expected
        assert num_parameters(model) == plain + sum(extra_parameters(model).values())
        for _, parameter in model.named_parameters():
            assert parameter.grad is None
        model(tokens(1, 9), labels=tokens(1, 9)).loss.backward()
        unused = [n for n, p in model.named_parameters() if p.grad is None or not bool((p.grad != 0).any())]
        assert unused == []


def test_variants_of_one_seed_share_their_starting_weights():
    softmax = build("softmax", vocab_size=VOCAB, seed=5).state_dict()
    for name in ("taylor:0..4@mean", "exp|l2+ga", "power:2+decay"):
        other = build(name, vocab_size=VOCAB, seed=5, layer_options={"conv_size": 2}, num_hidden_layers=6).state_dict()
        assert all(torch.equal(other[key], value) for key, value in softmax.items())
    assert not torch.equal(
        build("softmax", vocab_size=VOCAB, seed=6).state_dict()["lm_head.weight"], softmax["lm_head.weight"]
    )


def test_building_leaves_the_global_random_state_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    build("softmax", preset="recall", vocab_size=VOCAB)
    assert torch.equal(torch.rand(3), expected)


def test_starting_values():
    model = build(
        "exp<5|layer+gi+ga+decay", preset="recall", vocab_size=VOCAB, layer_options={"conv_size": 4, "qk_norm": True}
    )
    layer = model.model.layers[0].self_attn
    assert layer.q_proj.weight.std().item() == pytest.approx(0.06, rel=0.1)
    assert model.model.embed_tokens.weight.std().item() == pytest.approx(0.06, rel=0.1)
    assert bool((layer.decay_proj.bias == -4).all())
    assert bool((layer.norm_weight == 1).all())
    assert bool((layer.norm_bias == 0).all())
    assert bool((layer.input_gate_proj.bias == 0).all())
    assert bool((layer.q_norm.weight == 1).all())
    assert 0.4 < float(layer.q_conv.weight.abs().max()) <= 0.5


def test_presets():
    sizes = {
        name: num_parameters(build("softmax", preset=name, vocab_size=v))
        for name, v in (("tiny", 257), ("small", 4096), ("recall", 64))
    }
    assert sizes == {"tiny": 812_288, "small": 9_988_800, "recall": 90_432}
    paper = PRESETS["paper"]
    assert (
        paper.hidden_size,
        paper.intermediate_size,
        paper.num_attention_heads,
        paper.num_hidden_layers,
        paper.context,
    ) == (1024, 2048, 16, 20, 1024)
    assert [PRESETS[name].context for name in ("tiny", "small")] == [256, 1024]


def test_a_spec_file_and_a_catalogue_name(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(parse("taylor:0..2@mean+w8s2").to_dict()))
    assert build(str(path), preset="recall", vocab_size=9).config.specs[0] == parse("taylor:0..2@mean+w8s2")
    plus = build("gated_softmax_plusplus", preset="recall", vocab_size=9)
    assert plus.config.options[0].conv_size == 4
    with pytest.raises(ValueError, match="softmax"):
        build("softmaxx", preset="recall", vocab_size=9)


def test_wrong_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no model folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no config\.json"):
        load(tmp_path)
    model = small()
    model.save_pretrained(tmp_path / "a")
    weights = tmp_path / "a" / "model.safetensors"
    weights.rename(tmp_path / "a" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin, a pickle, which is never opened here.*python -c"):
        load(tmp_path / "a")
    with pytest.raises(OSError, match="safetensors"):
        TermwiseForCausalLM.from_pretrained(tmp_path / "a")
    for kwargs, says in (({"use_safetensors": False}, "pickles"), ({"trust_remote_code": True}, "never run")):
        with pytest.raises(ValueError, match=says):
            TermwiseForCausalLM.from_pretrained(tmp_path / "a", **kwargs)
    (tmp_path / "a" / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        load(tmp_path / "a")
    (tmp_path / "a" / "config.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"config\.json: a list, where a JSON object"):
        load(tmp_path / "a")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"hidden_size": "wide"}, r"config\.json describes no model \(.*hidden_size"),
        ({"num_attention_heads": 0}, r"config\.json describes no model \(ZeroDivisionError"),
        ({"num_attention_heads": 5}, r"config\.json describes no model \(.*not a multiple"),
    ],
)
def test_values_that_describe_no_model_are_refused_with_the_file(fields, says, tmp_path):
    config = LlamaConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(ValueError, match=says):
        load(tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(bad, tmp_path):
    model = small("softmax")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[2, 3] = bad
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.up_proj\.weight holds NaN or infinity"):
        load(tmp_path)


def test_loading_and_saving_print_nothing(tmp_path, capsys):
    small("softmax").save_pretrained(tmp_path)
    capsys.readouterr()
    load(tmp_path)
    assert capsys.readouterr() == ("", "")


def test_weights_that_do_not_fit_are_refused(tmp_path):
    small("softmax").save_pretrained(tmp_path)
    found = json.loads((tmp_path / "config.json").read_text())
    found["attention"] = parse("exp|l2+ga").to_dict()
    (tmp_path / "config.json").write_text(json.dumps(found))
    with pytest.raises(ValueError, match=r"missing keys: .*output_gate_proj"):
        load(tmp_path)
    found["attention"], found["num_hidden_layers"] = parse("exp").to_dict(), 1
    (tmp_path / "config.json").write_text(json.dumps(found))
    with pytest.raises(ValueError, match=r"unexpected keys: model\.layers\.1"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_layers": 3}, "unknown field 'num_layers'.*num_hidden_layers"),
        ({"hidden_size": 0}, "hidden_size=0; allowed are whole numbers from 1"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is no multiple of num_key_value_heads=3"),
        ({"hidden_size": 30}, "hidden_size=30 is no multiple of num_attention_heads=4"),
        ({"head_dim": 7}, "head_dim=7 is odd"),
        ({"hidden_act": "silo"}, "did you mean 'silu'"),
        ({"initializer_range": 0.0}, "initializer_range=0.0"),
        ({"rope_parameters": {"rope_type": "yarm"}}, "did you mean 'yarn'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor"),
        ({"attention": "softmax"}, "attention='softmax'; allowed are a AttentionSpec or its dict"),
        ({"attention": {"kernel": {"type": "Exq"}}}, "did you mean 'Exp'"),
        ({"attention": [parse("exp")]}, "attention lists 1 layer, num_hidden_layers is 2"),
        ({"attention": [parse("exp"), {"normaliser": 1}]}, r"attention\[1\]: .*did you mean 'normalizer'"),
        ({"layer_options": {"conv_size": -1}}, "conv_size=-1"),
        ({"layer_options": [{"blank_tokens": 1}, {}]}, "every layer must name the same number"),
    ],
)
def test_configurations_that_cannot_be_get_one_message(fields, says):
    shape = {
        "vocab_size": 9,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    with pytest.raises(ValueError, match=says) as caught:
        TermwiseConfig(**shape | fields)
    assert "\n" not in str(caught.value)


def test_build_refuses_unknown_presets_and_fields():
    with pytest.raises(ValueError, match="did you mean 'tiny'"):
        build("softmax", preset="tinny", vocab_size=9)
    with pytest.raises(ValueError, match="did you mean 'hidden_size'"):
        build("softmax", vocab_size=9, hiden_size=3)


@pytest.mark.parametrize("cut", [0, 4, 5000])
def test_weights_cut_short_are_named(cut, tmp_path):
    small("softmax").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or cut short"):
        load(tmp_path)


def test_weights_of_another_shape_are_named(tmp_path):
    small("softmax").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": VOCAB + 1}))
    with pytest.raises(ValueError, match=r"weights do not fit config\.json: \d+ mismatched keys"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["{}", "", "no JSON"])
def test_a_broken_tokenizer_is_one_message(text, tmp_path):
    small("softmax").save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match="its tokenizer cannot be read"):
        load(tmp_path)


def test_the_line_that_is_said_of_a_pickle_converts_it(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    theirs = LlamaForCausalLM(LlamaConfig(**shape))
    theirs.config.architectures = ["LlamaForCausalLM"]
    theirs.config.save_pretrained(tmp_path)
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="convert it once") as refused:
        load(tmp_path)
    exec(str(refused.value).split('python -c "')[1].removesuffix('"'), {})
    ours, _ = load(tmp_path)
    torch.testing.assert_close(ours(tokens(1, 9)).logits, theirs(tokens(1, 9)).logits, atol=2e-5, rtol=1e-4)
