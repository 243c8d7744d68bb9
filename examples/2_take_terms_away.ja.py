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
# # 2. 項を取り去る
#
# [English](2_take_terms_away.py)
# · 前: [1. ソフトマックスは RNN の和である](1_sum_of_rnns.ja.py)
# · 次: [3. 分母を取り替える](3_swap_the_denominator.ja.py)
#
# ソフトマックスが次数についての和なら、学習済みモデルに必要なのはどの次数でしょうか。本物のモデルを分解してみます。
# glassllm は 4 層、各層 4 ヘッドの小さなモデルで、ルイス・キャロルの著作で学習されています。
# ここでは何も学習しません。全層の全ヘッドをより少ない項で動かし、
# 『不思議の国のアリス』の 1 ページでの損失を見るだけです。
#
# モデル(3 MB)は一度だけ取得します。接続がない場合は、このセルがどうすればよいかを示します。

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
# スコアがここで持つ価値のすべては、この二つの数の間にあります。先へ進む前に予想してください。
# 次数 0..2 はそのうちどれだけを取り戻すでしょうか。0..8 ではどうでしょうか。
#
# ## 次数を一つずつ、0 のまわりと平均のまわりで
#
# exp は 0 のまわりにも、各クエリの平均スコアのまわりにも展開できます。
# exp(x) = e^m (1 + (x-m) + (x-m)^2/2 + ...) で、
# e^m は割り算で打ち消し合います。どちらの展開も、必要な状態は同じです。

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
# 平均のまわりでは、偶数の次数を足すたびにモデルは元の自分に近づきます。0 のまわりでは途中で止まり、
# 項を増やすとかえって悪くなります。級数はどのスコアでも収束するはずなのに、なぜでしょうか。
#
# ## スコアはどこにあるか
#
# 実際に見てみましょう。棒一本が一つのヘッドで、平均スコアと、その両側に標準偏差一つ分の幅を示しています。

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
# 多くのヘッドが 0 よりずっと下にいます。ソフトマックスはそれを気にしません。ある行の全スコアに同じ数を足しても、
# 重みは変わらないからです。0 のまわりの級数は気にします。このヘッドがほぼ除外しているキーと、好んでいるキーに、
# 級数がどれだけの重みを与えるかを見てください。

# %%
m = lowest["mean"]
print("score   exp(x - m)   orders 0..2 around 0   orders 0..2 around m")
for x in (2 * m, m, 0.0):
    y = x - m
    print(f"{x:5.1f}   {torch.tensor(y).exp():10.3f}   {1 + x + x * x / 2:20.3f}   {1 + y + y * y / 2:20.3f}")

# %% [markdown]
# 0 のまわりでは、*最も低い*スコアのキーが最大の重みを得てしまいます。平均のまわりでは上位の順序は保たれますが、
# 下の端はやはり持ち上がります。これを直すのが次数 3 と 4 です。
#
# ## 層ごとに
#
# 必要なものは層によって異なります。一度に一層だけを平均のまわりの次数 0..1 で動かし、
# 残りの三層はソフトマックスのままにします。

# %%
few = "taylor:0..1@mean"
rises = [{"layer": i, "rise": loss(*(few if i == j else "softmax" for j in range(4))) - exact} for i in range(4)]
for row in rises:
    print(f"layer {row['layer']}: loss + {row['rise']:.3f}")
print(f"sum of the four: {sum(row['rise'] for row in rises):.3f}; all four at once: {loss(few) - exact:.3f}")

# %% [markdown]
# 層ごとの損失の増加は、足し算になりません。だからモデル全体の計画は、
# 全体として測る必要があります(ノートブック 4)。
#
# ## 項のいらない競争相手
#
# 直近の 16 個のキーと先頭の 4 個のキー(シンク)をそのまま残し、残りは捨てます。変換後のモデルの隣には、
# 必ずこれを置いてください。

# %%
for name in ("drop+w16s4", "taylor:0..2@mean", "taylor:0..2+w16s4", "taylor:0..2@mean+w16s4"):
    print(f"{name:24} loss {loss(name) - exact:+.3f}")

# %% [markdown]
# ここでは、厳密な 20 個のキーが、遠いキーの次数 0..2 すべてに勝ちます。組み合わせると、
# どちらか一方よりも良くなります。近くのキーは厳密に、遠くのキーは和で。ただし平均のまわりに限ります。
# 0 のまわりの展開を付け足すと、ウィンドウの良さが損なわれます。
#
# ## 演習
#
# 1. 二つの層を平均のまわりの次数 0..1 に減らしてよいとします。どの二つでしょうか。最良の組は、
#    最良の二層からなるでしょうか。
# 2. このモデルはまさにこの本で学習されています。見たことのないテキストでは、二つの展開はどうなるでしょうか。
#
# ### 解答
#
# **1.** 六つの組をすべて試します。

# %%
pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
cost = {pair: loss(*(few if i in pair else "softmax" for i in range(4))) - exact for pair in pairs}
for pair in sorted(cost, key=cost.get):
    print(f"layers {pair}: + {cost[pair]:.3f}")

# %% [markdown]
# **2.** 創世記の冒頭です。

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
# ここでは、ソフトマックスが最良ですらありません。項を減らすとモデルはあいまいになりますが、知らないテキストでは、
# 確信を持って間違えるより、あいまいなほうがましなのです。だから、
# あなたのモデルが実際に読むテキストで測ってください(128 トークンでは証明になりません。
# もっと長いテキストで試してみましょう)。
