# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 4. From inspection to a converted model
#
# [日本語](4_inspect_to_converted.ja.py) · before: [3. Swap the denominator](3_swap_the_denominator.py)
#
# You have a model and pay for its cache. Which heads could keep less? Four commands answer in turn:
# **inspect** measures what each head is worth, **plan** chooses what each head keeps, **convert**
# writes the model, **verify** checks that it computes the same in every way it can be run. We go this
# road with glassllm (four layers, two kv heads each, a context of 128 tokens), as you would on the
# command line.

# %%
import json
from pathlib import Path

import altair as alt
import torch
from material import command, workplace

import termwise as tw
from termwise.models import load

workplace()  # a new folder with the model as `glassllm` and its text as `alice.txt`
slots = ["--length", "128", "--window", "16", "--sinks", "4"]
command("inspect", "glassllm", "--text", "alice.txt", "--texts", "4", *slots, "--budget", "60s", "--out", "inspection")

# %% [markdown]
# The first table is notebook 2 again, with exact slots beside it. The second takes one kv head at a
# time out of the exact model: its *rise* is what the loss gains when only this head runs reduced.
# Everything stands in the records, so here it is as a picture, each line an interval over the texts.

# %%
found = [json.loads(line) for line in Path("inspection/records.jsonl").read_text(encoding="utf-8").splitlines()]
heads = [
    {
        "head": f"layer {r['subject']['layer']} kv head {r['subject']['kv_head']}",
        "rise": r["value"],
        "low": r["low"],
        "high": r["high"],
    }
    for r in found
    if r["kind"] == "importance" and r["metric"] == "rise" and "kv_head" in r["subject"]
]
base = alt.Chart(alt.Data(values=heads), width=380, height=180).encode(y=alt.Y("head:N", title=None))
base.mark_rule().encode(x=alt.X("low:Q", title="rise of the loss, nats a token"), x2="high:Q") + base.mark_point(
    filled=True
).encode(x="rise:Q")

# %% [markdown]
# With four short texts the intervals are wide, and hold 0 for most heads: nothing certain can be said
# of a single one. That is an answer too.
#
# ## A plan for a budget
#
# Now ask for a plan whose state takes at most 80 % of the bytes of the cache at 128 tokens. Before
# you look: will it keep sums over far keys, as notebook 1 built them?

# %%
texts = ["--text", "alice.txt", "--texts", "4", "--planning-texts", "3", "--length", "128"]
budget = ["--max-state", "80%", "--shares", "65%,80%", "--anchors", "2", "--budget", "60s"]
command("plan", "inspection", "--context", "128", *texts, *budget, "--out", "plan")

# %% [markdown]
# It keeps none. Look at what they would cost:

# %%
for name in ("taylor:0..1@mean", "taylor:0..2@mean"):
    costs = tw.cost(tw.catalogue[name], key_width=32, value_width=32, length=128)
    print(f"{name}: {costs.features} features a head, as large as the cache at {costs.break_even} tokens")

# %% [markdown]
# At 128 tokens the sums of orders 0..2 are larger than the cache they replace. A state of constant
# size pays from a certain length on, and this model's context ends before it. And the plan is set
# beside the simplest rival, one window for every head: where it says *no difference found*, take the
# window. **A tool that cannot say no is of no use.**
#
# ## The converted model
#
# We go on with this plan all the same, to see the road to its end. The result is an ordinary folder;
# the original is not touched, so the way back is to load it.

# %%
command("convert", "glassllm", "--plan", "plan", "--text", "alice.txt", "--out", "converted")
print("\n".join(sorted(path.name for path in Path("converted/model").iterdir())))

# %% [markdown]
# Two numbers deserve a second look. The loss is held out, but of one short page: far too few tokens
# to decide anything, which is why the interval is missing. And the share of the bytes is printed
# twice, against a cache in fp32 and in bf16. Which of them counts is decided by the cache you serve
# today.
#
# ## Does it compute the same in every way?
#
# A model with a state can be run whole, in chunks, token by token, padded, packed, in beams, rolled
# back. Each is its own code and its own chance of a silent mistake. `verify` compares them all on
# this very model, with its own weights and text. This is no judgement of quality: it says that the
# model is *one* model.

# %%
command(
    "verify",
    "converted/model",
    "--text",
    "alice.txt",
    "--quick",
    "--soak",
    "512",
    "--dtype",
    "float32",
    "--out",
    "verified",
)

# %% [markdown]
# ## Read what it writes

# %%
for folder in ("glassllm", "converted/model"):
    model, tokenizer = load(folder)
    prompt = tokenizer("The Rabbit looked at Alice", return_tensors="pt").input_ids
    written = model.generate(prompt, max_new_tokens=40, do_sample=False)
    print(f"--- {folder}\n{tokenizer.decode(written[0], skip_special_tokens=True)}\n")

# %% [markdown]
# ## Exercises
#
# 1. Convert with the plan `identity`, which keeps everything. What must the difference of the logits
#    be?
# 2. Convert every head to orders 0..2 around the mean, with no slots, and tune it for 40 steps. How
#    much of the loss comes back?
#
# ### Answers
#
# **1.** Nothing but rounding.

# %%
command("convert", "glassllm", "--plan", "identity", "--out", "same")
ids = torch.arange(4, 100)[None]
with torch.no_grad():
    logits = [load(folder)[0](input_ids=ids).logits for folder in ("glassllm", "same/model")]
print(f"largest difference of the logits: {float((logits[0] - logits[1]).abs().max()):.0e}")

# %% [markdown]
# **2.** The printed share says how much. These are 40 steps on a page; a real tuning takes `--tune
# 20m` and text of its own.

# %%
command("convert", "glassllm", "--plan", "taylor:0..2@mean", "--text", "alice.txt", "--steps", "40", "--out", "tuned")
