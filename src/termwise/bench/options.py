"""The options of `termwise bench`, apart from the command line because there are many. Loads typer alone."""

from __future__ import annotations

from typing import Annotated

import typer

Subjects = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL|VARIANT",
        help="Catalogue names, short names like taylor:0..2@mean+w64s4, spec.json files, or model folders.",
        show_default=False,
    ),
]
Lengths = Annotated[str, typer.Option(help="Tokens of context, comma-separated: 512,1k,4k,16k,64k.")]
Heads = Annotated[int, typer.Option(help="Query heads.")]
KvHeads = Annotated[
    int | None, typer.Option(help="Key/value heads; they divide --heads. [default: --heads]", show_default=False)
]
KeyWidth = Annotated[int, typer.Option(help="Width of queries and keys of one head.")]
ValueWidth = Annotated[
    int | None, typer.Option(help="Width of values of one head. [default: --key-width]", show_default=False)
]
Batch = Annotated[int, typer.Option(help="Sequences at a time.")]
Dtype = Annotated[str, typer.Option(help="Type of the inputs, float32 or bfloat16; sums are float32 either way.")]
Threads = Annotated[int, typer.Option(help="Threads of torch.")]
Repeats = Annotated[
    int, typer.Option(help="Interleaved repeats; fewer, two at least, where a round takes more than 20 s.")
]
Measures = Annotated[
    str | None,
    typer.Option(
        help="prefill, decode, memory, training (of a layer's attention), step, generate (of a whole model), comma-separated. "
        "[default: prefill,decode,memory of variants, step,generate of model folders]",
        show_default=False,
    ),
]
HalfState = Annotated[
    bool,
    typer.Option("--half-state", help="decode reads states from a bfloat16 copy; with --dtype bfloat16."),
]
Clock = Annotated[
    str,
    typer.Option(help="wall, or cpu: the processor's time of the one thread, where other programs take turns with it."),
]
Seed = Annotated[int, typer.Option(help="Seed of the inputs and of the weights of built models.")]
Calibrate = Annotated[
    bool,
    typer.Option(
        "--calibrate",
        help="Measure this machine's constants for form='auto', keep them in your cache folder, and say how well they predict.",
    ),
]
