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
# # 2. Take terms away
#
# [日本語](2_take_terms_away.ja.py)
# · before: [1. Softmax is a sum of RNNs](1_sum_of_rnns.py)
# · next: [3. Swap the denominator](3_swap_the_denominator.py)
#
# If softmax is a sum over orders, which orders does a trained model need? We take a real one apart:
# glassllm, four layers of four heads, trained on Lewis Carroll's books. Nothing is trained here;
# every head of every layer is simply run with fewer terms, and we look at the loss on a page of
# *Alice in Wonderland*.
#
# The model (3 MB) is fetched once. Without a connection this cell says what to do.

# %%
import altair as alt
import torch
from material import ALICE, glassllm
from transformers.utils import logging

import termwise as tw
from termwise.analysis.pretrained import open_pretrained
from termwise.analysis.replacing import replaced
from termwise.models import TermwiseForCausalLM

logging.disable_progress_bar()
folder = glassllm()
original = open_pretrained(folder)
ids = original.tokenizer(ALICE.read_text(encoding="utf-8"), return_tensors="pt").input_ids[0]
ids = ids[:768].view(-1, 128)  # windows of the model's own context


def loss(*names):
    """Nats a token of the model with these attentions: one for all layers, or one for each."""
    specs = [tw.catalogue[name] for name in names]
    model = TermwiseForCausalLM.from_pretrained(folder, attention=specs if len(specs) > 1 else specs[0])
    with torch.no_grad():
        return float(model(input_ids=ids, labels=ids, use_cache=False).loss)


exact = loss("softmax")
print(f"{ids.numel()} tokens, loss with softmax {exact:.3f}")
print(f"with order 0 alone, a plain mean of values: {loss('taylor:0'):.3f}")

# %% [markdown]
# Between these two numbers lies all that the scores are worth here. Before you run on, guess: how
# much of it do orders 0..2 bring back? And 0..8?
#
# ## Order by order, around zero and around the mean
#
# exp can be expanded around 0, or around the mean score of each query: exp(x) = e^m (1 + (x-m) +
# (x-m)^2/2 + ...), where e^m cancels in the division. Both need the same state.

# %%
ladder = []
for top in (0, 1, 2, 4, 6, 8, 12):
    # An odd top order around 0 gives negative weights: refused unless forced with "!".
    forced = "!" if top == 1 else ""
    for center, name in (("zero", f"taylor:0..{top}{forced}"), ("mean", f"taylor:0..{top}@mean")):
        ladder.append({"top order": top, "center": center, "loss": loss(name if top else "taylor:0")})
    print(f"orders 0..{top:<2}  around zero {ladder[-2]['loss']:.3f}   around the mean {ladder[-1]['loss']:.3f}")

# %%
lines = alt.Chart(alt.Data(values=ladder), width=420, height=200).mark_line(point=True)
rule = alt.Chart(alt.Data(values=[{"exact": exact}])).mark_rule(strokeDash=[4, 3])
lines.encode(
    x=alt.X("top order:Q", scale=alt.Scale(domain=[0, 12])),
    y=alt.Y("loss:Q", scale=alt.Scale(zero=False), title="nats a token (dashed: softmax)"),
    color=alt.Color("center:N", title="expanded around"),
) + rule.encode(y="exact:Q")

# %% [markdown]
# Around the mean each even order brings the model nearer to itself. Around zero it gets stuck, and
# more terms even make it worse. The series converges for every score, so why?
#
# ## Where the scores are
#
# Let us watch them. Each bar is one head: its mean score, and one spread to either side.

# %%
seen = []


def watch(layer, query, key, value, scale):
    key = key.repeat_interleave(query.shape[2] // key.shape[2], dim=2)
    scores = torch.einsum("bthd,bshd->bhts", query, key) * scale
    rows = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), float("nan"))[..., 16:, :]
    mean = rows.nanmean(dim=-1, keepdim=True)
    spread = (rows - mean).square().nanmean(dim=-1).sqrt()
    for head in range(scores.shape[1]):
        m, s = float(mean[:, head].mean()), float(spread[:, head].mean())
        seen.append({"head": f"layer {layer} head {head}", "mean": m, "low": m - s, "high": m + s})


with torch.no_grad(), replaced(original, watch):
    original.model(ids)
lowest = min(seen, key=lambda row: row["mean"])
print(f"lowest mean score: {lowest['head']}, {lowest['mean']:.1f}, spread {lowest['high'] - lowest['mean']:.1f}")

# %%
heads = alt.Chart(alt.Data(values=seen), width=380, height=240).encode(y=alt.Y("head:N", title=None))
heads.mark_rule(strokeWidth=6, opacity=0.35).encode(x=alt.X("low:Q", title="score"), x2="high:Q") + heads.mark_tick(
    thickness=3
).encode(x="mean:Q")

# %% [markdown]
# Many heads live far below zero. Softmax does not care: add one number to all scores of a row, and
# the weights stay. A series around zero does care. Look at what it makes of a key that this head all
# but rules out, and of one it likes:

# %%
m = lowest["mean"]
print("score   exp(x - m)   orders 0..2 around 0   orders 0..2 around m")
for x in (2 * m, m, 0.0):
    y = x - m
    print(f"{x:5.1f}   {torch.tensor(y).exp():10.3f}   {1 + x + x * x / 2:20.3f}   {1 + y + y * y / 2:20.3f}")

# %% [markdown]
# Around zero the key with the *worst* score gets the most weight. Around the mean the order is kept
# at the top, though the bottom still rises: that is what orders 3 and 4 repair.
#
# ## Layer by layer
#
# Not all layers need the same. One layer at a time runs with orders 0..1 around the mean, the three
# others with softmax.

# %%
few = "taylor:0..1@mean"
rises = [{"layer": i, "rise": loss(*(few if i == j else "softmax" for j in range(4))) - exact} for i in range(4)]
for row in rises:
    print(f"layer {row['layer']}: loss + {row['rise']:.3f}")
print(f"sum of the four: {sum(row['rise'] for row in rises):.3f}; all four at once: {loss(few) - exact:.3f}")

# %% [markdown]
# Losses of single layers do not add up, so a plan for a whole model has to be measured as a whole
# (notebook 4).
#
# ## The rival that needs no terms
#
# Keep the last 16 keys and the first 4 as they are, and drop the rest. Always set this beside a
# converted model.

# %%
for name in ("drop+w16s4", "taylor:0..2@mean", "taylor:0..2+w16s4", "taylor:0..2@mean+w16s4"):
    print(f"{name:24} loss {loss(name) - exact:+.3f}")

# %% [markdown]
# Here 20 exact keys beat all the far keys' orders 0..2. Together they are better than either: near
# keys exactly, far ones by their sums. But only around the mean; a tail around zero spoils the
# window.
#
# ## Exercises
#
# 1. Two layers may be reduced to orders 0..1 around the mean. Which two? Does the best pair consist
#    of the two best layers?
# 2. The model was trained on this very book. What do the two ladders look like on a text it has never
#    seen?
#
# ### Answers
#
# **1.** Try all six pairs.

# %%
pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
cost = {pair: loss(*(few if i in pair else "softmax" for i in range(4))) - exact for pair in pairs}
for pair in sorted(cost, key=cost.get):
    print(f"layers {pair}: + {cost[pair]:.3f}")

# %% [markdown]
# **2.** The opening of Genesis.

# %%
genesis = """In the beginning God created the heaven and the earth. And the earth was without form, and void; and
darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters. And
God said, Let there be light: and there was light. And God saw the light, that it was good: and God
divided the light from the darkness. And God called the light Day, and the darkness he called Night.
And the evening and the morning were the first day. And God said, Let there be a firmament in the
midst of the waters, and let it divide the waters from the waters."""
ids = original.tokenizer(genesis, return_tensors="pt").input_ids[:, :128]
print(f"softmax {loss('softmax'):.3f}")
for top in (0, 2, 4, 8):
    names = [f"taylor:0..{top}{at}" if top else f"taylor:0{at}" for at in ("", "@mean")]
    print(f"orders 0..{top}: around zero {loss(names[0]):.3f}, around the mean {loss(names[1]):.3f}")

# %% [markdown]
# Here softmax is not even the best: fewer terms make a model vaguer, and on a text it does not know,
# vague is better than wrong. So measure on the text that your model will read. (128 tokens are no
# proof; try more.)
