"""`termwise verify` on sound models: every check holds, records say what was allowed, an interrupted run goes on."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from small_exam import examined, small
from transformers import LlamaConfig, LlamaForCausalLM

from termwise import cli
from termwise.attention.names import parse
from termwise.attention.state import AttentionState
from termwise.evaluation import agreement, verification
from termwise.evaluation.exam import Sizes
from termwise.evaluation.judging import allowed, judged
from termwise.evaluation.subject import open_subject
from termwise.evaluation.tracing import Errors
from termwise.evaluation.verify_config import VerifyConfig, default_folder, resolved
from termwise.models import build
from termwise.models.groups import HeadGroup
from termwise.report.read import read
from termwise.report.verify_view import verify_view
from termwise.results import RunFolder

MIXED = [
    {"kv_heads": [1], "spec": "softmax"},
    {"kv_heads": [0], "spec": "taylor:0..2@mean+w16s4"},
]


def mixed():
    """A model whose first layer holds an exact head and one of constant size."""
    groups = [{"kv_heads": g["kv_heads"], "spec": small(g["spec"]).config.specs[0].to_dict()} for g in MIXED]
    return small("softmax", attention=[groups, groups])


# What the plain name does not say.
SOUND = {
    "softmax": {},
    "linear_elu": {},
    "taylor:0..2@mean+w16s4": {},
    "identity|identity+decay": {
        "layer_options": {"conv_size": 3, "value_step": True, "output_norm": True, "qk_norm": True}
    },
    "exp<5|layer+gi+ga": {"layer_options": {"conv_size": 4, "blank_tokens": 3}},
}


@pytest.mark.parametrize(
    ("name", "stage"),
    [*((name, "float64") for name in SOUND), ("taylor:0..2@mean+w16s4", "float32"), ("mixed", "float32")],
)
def test_every_check_holds_on_a_sound_model(name, stage):
    model = mixed() if name == "mixed" else small(name, **SOUND[name])
    exam = examined(model, stage)
    for _, check in agreement.planned([stage], is_quick=True):
        outcome = agreement.run_check(check, exam)
        assert outcome.status in ("ok", "excluded"), (check.name, outcome.reason)
        assert (outcome.status == "excluded") == (check.name == "chunked" and name in ("softmax", "exp<5|layer+gi+ga"))


def test_bfloat16_is_judged_by_its_own_plain_form():
    exam = examined(small("taylor:0..2@mean+w16s4"), "bfloat16")
    for name in ("full", "token_by_token", "beyond_256", "padded_left", "rolled_back", "wide_sums", "causal"):
        check = next(check for check in agreement.CHECKS if check.name == name)
        outcome = agreement.run_check(check, exam)
        assert outcome.status == "ok", (name, outcome.reason)
    errors = exam.errors(exam.parallel(0), 0)
    worse = Errors(3 * errors.values, errors.sequence, errors.position)
    assert exam.judge(worse, "three times the error").status == "failed"


def test_a_form_that_is_not_finite_fails():
    bad = Errors(torch.tensor([[0.0], [torch.inf]]), torch.zeros(2, dtype=torch.int64), torch.arange(2))
    for plain in (None, lambda errors: errors.values):
        assert judged(bad, plain, torch.float32, ("this", "that")).status == "failed"
    assert float(allowed(3, torch.float64, None)[0][-1]) == pytest.approx(2e-10)


def test_rolled_back_to_an_empty_buffer_then_stepped_with_decay():
    """A buffer of no keys and a decay: the next step must write the age of its own key."""
    model = small("identity|identity+decay").double()
    ids = torch.randint(29, (1, 200), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        cache = model(ids[:, :128], use_cache=True).cache
        model(ids[:, :1], cache=cache)
        model(ids[:, :63], cache=cache)
        cache.crop(-64)
        assert cache.layers[0].states[0].key.shape[2] == 0
        steps = [model(ids[:, i : i + n], cache=cache).logits for i, n in ((128, 1), (129, 1), (130, 4))]
        expected = model(ids[:, :134], use_cache=False).logits[:, 128:]
    assert float((torch.cat(steps, dim=1) - expected).norm() / expected.norm()) < 1e-10


def test_sequences_pass_windows_two_folds_and_position_256():
    for name in ("softmax", "taylor:0..2@mean+w300s4"):
        sizes = Sizes.of(small(name).config.groups)
        assert sizes.main >= max(sizes.first_fold + 128, 257)
        assert min(sizes.prefixes) == 1
    assert sizes.first_fold == 304 + 127


def test_batches_pass_the_folds_of_a_head_of_every_kind_the_long_sequence_those_of_all():
    names = ["taylor:0@mean8+w900s4e64", "taylor:0@mean4+w40s4e64", "taylor:0,1@mean+w200s4", "taylor:0,1@mean+w500s4"]
    alone = [[HeadGroup((0,), parse(name))] for name in names]
    sizes = Sizes.of(alone)
    assert (sizes.first_fold, sizes.batch_fold) == (900 + 4 + 64 + 127, 200 + 4 + 127)
    assert sizes.main > sizes.first_fold + 128 and max(sizes.prefixes) + sizes.more > sizes.batch_fold + 64
    # Several heads in one state, and a state after another in its layer, are code of their own.
    together = [HeadGroup((0, 1), parse("taylor:0,1@mean+w300s4"))]
    assert Sizes.of([*alone, together]).batch_fold == 300 + 4 + 127
    second = [HeadGroup((0,), parse(names[1])), HeadGroup((1,), parse("taylor:0,1@mean+w400s4"))]
    assert Sizes.of([*alone, together, second]).batch_fold == 400 + 4 + 127
    assert Sizes.of([*alone, together, second, list(reversed(second))]).batch_fold == 300 + 4 + 127


def inside(*arguments) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(map(str, arguments)))
    return ended.value.code


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A Llama folder without a tokenizer: bytes are its symbols."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=257, initializer_range=0.2, **sizes)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("".join(f"{i} times {i} is {i * i}. " for i in range(300)))
    return path


def test_the_command_on_a_llama_folder(llama, text, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ("verify", llama, "--text", text, "--quick", "--soak", "512", "--dtype", "float32", "--out", out)
    assert inside(*arguments) == 0
    said = capsys.readouterr()
    assert "All forms agree" in said.out and "index.html" in said.out
    assert "checks, about" in said.err
    records = {(r.subject["check"], r.subject["stage"]): r for r in RunFolder.open(out).records()}
    assert records["original", "original"].value < 1e-5
    assert (
        records["token_by_token", "float64"].value < records["token_by_token", "float64"].subject["tolerance"] == 1e-10
    )
    assert records["drift", "float32"].status == "ok"
    assert records["memory", "float32"].status == "excluded"
    page = (out / "index.html").read_text()
    assert "Transformers&#39; own class" in page and "some heads are exact" in page


def test_an_interrupted_verification_goes_on(llama, text, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    arguments = ("verify", llama, "--text", text, "--quick", "--soak", "0", "--dtype", "float32", "--out", out)
    made = []

    def interrupted(check, exam, original=agreement.run_check):
        made.append((exam.stage, check.name))
        if len(made) == 6:
            raise KeyboardInterrupt
        return original(check, exam)

    monkeypatch.setattr(agreement, "run_check", interrupted)
    assert inside(*arguments) == 130
    before = len(RunFolder.open(out).records())
    assert before == 6  # the original's class and five checks
    assert inside(*arguments) == 0
    assert made[5] == made[6]
    assert len(made) == len(set(made)) + 1
    assert "6 of " in capsys.readouterr().err
    assert verify_view(read(out)).is_finished


def test_a_budget_is_spent_on_what_tells_most_and_the_next_call_goes_on(llama, text, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    arguments = ("verify", llama, "--text", text, "--quick", "--soak", "512", "--dtype", "float32", "--out", out)
    monkeypatch.setattr(verification, "_probe", lambda model, text: (1e-3, 1e-3))
    made = []

    def recorded(check, exam, original=agreement.run_check):
        made.append((exam.stage, check.name))
        return original(check, exam)

    monkeypatch.setattr(agreement, "run_check", recorded)
    config = VerifyConfig(str(llama), (str(text),), soak=512, quick=True, dtype="float32")
    opened = open_subject(config, tmp_path / "data", needed=0)
    steps = list(verification.plan(config, opened))
    first = [step for step in steps if agreement.rank(step.stage, step.name) == 0]
    assert {step.stage for step in first} == {"original", "float64"}
    enough = sum(step.seconds for step in first) + 1e-6
    assert inside(*arguments, "--budget", f"{enough:.6f}s") == 0
    said = capsys.readouterr()
    assert made == [(step.stage, step.name) for step in first if step.check is not None]
    assert {name for _, name in made} <= agreement.FIRST
    assert "the budget is spent" in said.err and "None failed so far" in said.out
    assert not verify_view(read(out)).is_finished
    assert inside(*arguments, "--budget", "1h") == 0
    assert len(made) == len(set(made)) == sum(step.check is not None for step in steps)
    assert verify_view(read(out)).is_finished
    assert "All forms agree" in capsys.readouterr().out


def test_a_budget_too_small_for_any_check_makes_one():
    steps = [verification.Step("even", "definition", None, 9.0), verification.Step("float64", "full", None, 5.0)]
    assert verification.within(1.0, steps) == steps[1:]
    assert verification.within(20.0, steps) == steps


def test_a_failed_check_says_where_and_exits_with_1(llama, text, tmp_path, monkeypatch, capsys):
    def rollback(self, count, original=AttentionState.rollback):
        return original(self, count - 1) if count > 1 else original(self, count)

    monkeypatch.setattr(AttentionState, "rollback", rollback)
    out = tmp_path / "out"
    arguments = ("verify", llama, "--text", text, "--quick", "--soak", "0", "--dtype", "float32", "--out", out)
    assert inside(*arguments, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["failures"] > 0
    failed = [r for r in told["records"] if r["status"] == "failed"]
    rolled = next(r for r in failed if r["subject"]["check"] == "rolled_back")
    assert "first in layer 0, from position" in rolled["reason"]
    assert rolled["value"] is None and rolled["subject"]["measured"] > rolled["subject"]["tolerance"]
    assert "What failed, and where" in (out / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere/model",), "no such folder"),
        (("softmax", "--soak", "12"), "--soak 12"),
        (("softmax", "--soak", "1k,2k"), "one length"),
        (("softmax", "--budget", "soon"), "allowed are numbers with s, m, h or d"),
        (("softmax", "--dtype", "fp8"), "allowed are all, float32, bfloat16"),
        (("softmax", "--text", "nowhere.txt"), "no such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, says, tmp_path, capsys):
    assert inside("verify", *arguments, "--out", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert says in said and len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_the_cost_is_said_before(text, tmp_path, capsys):
    assert inside("verify", "elu1", "--text", text, "--dry-run", "--json", "--out", tmp_path / "out") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["checks"] > 100 and told["seconds"] > 1
    assert not (tmp_path / "out").exists()


def test_changed_weights_are_another_folder(llama):
    config = VerifyConfig(str(llama))
    before = default_folder(resolved(config))
    weights = llama / "generation_config.json"
    kept = weights.read_text()
    weights.write_text(kept + " ")
    after = default_folder(resolved(config))
    weights.write_text(kept)
    assert before != after


def test_a_soak_streams_layers_whose_groups_have_unequally_many_heads():
    """A plan's layers: heads in groups of one and of several, exact ones among them."""
    from termwise.evaluation import soak, soaked

    some, others = parse("taylor:0@mean+w8s4h4"), parse("taylor:0..2@mean+w16s4")
    groups = [{"kv_heads": [1], "spec": some.to_dict()}, {"kv_heads": [0, 2], "spec": others.to_dict()}]
    exact = [{"kv_heads": [0, 1], "spec": parse("exp").to_dict()}, {"kv_heads": [2], "spec": some.to_dict()}]
    model = small("softmax", num_attention_heads=6, num_key_value_heads=3, hidden_size=24, attention=[groups, exact])
    text = torch.randint(29, (700,), generator=torch.Generator().manual_seed(1))
    seen = soak.stream(model, text, 640, lambda done: None)
    assert [len(of_layer) for of_layer in seen.rows] == [2, 2]
    assert soaked.drift(seen).status == soaked.states(seen).status == soaked.bad_rows(seen).status == "ok"
    assert soaked.bad_rows(seen).method.startswith(f"of {2 * 6 * 640:,} rows")
    assert soaked.memory(seen).status == "excluded"


def test_memory_is_told_flat_only_where_slots_are_full():
    """A window that is not full yet grows, and is no fault."""
    from termwise.evaluation import soak, soaked

    model = small("taylor:0@mean+w300s4e64", max_position_embeddings=2048)
    text = torch.randint(29, (1200,), generator=torch.Generator().manual_seed(1))
    short, long = (soak.stream(model, text, length, lambda done: None) for length in (512, 1024))
    assert soaked.memory(short).status == "not_measured" and "too short" in soaked.memory(short).reason
    assert soaked.memory(long).status == "ok"
    parts = [*long.parts[:-1], dataclasses.replace(long.parts[-1], nbytes=long.parts[-1].nbytes + 64)]
    assert soaked.memory(dataclasses.replace(long, parts=parts)).status == "failed"


def test_a_soak_finds_sums_that_are_rounded():
    """bfloat16 inputs, whose sums a faulty state would round as well."""
    from functools import partial

    from termwise.attention import forms
    from termwise.evaluation import soak, soaked

    model = build("elu1", preset="recall", vocab_size=29, seed=1).to(torch.bfloat16).eval()
    text = torch.randint(29, (700,), generator=torch.Generator().manual_seed(1))
    assert soaked.states(soak.stream(model, text, 600, lambda done: None)).status == "ok"

    def rounding(*arguments, original=forms.attend, **given):
        out, state = original(*arguments, **given)
        if state is not None and arguments[0].dtype == torch.bfloat16:
            state = state.__class__(**{**vars(state), "moments": state.moments.bfloat16().float(), "room": None})
        return out, state

    before = soak.attend
    try:
        soak.attend = partial(rounding, original=before)
        assert soaked.states(soak.stream(model, text, 600, lambda done: None)).status == "failed"
    finally:
        soak.attend = before


@pytest.mark.parametrize("name", ["taylor:0..3!", "taylor:0..3!@mean+w16s4"])
def test_rows_whose_sums_nearly_vanish_are_left_out_and_counted(name):
    from tests.attention.cancelling import divisor_share

    from termwise.evaluation.vanishing import kept_share

    generator = torch.Generator().manual_seed(0)
    spec = small(name).config.specs[0]
    query, key = (2 * torch.randn(1, 90, heads, 4, generator=generator, dtype=torch.float64) for heads in (4, 2))
    got = kept_share(query[0], key[0], spec, None)
    expected = divisor_share({"query": query, "key": key, "value": key}, spec)[0]
    # The oracle divides by the decayed count where that is larger; a sum below a hundredth is one by either.
    assert torch.equal(got < 1e-2, expected < 1e-2) or float(((got < 1e-2) != (expected < 1e-2)).double().mean()) < 0.02
    exam = examined(small(name, initializer_range=1.0), "float32")
    outcome = agreement.run_check(next(c for c in agreement.CHECKS if c.name == "token_by_token"), exam)
    assert outcome.status in ("ok", "excluded")
    assert "left out" in (outcome.method or outcome.reason)
