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
# # 3. 分母を取り替える
#
# [English](3_swap_the_denominator.py)
# · 前: [2. 項を取り去る](2_take_terms_away.ja.py)
# · 次: [4. 検査から変換後のモデルまで](4_inspect_to_converted.ja.py)
#
# ソフトマックスは、バリューの重み付き和 U を重みの和 Z で割ります。この割り算は何のためでしょうか。教科書には、
# 重みの和を 1 にするため、と書いてあります。ここでは分母をほかのものに取り替え、何が壊れて何が壊れないかを見ます。
#
#     行和      o = U / Z           個数    o = U / c (c は見えているキーの数)       恒等    o = U
#     L2        o = U / |U|         RMS     o = U / rms(U)
#     ゲート    o = g U (g は層が計算を学ぶ、0 から 1 の数)

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
# ## 行和は何を防いでいるか
#
# ある行の全スコアに同じ数を足します。U と Z が同じ倍率で大きくなるので、ソフトマックスは変わりません。
# ほかに変わらないのはどれでしょうか。まず予想してください。

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
# 個数で割る場合と、何もしない場合は、出力が e の(足した数)乗で大きくなります。4 を足せば 55 倍です。
# 学習された 0 から 1 のゲートは、U がどれだけ大きくなるかをあらかじめ知っていなければなりません。
# 行和とノルムは、和そのものから計算されるので、それを知っています。つまり、重みの和が 1 である必要はまったくなく、
# **出力が有界でありさえすればよい**のではないか、と考えられます。
#
# ## ノルムには行和が見えてもいない
#
# L2(U) と L2(U / Z) は同じものです。長さは消え、向きは残ります。したがって、
# 分母の代わりにノルムを置いたアテンションは、数値的に安定な普通のソフトマックスとして計算し、
# 後からノルムで割ればよいのです。

# %%
weights = (query[0, :, 0] @ key[0, :, 0].T / 4).exp().tril()
U = weights @ value[0, :, 0]
normed = U / U.norm(dim=1, keepdim=True)
softmax = attend("exp")[0, :, 0]
print(f"L2(U) against L2(softmax): change {change(normed, softmax / softmax.norm(dim=1, keepdim=True)):.0e}")
print(f"L2(U) against exp|l2:      change {change(normed, attend('exp|l2')[0, :, 0]):.0e}")

# %% [markdown]
# ## 打ち消し合うもの
#
# 次はゲートです。入力ゲートは各バリューを、出力ゲートは各結果を、ノルムの前または後でスケーリングします。
# ランダムなゲートを渡して、どの出力が変わるかを見ます。

# %%
print("denominator   input gate   output gate before   output gate after")
for norm in ("rowsum", "count", "l2", "rms-"):
    told = []
    for part, given in (("gi", "input_gate"), ("gb", "output_gate"), ("ga", "output_gate")):
        gated = attend(f"exp|{norm}+{part}", **{given: gate})
        told.append("changes" if change(attend(f"exp|{norm}"), gated) > 1e-3 else "CANCELS")
    print(f"{norm:11}   {told[0]:10}   {told[1]:18}   {told[2]}")

# %% [markdown]
# ノルムの前に置いた出力ゲートは、何の働きもしません。行全体に掛かる一つの正の数であり、
# ノルムがそれで割ってしまうからです。そのようなゲートを学習するモデルは、
# 効くはずのないパラメータに代価を払っています。termwise はそれを指摘します。

# %%
for name in ("exp|l2+gb", "exp|rms+gb", "exp|count+gb"):
    print(f"{name:14}", tw.catalogue[name].explain() or "nothing cancels")

# %% [markdown]
# ## 名前の一覧に、考え方はいくつあるか
#
# このプロジェクトが検証する論文の公開コードには、多くの分岐があります。一つの代数の値として見ると、
# いくつかは同じアテンションです。

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
# ## では、それで学習するとどうなるか
#
# 有界であればよい、というのが主張です。これがその検証です。
# 損失はこのプロジェクトの実行結果(`benchmarks/records/prose`: パラメータ 80 万個、
# 300 ステップ、シード 3 個、英語の散文)の記録から読み出しています。

# %%
losses = {}
for record in records("prose"):
    if record["metric"] == "held_out_nats" and record["status"] == "ok":
        losses.setdefault(record["subject"]["variant"], []).append(record["value"])
for name, found in sorted(losses.items(), key=lambda item: statistics.mean(item[1])):
    print(f"{name:12} {statistics.mean(found):.3f}   seeds {', '.join(f'{x:.3f}' for x in sorted(found))}")

# %% [markdown]
# 分母の代わりに L2 を置くと、ソフトマックスの近くにとどまりますが、どのシードでもそれより上です。
# ゲート(`exp_gate`)に取り替えると、はるかに悪くなります。
# これは一つの大きさのモデルと一つのテキストでの話です。
# あなたのテキストで `termwise study` を実行してください。
#
# ## 演習
#
# 1. 行和の場合、ゲートを前に置くのと後に置くのとで違いはあるでしょうか。個数の場合はどうでしょうか。
# 2. 分母を通る勾配を切ってみましょう(`exp|rowsum~`)。出力はソフトマックスと同じです。
#    勾配も同じでしょうか。L2 の場合はどうでしょうか。切り離された分母は、
#    行ごとの正の数がもう一つ増えただけです。
#
# ### 解答
#
# **1.** ありません。U / Z は U について線形であり、U / c も同様です。

# %%
for norm in ("rowsum", "count", "l2"):
    before, after = (attend(f"exp|{norm}+{part}", output_gate=gate) for part in ("gb", "ga"))
    print(f"{norm:7} before against after: change {change(before, after):.0e}")

# %% [markdown]
# **2.** 出力は一致しますが、勾配は一致しません。分母の分がないと、
# スコアを上げることは自分のバリューを足すだけで、ほかから何も取り去らないからです。L2 の場合は、
# 正の倍率がすべてそうであるように、打ち消し合います。


# %%
def gradient(name):
    given = key.clone().requires_grad_()
    tw.attend(query, given, value, tw.catalogue[name])[0].square().sum().backward()
    return given.grad


print(f"outputs:   change {change(attend('exp'), attend('exp|rowsum~')):.0e}")
print(f"gradients: change {change(gradient('exp'), gradient('exp|rowsum~')):.0e}")
