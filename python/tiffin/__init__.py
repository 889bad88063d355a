"""tiffin: sparse feed-forward layers for transformers.

    import numpy as np, tiffin

    stem = tiffin.Composition("ffn(gate(silu), token_embedding)")         # docs/layers.md has the words
    sizes = dict(d_model=64, d_ff=256, vocab=1000)
    weights = stem.initial(layers=1, **sizes)                             # float32 arrays by name
    layer = tiffin.Layer(stem.text, weights, format="q8_0", threads=2)
    y = layer(np.zeros((8, 64), np.float32), token_ids=np.arange(8))

    tiffin.open_model("model.gguf").layer(0)                              # the FFN of a published model
    tiffin.load_layer("layer.safetensors")
    tiffin.Training(stem.text, weights)                                   # forward, backward, gradients
    tiffin.Rows.open("table.safetensors", "table")                        # rows of a table larger than memory
    tiffin.NgramAddresses.open("model.gguf")                              # row numbers by the last token ids, and their rows
    tiffin.StoredTable.create("facts.rows", 10 ** 7, 256)                 # rows that learn, in a file

What cannot be read as what it is called is a tiffin.Error: nothing is cast that would lose a part of a number but the
rounding of floats to float32, and no memory is read that an array does not have. A call releases the interpreter's lock.
Signals, such as Ctrl-C, are served when a call has ended. Calls in a child of fork() run on one thread.

`tiffin.torch` has the same as torch modules.
"""
from ._arrays import BLOCKS
from ._library import BACKENDS, DTYPES, Error
from .compositions import Composition, Cost, Needed
from .layers import Layer, Model, load_layer, open_model
from .ngrams import Histories, NgramAddresses
from .rows import Counts, Rows
from .stored import Moments, StoredTable
from .training import RowGradients, Training

__all__ = ["BACKENDS", "BLOCKS", "DTYPES", "Composition", "Cost", "Counts", "Error", "Histories", "Layer", "Model", "Moments", "Needed",
           "NgramAddresses", "RowGradients", "Rows", "StoredTable", "Training", "load_layer", "open_model"]
