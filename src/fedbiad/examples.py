"""Next words a language model expects, to look at: contexts of the test text, the likeliest words, the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedbiad.arrays import Params
from fedbiad.data.language import LanguageData
from fedbiad.models.lstm import LSTM

EXAMPLES, CONTEXT, TOP = 8, 12, 3


@torch.no_grad()
def next_words(model: LSTM, data: LanguageData, stages: dict[str, Params]) -> list[dict[str, Any]]:
    """Places spread evenly over the text a model is judged on, with the likeliest next words at every stage.

    Each has its `context`, the `truth` and, by the name of the stage, (word, probability) of the likeliest.
    """
    last = len(data.eval_tokens) - 1
    context = min(CONTEXT, last)
    places = np.unique(np.linspace(context, last, EXAMPLES).astype(np.int64)).tolist()
    windows = torch.stack([data.eval_tokens[place - context : place] for place in places])
    found: list[dict[str, Any]] = [
        {"context": [data.vocabulary[t] for t in window], "truth": data.vocabulary[int(data.eval_tokens[place])]}
        for window, place in zip(windows.tolist(), places, strict=True)
    ]
    for stage, u in stages.items():
        params = {name: value.unsqueeze(0) for name, value in u.items()}
        logits = model.forward(params, windows.unsqueeze(0), {})[0].view(len(places), context, -1)[:, -1]
        chances, words = logits.softmax(1).topk(TOP)
        for example, own, likeliest in zip(found, chances.tolist(), words.tolist(), strict=True):
            example[stage] = [[data.vocabulary[w], round(p, 4)] for w, p in zip(likeliest, own, strict=True)]
    return found
