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
# # 3. Swap the denominator
#
# [日本語](3_swap_the_denominator.ja.py)
# · before: [2. Take terms away](2_take_terms_away.py)
# · next: [4. From inspection to a converted model](4_inspect_to_converted.py)
#
# Softmax divides the weighted sum U of values by the sum Z of weights. What is this division for? To
# make the weights sum to one, says the textbook. Here you replace it by other things and see what
# breaks and what does not:
#
#     row sum   o = U / Z           count   o = U / c, c the number of visible keys      identity   o = U
#     L2        o = U / |U|         RMS     o = U / rms(U)
#     gate      o = g U, g a number between 0 and 1 that a layer learns to compute

# %%
import statistics

import altair as alt
import torch
from material import records

import termwise as tw

generator = torch.Generator().manual_seed(0)
query, key, value = torch.randn(3, 1, 64, 1, 16, generator=generator, dtype=torch.float64)
gate = 0.2 + 0.8 * torch.rand(1, 64, 1, generator=generator, dtype=torch.float64)


def attend(name, **others):
    return tw.attend(query, others.pop("key", key), value, tw.catalogue[name], **others)[0]


def change(one, other):
    """The largest difference, relative to the size of the first."""
    return float((one - other).abs().max() / one.abs().max())


for name in ("exp", "exp|count", "exp|identity", "exp|l2", "exp|rms-"):
    print(f"{name:12}  {tw.catalogue[name].formula}")

# %% [markdown]
# ## What the row sum guards against
#
# Add one number to all scores of a row. Softmax stays as it is, because U and Z grow by one factor.
# Which of the others stay? Guess first.

# %%
sizes = []
for shift in (0, 1, 2, 3, 4):
    moved = key + 4 * shift * query[:, -1:] / query[:, -1:].square().sum()  # the last query's scores grow by `shift`
    for name in ("exp", "exp|count", "exp|identity", "exp|l2", "exp|rms-"):
        length = float(attend(name, key=moved)[0, -1, 0].norm())
        sizes.append({"added to the scores": shift, "denominator": name, "length": length})
for name in ("exp", "exp|count", "exp|identity", "exp|l2", "exp|rms-"):
    print(f"{name:12}", "  ".join(f"{row['length']:9.3f}" for row in sizes if row["denominator"] == name))

# %%
alt.Chart(alt.Data(values=sizes), width=420, height=200).mark_line(point=True).encode(
    x=alt.X("added to the scores:Q"),
    y=alt.Y("length:Q", scale=alt.Scale(type="log"), title="length of the output"),
    color=alt.Color("denominator:N", sort=None),
)

# %% [markdown]
# With a count, or with nothing, the output grows as e to the shift: 55 times at 4. A learned gate
# between 0 and 1 would have to know how large U is going to be. The row sum and the norms know,
# because they are computed from the sums themselves. This suggests that the weights need not sum to
# one at all; **it is enough that the output stays bounded**.
#
# ## A norm does not even see the row sum
#
# L2(U) and L2(U / Z) are one: the length goes, the direction stays. So attention with a norm in place
# of the denominator can be computed as ordinary, stable softmax, and normed after.

# %%
weights = (query[0, :, 0] @ key[0, :, 0].T / 4).exp().tril()
U = weights @ value[0, :, 0]
normed = U / U.norm(dim=1, keepdim=True)
softmax = attend("exp")[0, :, 0]
print(f"L2(U) against L2(softmax): change {change(normed, softmax / softmax.norm(dim=1, keepdim=True)):.0e}")
print(f"L2(U) against exp|l2:      change {change(normed, attend('exp|l2')[0, :, 0]):.0e}")

# %% [markdown]
# ## What cancels
#
# Now gates. An input gate scales each value, an output gate each result, before or after the norm. We
# hand over random gates and look at which outputs change.

# %%
print("denominator   input gate   output gate before   output gate after")
for norm in ("rowsum", "count", "l2", "rms-"):
    told = []
    for part, given in (("gi", "input_gate"), ("gb", "output_gate"), ("ga", "output_gate")):
        gated = attend(f"exp|{norm}+{part}", **{given: gate})
        told.append("changes" if change(attend(f"exp|{norm}"), gated) > 1e-3 else "CANCELS")
    print(f"{norm:11}   {told[0]:10}   {told[1]:18}   {told[2]}")

# %% [markdown]
# In front of a norm an output gate does nothing at all: it is one positive number for the whole row,
# and the norm divides by it. A model that trains such a gate pays for parameters that cannot matter.
# termwise says so:

# %%
for name in ("exp|l2+gb", "exp|rms+gb", "exp|count+gb"):
    print(f"{name:14}", tw.catalogue[name].explain() or "nothing cancels")

# %% [markdown]
# ## How many ideas are in a list of names
#
# The code published with the paper this project tests has many branches. As values of one algebra,
# several are the same attention:

# %%
published = tw.catalogue.groups()["paper"]
by_value = {}
for name in published:
    by_value.setdefault(tw.catalogue.variant(name).value, []).append(name)
print(f"{len(published)} names that are a point of the algebra, {len(by_value)} different values")
for names in by_value.values():
    if len(names) > 1:
        print("  one value:", ", ".join(names))

# %% [markdown]
# ## And when a model is trained with it?
#
# Bounded is the claim; here is the test. These losses come from a run of this project
# (`benchmarks/records/prose`: 0.8 M parameters, 300 steps, three seeds, English prose), read from its
# records.

# %%
losses = {}
for record in records("prose"):
    if record["metric"] == "held_out_nats" and record["status"] == "ok":
        losses.setdefault(record["subject"]["variant"], []).append(record["value"])
for name, found in sorted(losses.items(), key=lambda item: statistics.mean(item[1])):
    print(f"{name:12} {statistics.mean(found):.3f}   seeds {', '.join(f'{x:.3f}' for x in sorted(found))}")

# %% [markdown]
# L2 in place of the denominator stays near softmax, though above it with each seed; a gate in its
# place (`exp_gate`) is far worse. That is one size of model and one text: run `termwise study` on
# yours.
#
# ## Exercises
#
# 1. Under the row sum, is there a difference between a gate before and a gate after? Under the count?
# 2. Cut the gradient through the denominator (`exp|rowsum~`). The outputs are those of softmax. Are
#    the gradients? And under L2, where a detached denominator is one more positive number per row?
#
# ### Answers
#
# **1.** None: U / Z is linear in U, and so is U / c.

# %%
for norm in ("rowsum", "count", "l2"):
    before, after = (attend(f"exp|{norm}+{part}", output_gate=gate) for part in ("gb", "ga"))
    print(f"{norm:7} before against after: change {change(before, after):.0e}")

# %% [markdown]
# **2.** Outputs agree, gradients do not: without the denominator's part, raising a score only adds
# its value, and takes nothing from the others. Under L2 it would cancel, as every positive factor
# does.


# %%
def gradient(name):
    given = key.clone().requires_grad_()
    tw.attend(query, given, value, tw.catalogue[name])[0].square().sum().backward()
    return given.grad


print(f"outputs:   change {change(attend('exp'), attend('exp|rowsum~')):.0e}")
print(f"gradients: change {change(gradient('exp'), gradient('exp|rowsum~')):.0e}")
