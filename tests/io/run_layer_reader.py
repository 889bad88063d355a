"""The strict reading of layer files: names, shapes, formats and options, as docs/layer_files.md asks.

A `Reader` is one block's view of a `File`; what is wrong is raised as Refused. Written from docs/layers.md alone.
"""

import math

import numpy as np

from run_layer_bounds import Num
from run_layer_files import BLOCK_BYTES, decode, dequantised, encode

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "identity", "relu_squared")
ORDERS = ("softmax_topk", "softmax_topk_renorm", "topk_softmax", "sigmoid_topk_renorm")
STRUCT_FUSIONS = ("additive", "gated", "post_activation")
MEKI_FUSIONS = ("add_sigmoid", "mul_sigmoid", "add_silu", "mul_silu")

#            projections, token table, default activation
BLOCKS = {
    "mlp": (("up", "down"), False, "gelu"),
    "glu": (("gate", "up", "down"), False, "silu"),
    "stem": (("gate", "down"), True, "silu"),
    "stem_gate": (("up", "down"), True, "silu"),
    "stem_hybrid": (("gate", "up", "down"), True, "silu"),
}
COMPOSITE = ("moe", "hash_moe", "structmoe", "meki", "ple", "retoken", "mort", "deep_embed", "mole")
COMPOSITE += ("product_keys", "peer", "l3", "engram", "longcat_embedding", "parallel")
ALL_BLOCKS = tuple(BLOCKS) + COMPOSITE
LOADERS = {}  # block -> what reads one, a function of a Reader; filled by run_layer_reference.py
DEEPEST = 64  # nested blocks, one in the other; docs/layer_files.md names 32


class Refused(Exception):
    """Bad input: `file` is layer or input; the text names the tensor or the key."""

    def __init__(self, text, file="layer"):
        super().__init__(text)
        self.file = file


class Call:
    """One input, and what the routers met: `gaps` has, by row, the least distance that decides a selection."""

    def __init__(self, x, ids=None, residual=None, per_layer_input=None):
        self.x, self.ids, self.residual, self.per_layer_input = Num(x), ids, residual, per_layer_input
        self.gaps = []

    def select(self, values, k):
        order = np.argsort(-values, -1, kind="stable")[:, :k]  # ties to the lower index
        ranked = -np.sort(-values, -1)[:, : k + 1]
        if ranked.shape[1] > 1:
            steps = ranked[:, :-1] - ranked[:, 1:]
            self.gaps.append(np.min(np.where(steps == 0, np.inf, steps), -1))  # an exact tie is no near tie
        return order


# ---------------------------------------------------------------------------------------------------
# Layer files

FLOATS, INTEGERS = ("F32", "F16", "BF16"), ("I32", "I64")


class File:
    def __init__(self, tensors, metadata):
        self.tensors, self.metadata = tensors, metadata
        self.used, self.keys, self.shared = set(), set(), {}
        self.vocabularies, self.needs = [], {}


class Reader:
    """A block's view of a file: its prefixes, and the sizes met so far."""

    def __init__(self, file, prefix="", keys="", depth=0):
        self.file, self.prefix, self.keys, self.depth, self.sizes = file, prefix, keys, depth, {}
        self.slack = 2 if prefix else 0

    def has(self, name):
        return self.prefix + name in self.file.tensors

    def tensor(self, name, *dims, dtypes=FLOATS):
        full = self.prefix + name
        if full not in self.file.tensors:
            raise Refused("tensor %s is missing" % full)
        a, dtype = self.file.tensors[full]
        if dtype == "U8" and dtypes == FLOATS and dims:
            a, dtype = self.blocks(full, a), "F32"
        if dtype not in dtypes:
            raise Refused("tensor %s has dtype %s" % (full, dtype))
        self.file.used.add(full)
        shape = np.shape(a)
        if not dims and shape == (1,):
            shape = ()
        if len(shape) != len(dims) or 0 in shape:
            raise Refused("tensor %s has shape %s" % (full, shape))
        for size, dim in zip(shape, dims):
            known = self.file.shared if dim == "d" else self.sizes  # d is common to all blocks of the file
            expected, since = known.setdefault(dim, (size, full))
            if size != expected:
                raise Refused("tensor %s has %s = %d, but %s has %d" % (full, dim, size, since, expected))
            if dim == "V":
                self.file.vocabularies.append(size)
                self.file.needs["token_ids"] = None
        a = np.asarray(a)
        if dtype in FLOATS:
            a = decode(encode(a, dtype), dtype, a.shape).astype(np.float64)
            self.check_finite(full, a, dims)
        return a.reshape(shape)

    def check_finite(self, full, a, dims):
        """What decides a route is finite; a bias of the choice is a number."""
        wrong = np.isnan(a) if full.endswith("router.selection_bias") else ~np.isfinite(a)
        deciding = ("router.weight", "router.selection_bias", "query.weight", "query.bias", "in_proj.weight")
        if (full.endswith(deciding) or full.endswith("keys.weight") and dims[0] == "groups") and wrong.any():
            raise Refused("tensor %s is not finite at number %d" % (full, np.flatnonzero(wrong)[0]))

    def blocks(self, full, a):
        """The numbers of the tensor `full` of U8, whose format the metadata says."""
        key = full + ".format"
        if key not in self.file.metadata:
            raise Refused("tensor %s has dtype U8, and there is no option %s" % (full, key))
        self.file.keys.add(key)
        form = self.file.metadata[key]
        if form not in BLOCK_BYTES:
            raise Refused("option %s has the unknown value %s" % (key, form))
        size = BLOCK_BYTES[form]
        if np.ndim(a) < 2 or 0 in np.shape(a) or a.shape[-1] % size:
            raise Refused("tensor %s has shape %s, which are no rows of blocks of %d bytes" % (full, np.shape(a), size))
        return dequantised(a, form)

    def optional(self, name, *dims):
        return self.tensor(name, *dims) if self.has(name) else None

    def given(self, name, size):
        """The tensor `name` reads `size` numbers of per_layer_input, which is one for the whole file."""
        full = self.prefix + name
        expected, since = self.file.shared.setdefault("per_layer_input", (size, full))
        if size != expected:
            text = "tensor %s reads %d numbers of per_layer_input, but %s reads %d"
            raise Refused(text % (full, size, since, expected))
        self.file.needs["per_layer_input"] = size

    def option(self, key, default=None):
        full = self.keys + key
        if full not in self.file.metadata:
            if default is None:
                raise Refused("option %s is missing" % full)
            return default
        self.file.keys.add(full)
        return self.file.metadata[full]

    def choice(self, key, allowed, default=None):
        value = self.option(key, default)
        if value not in allowed:
            raise Refused("option %s has the unknown value %s" % (self.keys + key, value))
        return value

    def count(self, key, default=None):
        value = self.option(key, default)
        if not value.isascii() or not value.isdigit() or int(value) == 0:
            raise Refused("option %s is %s, not a count" % (self.keys + key, value))
        return int(value)

    def number(self, key, default):
        value = self.option(key, default)
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise Refused("option %s is %s" % (self.keys + key, value))
        return number

    def flag(self, key):
        return self.choice(key, ("true", "false"), "false") == "true"

    def nested(self, prefix, keys=None, kinds=ALL_BLOCKS):
        inner = Reader(self.file, self.prefix + prefix, self.keys + (prefix if keys is None else keys), self.depth + 1)
        if inner.depth > DEEPEST:
            raise Refused("option %sblock is nested more than %d deep" % (inner.keys, DEEPEST))
        return LOADERS[inner.choice("block", kinds)](inner)
