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
# # 1. Softmax is a sum of RNNs
#
# [日本語](1_sum_of_rnns.ja.py) · next: [2. Take terms away](2_take_terms_away.py)
#
# Attention is said to look at every earlier token, and a recurrent network to keep a summary of them.
# Here you build **softmax attention out of recurrent networks**, one for each order of the Taylor
# series of exp, and see the two agree digit by digit. All you need is
#
#     exp(x) = sum_n x^n / n!
#
# We take one head: 12 tokens, keys and queries of width 4. First softmax attention as everybody
# writes it.

# %%
import math

import altair as alt
import torch

import termwise as tw

T, d = 12, 4
query, key, value = torch.randn(3, T, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
query = query / 2
key = key / math.sqrt(d)  # the usual scale of scores, taken into the keys once

scores = query @ key.T
weights = scores.exp().tril()  # a token sees itself and earlier ones
softmax = weights @ value / weights.sum(dim=1, keepdim=True)
print(f"scores between {float(scores.min()):.1f} and {float(scores.max()):.1f}")

# %% [markdown]
# ## A power of a product is a product of powers
#
# The term of order n needs (q.k)^n. Multiply q by itself n times, each coordinate with each: 4^n
# numbers. Do the same with k. Their product is (q.k)^n. The query has come apart from the key; that
# is the whole trick.


# %%
def power(x, n):
    """All products of n coordinates of x: d^n numbers."""
    out = torch.ones(1, dtype=x.dtype)
    for _ in range(n):
        out = torch.outer(out, x).flatten()
    return out


for n in range(4):
    left, right = (query[3] @ key[1]) ** n, power(query[3], n) @ power(key[1], n)
    print(f"n = {n}: (q.k)^n = {float(left):+.6f}   <q^n, k^n> = {float(right):+.6f}   {len(power(key[1], n))} numbers")

# %% [markdown]
# ## One recurrent network for one order
#
# Because the key stands alone, it can be added up before any query is known. The state of order n is
# the sum of k^n v^T. A step adds one term (*write*); the query picks from the sum (*read*). No token
# is kept.


# %%
def run(n, values):
    """The recurrent network of order n: what it reads after each token."""
    state, outputs = torch.zeros(d**n, values.shape[1], dtype=torch.float64), []
    for t in range(T):
        state = state + torch.outer(power(key[t], n), values[t])  # write
        outputs.append(power(query[t], n) @ state / math.factorial(n))  # read
    return torch.stack(outputs)


# %% [markdown]
# ## Add them up
#
# The numerator is the sum over the orders. The denominator is the same networks with 1 in place of
# the value. Before you run the cell, guess: how many orders until two digits are right?

# %%
ones = torch.ones(T, 1, dtype=torch.float64)
numerator, mass, errors = torch.zeros_like(value), torch.zeros_like(ones), []
for n in range(9):
    numerator, mass = numerator + run(n, value), mass + run(n, ones)
    error = float((numerator / mass - softmax).abs().max())
    errors.append({"order": n, "error": error})
    print(f"orders 0..{n}: largest error {error:.0e}")

# %%
alt.Chart(alt.Data(values=errors), width=420, height=180).mark_line(point=True).encode(
    x=alt.X("order:Q", title="top order"),
    y=alt.Y("error:Q", scale=alt.Scale(type="log"), title="largest error", axis=alt.Axis(format=".0e")),
)

# %% [markdown]
# The error falls without end: softmax *is* this sum. Order 0 is a running mean of the values, order 1
# is what is called linear attention, and softmax is all orders together.
#
# ## The order that matters is about as large as the score
#
# Of exp(x), the largest term x^n / n! is that with n near |x|. So a head that points at one key with
# certainty needs many orders, and a vague one few. Here the queries are multiplied by 1, 2, 4 and 8,
# and we count the orders until the largest error is below 0.01.


# %%
def orders_needed(scores, below=0.01):
    exact = scores.exp().tril()
    exact = exact @ value / exact.sum(dim=1, keepdim=True)
    term, series = torch.ones_like(scores), torch.zeros_like(scores)
    for n in range(200):
        series = series + term.tril()
        term = term * scores / (n + 1)
        if n % 2 == 0 and (series @ value / series.sum(dim=1, keepdim=True) - exact).abs().max() < below:
            return n


for factor in (1, 2, 4, 8):
    largest = float((factor * scores).tril().abs().max())
    print(f"queries x {factor}: largest |score| {largest:5.1f}, orders needed 0..{orders_needed(factor * scores)}")

# %% [markdown]
# ## Most of the numbers are the same
#
# 4^n grows fast, but x1 x2 and x2 x1 are one product. Only C(d+n-1, n) differ. termwise keeps just
# those; its state of orders 0..8 for this head has 495 features in place of 87,381, and gives what
# our networks gave.

# %%
print("all products:", sum(d**n for n in range(9)), "  different ones:", sum(math.comb(d + n - 1, n) for n in range(9)))

batch = [x[None, :, None, :] for x in (query, key, value)]  # (batch, length, heads, width)
out, state = tw.attend(*batch, tw.catalogue["taylor:0..8"], scale=1.0, form="recurrent", output_final_state=True)
print("features of the state:", state.moments.shape[2])
print(f"difference from our networks: {float((out[0, :, 0] - numerator / mass).abs().max()):.0e}")

# %% [markdown]
# ## A past of any length in one state
#
# The state after 100 tokens and after 10,000 tokens has the same size. A cache of keys and values
# grows.

# %%
for length in (100, 1_000, 10_000):
    long = torch.randn(3, 1, length, 1, d, generator=torch.Generator().manual_seed(2))
    for name in ("taylor:0..4", "softmax"):
        _, after = tw.attend(*long, tw.catalogue[name], output_final_state=True)
        held = after.moments.nbytes + after.mass.nbytes if after.moments is not None else after.nbytes
        print(f"{length:6} tokens, {name:11}: {held:7,} bytes of {'sums' if after.moments is not None else 'cache'}")

# %% [markdown]
# ## Exercises
#
# 1. Keep only the even orders, 0, 2, 4, ... Their sum is cosh(x). What can such a head no longer tell
#    apart?
# 2. Stop at an odd order, say 0..3, and multiply the queries by 8. What happens to the sum of
#    weights, and why never at an even one?
#
# Try it before you read on.
#
# ### Answers
#
# **1.** cosh(x) = cosh(-x): a key and its opposite get the same weight. Even orders alone know how
# strongly a key matches, not whether for or against.


# %%
def even_orders(x):
    return sum(x**n / math.factorial(n) for n in range(0, 20, 2))


even, turned = even_orders(scores), even_orders(query @ -key.T)
print("even orders, all keys turned around: change", f"{float((even - turned).abs().max()):.0e}")

# %% [markdown]
# **2.** 1 + x + x^2/2 + x^3/6 turns negative below x = -1.6, and a row can sum to zero or less;
# dividing by that is no mean any more. With an even top order every weight is positive. termwise
# refuses the odd one and names the ways out.

# %%
for top in (3, 4):
    series = torch.stack([(8 * scores) ** n / math.factorial(n) for n in range(top + 1)]).sum(dim=0).tril()
    print(f"orders 0..{top}: smallest sum of weights {float(series.sum(dim=1).min()):.2f}")
try:
    tw.AttentionSpec(tw.Polynomial((0, 1, 2, 3)))
except ValueError as refused:
    print(refused)
