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
# # 4. 検査から変換後のモデルまで
#
# [English](4_inspect_to_converted.py)
# · 前: [3. 分母を取り替える](3_swap_the_denominator.ja.py)
#
# 手元にモデルがあり、そのキャッシュに費用を払っているとします。どのヘッドなら、保持するものを減らせるでしょうか。
# 四つのコマンドが順に答えます。**inspect** は各ヘッドの価値を測り(検査)、
# **plan** は各ヘッドが何を保持するかを選び(計画)、**convert** はモデルを書き出し(変換)、
# **verify** はどの動かし方でも同じ計算になることを確かめます(検証)。glassllm(4 層、
# 各層に kv ヘッド 2 個、文脈長 128 トークン)で、コマンドラインと同じようにこの道のりをたどります。

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
# 最初の表は、ノートブック 2 の結果に厳密なスロットを並べたものです。二つ目の表は、
# 厳密なモデルから kv ヘッドを一つずつ減らしたものです。*rise* は、
# そのヘッドだけを減らしたときの損失の増加です。すべては記録に残っているので、図にしてみます。線は、
# テキストについての信頼区間です。

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
# 短いテキスト四つでは区間が広く、ほとんどのヘッドで 0 を含みます。一つのヘッドについて確かなことは何も言えません。
# それもまた一つの答えです。
#
# ## 予算に合わせた計画
#
# 128 トークンでのキャッシュのバイト数に対し、状態が 80 % 以下になる計画を求めます。
# 見る前に予想してください。ノートブック 1 で作ったような、遠いキーの和は残るでしょうか。

# %%
texts = ["--text", "alice.txt", "--texts", "4", "--planning-texts", "3", "--length", "128"]
budget = ["--max-state", "80%", "--shares", "65%,80%", "--anchors", "2", "--budget", "60s"]
command("plan", "inspection", "--context", "128", *texts, *budget, "--out", "plan")

# %% [markdown]
# 一つも残りません。その代価を見てみましょう。

# %%
for name in ("taylor:0..1@mean", "taylor:0..2@mean"):
    costs = tw.cost(tw.catalogue[name], key_width=32, value_width=32, length=128)
    print(f"{name}: {costs.features} features a head, as large as the cache at {costs.break_even} tokens")

# %% [markdown]
# 128 トークンでは、次数 0..2 の和は、それが置き換えるキャッシュよりも大きいのです。
# 大きさが一定の状態が見合うのは、ある長さを超えてからであり、このモデルの文脈はその手前で終わります。計画の隣には、
# 最も単純な競争相手、つまり全ヘッドに同じウィンドウを置いたものが並びます。
# *no difference found*(差は見つからず)とあれば、ウィンドウのほうを選んでください。
# **「やめておけ」と言えない道具は、役に立ちません。**
#
# ## 変換後のモデル
#
# それでも、道の終わりまで見るために、この計画で先へ進みます。結果は普通のフォルダです。
# 元のモデルには手を触れないので、戻りたければ元のモデルを読み込むだけです。

# %%
command("convert", "glassllm", "--plan", "plan", "--text", "alice.txt", "--out", "converted")
print("\n".join(sorted(path.name for path in Path("converted/model").iterdir())))

# %% [markdown]
# 二つの数字に注意してください。損失は評価用に取り分けた部分で測ったものですが、短い 1 ページの一部にすぎません。
# 何かを決めるにはトークンが少なすぎ、だから区間が出ていないのです。また、バイト数の割合は、
# fp32 のキャッシュに対するものとbf16 のキャッシュに対するものの二つが表示されます。どちらで判断すべきかは、
# あなたが今使っているキャッシュで決まります。
#
# ## どの動かし方でも同じ計算になるか
#
# 状態を持つモデルは、一度に全体を、チャンクごとに、1 トークンずつ、パディングして、詰め合わせて、ビームで、
# 巻き戻して、と様々に動かせます。それぞれが別のコードであり、静かな間違いの入り口です。`verify` は、
# まさにこのモデルで、その重みとテキストを使って、すべてを比べます。品質の判定ではありません。
# このモデルが*一つの*モデルであることを示すものです。

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
# ## 書いたものを読む

# %%
for folder in ("glassllm", "converted/model"):
    model, tokenizer = load(folder)
    prompt = tokenizer("The Rabbit looked at Alice", return_tensors="pt").input_ids
    written = model.generate(prompt, max_new_tokens=40, do_sample=False)
    print(f"--- {folder}\n{tokenizer.decode(written[0], skip_special_tokens=True)}\n")

# %% [markdown]
# ## 演習
#
# 1. すべてを保持する計画 `identity` で変換してみましょう。ロジットの差はいくつになるはずでしょうか。
# 2. 全ヘッドを、スロットなしで平均のまわりの次数 0..2 に変換し、40 ステップだけ追加学習してみましょう。
#    損失はどれだけ戻るでしょうか。
#
# ### 解答
#
# **1.** 丸め誤差だけです。

# %%
command("convert", "glassllm", "--plan", "identity", "--out", "same")
ids = torch.arange(4, 100)[None]
with torch.no_grad():
    logits = [load(folder)[0](input_ids=ids).logits for folder in ("glassllm", "same/model")]
print(f"largest difference of the logits: {float((logits[0] - logits[1]).abs().max()):.0e}")

# %% [markdown]
# **2.** 表示された割合が答えです。これは 1 ページで 40 ステップだけの学習です。本当の追加学習には、
# `--tune 20m` と、それ専用のテキストが必要です。

# %%
command("convert", "glassllm", "--plan", "taylor:0..2@mean", "--text", "alice.txt", "--steps", "40", "--out", "tuned")
