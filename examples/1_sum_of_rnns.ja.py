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
# # 1. ソフトマックスは RNN の和である
#
# [English](1_sum_of_rnns.py) · 次: [2. 項を取り去る](2_take_terms_away.ja.py)
#
# アテンションは過去の全トークンを見るもの、再帰型ネットワーク(RNN)は過去の要約だけを持つもの、とよく言われます。
# このノートブックでは、**ソフトマックスアテンションを RNN だけから組み立て**、
# 両者が最後の桁まで一致することを確かめます。exp のテイラー展開の次数ごとに RNN が一つあります。
# 使うのは次の式だけです。
#
#     exp(x) = sum_n x^n / n!
#
# ヘッドは一つ、トークンは 12 個、キーとクエリの幅は 4 とします。まず、
# いつものソフトマックスアテンションを計算します。

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
# ## 積の累乗は、累乗の積
#
# 次数 n の項には (q.k)^n が必要です。q を自分自身と n 回、
# 座標のすべての組み合わせで掛け合わせると4^n 個の数になります。k にも同じことをすると、
# その内積が (q.k)^n です。クエリとキーが切り離されました。仕掛けはこれだけです。


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
# ## 一つの次数に、一つの RNN
#
# キーが単独で現れるので、クエリを知らなくても先に足し合わせておけます。次数 n の状態はk^n v^T の和です。
# 各ステップで項を一つ足し(*書き込み*)、クエリが和から読み出します(*読み出し*)。
# トークンそのものは一つも残しません。


# %%
def run(n, values):
    """The recurrent network of order n: what it reads after each token."""
    state, outputs = torch.zeros(d**n, values.shape[1], dtype=torch.float64), []
    for t in range(T):
        state = state + torch.outer(power(key[t], n), values[t])  # write
        outputs.append(power(query[t], n) @ state / math.factorial(n))  # read
    return torch.stack(outputs)


# %% [markdown]
# ## 足し合わせる
#
# 分子は次数についての和です。分母は、バリューを 1 に置き換えた同じ RNN の和です。
# セルを実行する前に予想してください。2 桁合うまでに、次数はいくつ必要でしょうか。

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
# 誤差はどこまでも小さくなります。ソフトマックスはこの和*そのもの*です。次数 0 はバリューの累積平均、
# 次数 1 は線形アテンションと呼ばれているもの、全次数を合わせるとソフトマックスになります(図の横軸は最大次数、
# 縦軸は最大誤差)。
#
# ## 効いてくる次数は、スコアと同じくらいの大きさ
#
# exp(x) の項 x^n / n! のうち最大のものは、n がおよそ |x| の項です。したがって、
# 一つのキーを確信を持って指すヘッドには多くの次数が、漠然と見るヘッドには少ない次数があれば足ります。
# ここではクエリを1、2、4、8 倍して、最大誤差が 0.01 を下回るまでの次数を数えます。


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
# ## 数の大半は重複している
#
# 4^n は急速に増えますが、x1 x2 と x2 x1 は同じ積です。
# 異なるものは C(d+n-1, n) 個しかありません。termwise はそれだけを保持します。
# このヘッドの次数 0..8 の状態は 87,381 個ではなく 495 個の特徴で済み、
# 手作りの RNN と同じ値を返します。

# %%
print("all products:", sum(d**n for n in range(9)), "  different ones:", sum(math.comb(d + n - 1, n) for n in range(9)))

batch = [x[None, :, None, :] for x in (query, key, value)]  # (batch, length, heads, width)
out, state = tw.attend(*batch, tw.catalogue["taylor:0..8"], scale=1.0, form="recurrent", output_final_state=True)
print("features of the state:", state.moments.shape[2])
print(f"difference from our networks: {float((out[0, :, 0] - numerator / mass).abs().max()):.0e}")

# %% [markdown]
# ## どれだけ長い過去も、一つの状態に
#
# 100 トークン後の状態と 10,000 トークン後の状態は、同じ大きさです。
# キーとバリューのキャッシュは増え続けます。

# %%
for length in (100, 1_000, 10_000):
    long = torch.randn(3, 1, length, 1, d, generator=torch.Generator().manual_seed(2))
    for name in ("taylor:0..4", "softmax"):
        _, after = tw.attend(*long, tw.catalogue[name], output_final_state=True)
        held = after.moments.nbytes + after.mass.nbytes if after.moments is not None else after.nbytes
        print(f"{length:6} tokens, {name:11}: {held:7,} bytes of {'sums' if after.moments is not None else 'cache'}")

# %% [markdown]
# ## 演習
#
# 1. 偶数の次数 0, 2, 4, ... だけを残してみましょう。その和は cosh(x) です。
#    このようなヘッドは、何を区別できなくなるでしょうか。
# 2. 奇数の次数、たとえば 0..3 で打ち切り、クエリを 8 倍してみましょう。重みの和はどうなるでしょうか。
#    また、偶数で打ち切ればそうならないのはなぜでしょうか。
#
# 先を読む前に試してください。
#
# ### 解答
#
# **1.** cosh(x) = cosh(-x) なので、あるキーとその逆向きのキーが同じ重みになります。
# 偶数の次数だけでは、どれだけ強く合うかは分かっても、賛成なのか反対なのかが分かりません。


# %%
def even_orders(x):
    return sum(x**n / math.factorial(n) for n in range(0, 20, 2))


even, turned = even_orders(scores), even_orders(query @ -key.T)
print("even orders, all keys turned around: change", f"{float((even - turned).abs().max()):.0e}")

# %% [markdown]
# **2.** 1 + x + x^2/2 + x^3/6 は x = -1.6 より下で負になり、
# 行和が 0 以下になることがあります。それで割っても、もはや平均ではありません。最大次数が偶数なら、
# 重みはすべて正です。termwise は奇数の場合を拒否し、回避策を示します。

# %%
for top in (3, 4):
    series = torch.stack([(8 * scores) ** n / math.factorial(n) for n in range(top + 1)]).sum(dim=0).tril()
    print(f"orders 0..{top}: smallest sum of weights {float(series.sum(dim=1).min()):.2f}")
try:
    tw.AttentionSpec(tw.Polynomial((0, 1, 2, 3)))
except ValueError as refused:
    print(refused)
