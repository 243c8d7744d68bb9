# One message a line, however long: a table is read and translated line by line.
# ruff: noqa: E501
"""Every word of the page of a conversion, in English; `words` joins it with english.py."""

ENGLISH_CONVERT = {
    "convert.kicker": "termwise convert",
    "convert.title": "{model} under {plan}",
    "convert.unfinished": "This conversion is not finished; the same command goes on with it.",
    "convert.headline.unscored": "Converted; no text was given, so no loss was measured.",
    "convert.headline.plain": "Converted without tuning: {difference} nats/token over the original.",
    "convert.headline.tuned": "Converted and tuned: {difference} nats/token over the original.",
    "convert.line.recovery": "Tuning recovered {share} of what conversion lost.",
    "convert.line.bytes": "Up to {context} tokens a sequence keeps at most {state} B in fp32: {share} of the original's cache in fp32, {half} of it in bf16.",
    "convert.line.folder": "The model: {path}",
    "convert.section.losses": "Losses",
    "convert.section.heads": "What the heads keep",
    "convert.section.bytes": "Bytes a sequence",
    "convert.section.missing": "Not measured",
    "convert.column.model": "Model",
    "convert.column.difference": "Over the original",
    "convert.column.interval": "Interval over documents",
    "convert.column.attention": "Attention",
    "convert.column.heads": "Kv heads",
    "convert.caption.losses": "Held-out loss on {n} tokens that no tuning saw; differences in pairs of documents, {level} intervals by bootstrap over documents.",
    "convert.caption.tuned": "Converted and tuned less the original tuned as long on the same text: {difference} {interval}.",
    "convert.caption.heads": "Kv heads over all layers, by what they run.",
    "convert.bytes.state": "States, fp32",
    "convert.bytes.cache": "The original's cache, fp32",
    "convert.bytes.cache_half": "The original's cache, bf16",
    "convert.bytes.value": "{n} B",
    "convert.missing": "{model}: {reason}",
    "convert.missing.always": "Downstream tasks, longer contexts, speed (termwise bench) and the agreement of forms (termwise verify).",
}
