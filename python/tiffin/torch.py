"""tiffin as torch modules: any composition as an nn.Module that learns, on the CPU.

    import tiffin.torch

    block = tiffin.torch.FFN("ffn(gate(silu), token_embedding)", d_model=256, d_ff=1024, vocab=32000, layers=12)
    y = block(x, token_ids=ids)          # x: (..., d_model), ids: (...)
    y.square().mean().backward()         # gradients of x and of all parameters

    optimizer = tiffin.torch.RowAdamW(block.parameters(), lr=1e-3)

float32 runs on SIMD; float64 in double throughout, slowly, for gradcheck. torch 2.4 or later.
"""
import math
import threading
import weakref
from typing import List, Optional

import numpy as np
import torch
from torch import nn

from .compositions import Composition
from .training import RowGradients, Training

__all__ = ["FFN", "RowAdamW", "replace", "save_side_file"]

_NUMBERS = {torch.float32: "f32", torch.float64: "f64"}
_KEPT = 64  # trainings that are kept for calls to come


class _Trainings:
    """Trainings by the memory of their weights, and which forward each of them ran last."""

    def __init__(self):
        self._lock, self._held = threading.Lock(), {}

    def of(self, composition, names, weights, tokens, threads, frozen, files=None):
        files = files or {}
        key = (composition, *names, threads, frozen, *map(id, files.values()), tuple((w.data_ptr(), w.dtype, w.shape) for w in weights))
        with self._lock:
            held = self._held.pop(key, None)
            if held is None or held.tokens < tokens:
                held = _Kept(composition, names, weights, max(tokens, 2 * held.tokens if held else 0), threads, frozen, files)
            self._held[key] = held  # the last again
            while len(self._held) > _KEPT:
                self._held.pop(next(iter(self._held)))
        return held

    def forget(self, addresses):
        """Drops those that read weights at these addresses: they hold gradients as large as the weights."""
        with self._lock:
            for key in [k for k in self._held if addresses.intersection(pointer for pointer, *_ in k[-1])]:
                self._held.pop(key)


class _Kept:
    def __init__(self, composition, names, weights, tokens, threads, frozen, files):
        self.lock, self.tokens, self.call = threading.Lock(), tokens, None
        self.training = Training(composition, {**{name: w.detach().numpy() for name, w in zip(names, weights)}, **files},
                                 numbers=_NUMBERS[_dtype(weights)], tokens=tokens, threads=threads, frozen=frozen.split())

    def forward(self, x, beside, weights):
        arrays = {name: a.numpy() for name, a in beside.items()}
        if self.call is not None:  # without a backward: its ids are not to be added to
            self.training.clear()
        y = self.training.forward(x.numpy(), **arrays)
        # Kept alive, so that this memory is not another tensor's.
        self.call = [(t, t._version) for t in (x, *beside.values(), *weights)]
        return y

    def ran(self, x, beside, weights):
        """Whether the last forward was this one, and nothing that it read was written since."""
        now = (x, *beside.values(), *weights)
        return self.call is not None and len(now) == len(self.call) and all(
            t.data_ptr() == was.data_ptr() and t.shape == was.shape and t._version == version
            for t, (was, version) in zip(now, self.call))


_trainings = _Trainings()


def _dtype(weights):
    return next(w.dtype for w in weights if w.dtype.is_floating_point)


def _beside(token_ids, residual, per_layer_input):
    named = {"token_ids": token_ids, "residual": residual, "per_layer_input": per_layer_input}
    return {name: a.detach().contiguous() for name, a in named.items() if a is not None}


@torch.library.custom_op("tiffin::ffn", mutates_args=(), device_types="cpu")
def _ffn(x: torch.Tensor, token_ids: Optional[torch.Tensor], residual: Optional[torch.Tensor], per_layer_input: Optional[torch.Tensor],
         weights: List[torch.Tensor], composition: str, names: str, frozen: str, threads: int) -> torch.Tensor:
    x, beside = x.detach().contiguous(), _beside(token_ids, residual, per_layer_input)
    kept = _trainings.of(composition, names.split(), weights, len(x), threads, frozen)
    with kept.lock:
        return torch.from_numpy(kept.forward(x, beside, weights))


@_ffn.register_fake
def _(x, token_ids, residual, per_layer_input, weights, composition, names, frozen, threads):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("tiffin::ffn_backward", mutates_args=(), device_types="cpu")
def _ffn_backward(dy: torch.Tensor, x: torch.Tensor, token_ids: Optional[torch.Tensor], residual: Optional[torch.Tensor],
                  per_layer_input: Optional[torch.Tensor], weights: List[torch.Tensor], composition: str, names: str, frozen: str,
                  threads: int, wanted: List[bool], sparse: bool) -> List[torch.Tensor]:
    """Of x, residual and per_layer_input; then of each weight. What is not wanted is empty. With `sparse`, of a table
    (tokens, width): the gradient of each id at the first token that has it, and 0 at the others."""
    dy, x, beside = dy.detach().contiguous(), x.detach().contiguous(), _beside(token_ids, residual, per_layer_input)
    kept = _trainings.of(composition, names.split(), weights, len(x), threads, frozen)
    return _backward(kept, dy, x, beside, weights, names.split(), wanted, sparse)


def _backward(kept, dy, x, beside, weights, names, wanted, sparse, also=lambda gradients: None):
    asked = [name for name, is_wanted in zip(("x", "residual", "per_layer_input"), wanted) if is_wanted]
    with kept.lock:
        if not kept.ran(x, beside, weights):
            kept.forward(x, beside, weights)
        inputs = kept.training.backward(dy.numpy(), inputs=asked)
        gradients = kept.training.gradients
        made = [torch.from_numpy(inputs[name]) if name in inputs else x.new_empty(0) for name in ("x", "residual", "per_layer_input")]
        for name, weight, is_wanted in zip(names, weights, wanted[3:]):
            made.append(_gradient(gradients.get(name), weight, beside.get("token_ids"), sparse) if is_wanted else x.new_empty(0))
        also(gradients)
        kept.training.clear()
        kept.call = None
    return made


@_ffn_backward.register_fake
def _(dy, x, token_ids, residual, per_layer_input, weights, composition, names, frozen, threads, wanted, sparse):
    inputs = [torch.empty_like(like, memory_format=torch.contiguous_format) if is_wanted else x.new_empty(0)
              for like, is_wanted in zip((x, residual, per_layer_input), wanted)]
    tables = _tables(composition, names) if sparse else ()
    return inputs + [(x.new_empty(x.shape[0], w.shape[-1]) if name in tables else torch.empty_like(w)) if is_wanted else x.new_empty(0)
                     for name, w, is_wanted in zip(names.split(), weights, wanted[3:])]


def _tables(composition, names):
    """The tables whose gradients can be rows of token ids: those of two axes."""
    rows = {n for n, need in Composition(composition).needs(**_ANY).items() if need.rows and len(need.shape) == 2}
    return {n for n in names.split() if n in rows}


_ANY = dict(d_model=64, d_ff=64, vocab=64, experts=4, rank=16, inner=(16, 16), choices=2, outputs=64, heads=2)


def _gradient(found, weight, token_ids, sparse):
    if found is None:
        return torch.zeros_like(weight)
    if not isinstance(found, RowGradients):
        return torch.from_numpy(found.copy())
    if not sparse or found.rows.ndim != 2:
        return torch.from_numpy(found.dense())
    ids = token_ids.numpy()
    rows = np.zeros((len(ids), found.rows.shape[-1]), found.rows.dtype)
    _, first = np.unique(ids, return_index=True)
    rows[first] = found.rows
    return torch.from_numpy(rows)


def _setup(ctx, inputs, output):
    x, token_ids, residual, per_layer_input, weights, ctx.composition, ctx.names, ctx.frozen, ctx.threads = inputs
    ctx.save_for_backward(x, token_ids, residual, per_layer_input, *weights)
    ctx.wanted = [a is not None and a.requires_grad for a in (x, residual, per_layer_input)] + [w.requires_grad for w in weights]


def _differentiate(ctx, dy):
    x, token_ids, residual, per_layer_input, *weights = ctx.saved_tensors
    made = torch.ops.tiffin.ffn_backward(dy, x, token_ids, residual, per_layer_input, weights, ctx.composition, ctx.names, ctx.frozen,
                                         ctx.threads, ctx.wanted, False)
    of = [g if is_wanted else None for g, is_wanted in zip(made, ctx.wanted)]
    return of[0], None, of[1], of[2], of[3:], None, None, None, None


_ffn.register_autograd(_differentiate, setup_context=_setup)


def _wanted(ctx, made, token_ids, weights, sparse):
    """The gradients as autograd takes them: None where none was wanted; with `sparse`, those of tables as sparse tensors."""
    of, tables = [g if is_wanted else None for g, is_wanted in zip(made, ctx.wanted)], _tables(ctx.composition, ctx.names) if sparse else ()
    for i, (name, w) in enumerate(zip(ctx.names.split(), weights), 3):
        if of[i] is not None and name in tables:
            of[i] = torch.sparse_coo_tensor(token_ids.long()[None], of[i], w.shape, check_invariants=False).coalesce()
    return of


class _SparseFFN(torch.autograd.Function):
    """The same with sparse gradients of tables, which torch.compile does not trace."""

    @staticmethod
    def forward(ctx, x, token_ids, residual, per_layer_input, composition, names, frozen, threads, *weights):
        y = torch.ops.tiffin.ffn(x, token_ids, residual, per_layer_input, list(weights), composition, names, frozen, threads)
        _setup(ctx, (x, token_ids, residual, per_layer_input, weights, composition, names, frozen, threads), y)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, token_ids, residual, per_layer_input, *weights = ctx.saved_tensors
        made = torch.ops.tiffin.ffn_backward(dy, x, token_ids, residual, per_layer_input, weights, ctx.composition, ctx.names,
                                             ctx.frozen, ctx.threads, ctx.wanted, True)
        of = _wanted(ctx, made, token_ids, weights, True)
        return of[0], None, of[1], of[2], None, None, None, None, *of[3:]


class _StoredFFN(torch.autograd.Function):
    """The same with tables in files, whose gradients are the block's and not torch's."""

    @staticmethod
    def forward(ctx, block, x, token_ids, residual, per_layer_input, names, frozen, threads, *weights):
        ctx.block, ctx.steps = block, [table.steps for table in block.stored.values()]
        ctx.of = lambda: _trainings.of(block.composition.text, names.split(), weights, len(x), threads, frozen, block._files)
        _setup(ctx, (x, token_ids, residual, per_layer_input, weights, block.composition.text, names, frozen, threads), None)
        kept = ctx.of()
        with kept.lock:
            return torch.from_numpy(kept.forward(x.detach().contiguous(), _beside(token_ids, residual, per_layer_input), weights))

    @staticmethod
    def backward(ctx, dy):
        x, token_ids, residual, per_layer_input, *weights = ctx.saved_tensors
        block, sparse = ctx.block, ctx.block.sparse
        if [table.steps for table in block.stored.values()] != ctx.steps:
            raise RuntimeError("a stored table was modified by a step between forward and backward")

        def also(gradients):
            for name in block.stored:
                block._learnt.append((name, gradients[name].ids, gradients[name].rows))

        made = _backward(ctx.of(), dy.detach().contiguous(), x.detach().contiguous(), _beside(token_ids, residual, per_layer_input), weights,
                         ctx.names.split(), ctx.wanted, sparse, also)
        of = _wanted(ctx, made, token_ids, weights, sparse)
        return None, of[0], None, of[1], of[2], None, None, None, *of[3:]


class FFN(nn.Module):
    """A composition (docs/layers.md) with parameters of its own: y = block(x, ...).

    Sizes: d_model, d_ff, vocab, experts, rank, inner, choices, outputs, heads: those that the composition has.
    layers: of the whole model, for DeepNorm; seed, scale: see Composition.initial. threads: None: torch.get_num_threads().
    sparse: gradients of tables are sparse tensors, as optimizers of embeddings want them; torch.compile needs False.
    stored: tables that lie in files, {"stem_embed.weight": tiffin.StoredTable}: float32, no parameters of the module, not in its
        state_dict. A call reads the rows of its tokens; RowAdamW(..., stored=[block]) steps them. Not under torch.compile.

    Parameters have the composition's names, so state_dict() is what tiffin.Layer and layer files take:
        tiffin.Layer(block.composition.text, {n: p.numpy() for n, p in block.state_dict().items()})
    Shapes: x, residual (..., d_model), token_ids (...), per_layer_input (..., width); y as x. All of one dtype, float32
    or float64, on the CPU.
    """

    def __init__(self, composition, *, layers=1, seed=0, scale=1.0, threads=None, sparse=False, stored=None, dtype=torch.float32, **sizes):
        super().__init__()
        self.composition = Composition(composition)
        self.sizes, self.threads, self.sparse = dict(sizes), threads, sparse
        needs = {n: need for n, need in self.composition.needs(**sizes).items() if not need.optional}
        self.stored = dict(stored or {})
        for name, table in self.stored.items():
            need = needs.get(name)
            if need is None or not need.rows or need.shape != (len(table), table.width) or dtype != torch.float32:
                raise ValueError(f"stored: {name} is a table of {len(table)} rows of {table.width} in float32; the composition's is "
                                 f"{'none' if need is None else (*need.shape, dtype)}")
        self._files = {name: table.rows() for name, table in self.stored.items()}
        self._learnt = []  # since the last step: a stored table's name, ids, and the gradients of their rows
        # A stored table has values already: where it is the only one, none as large as it is made.
        in_memory = any(need.rows and name not in self.stored for name, need in needs.items())
        initial = self.composition.initial(layers=layers, seed=seed, scale=scale,
                                           **(sizes if in_memory or not self.stored else {**sizes, "vocab": 1}))
        self._names = list(needs)
        for name, need in needs.items():
            if name in self.stored:
                continue
            owner, leaf = self._owner(name)
            if need.integers:  # a map of experts: token ids to experts, in turns
                experts = sizes.get("experts", 1)
                owner.register_buffer(leaf, (torch.arange(math.prod(need.shape)) % experts).to(torch.int32).reshape(need.shape))
            else:
                owner.register_parameter(leaf, nn.Parameter(torch.from_numpy(initial[name]).to(dtype)))
        weakref.finalize(self, _trainings.forget, {w.data_ptr() for w in self.weights()}).atexit = False

    def _owner(self, name):
        *path, leaf = name.split(".")
        at = self
        for part in path:
            if part not in at._modules:
                at.add_module(part, nn.Module())
            at = at._modules[part]
        return at, leaf

    def weights(self):
        """The tensors, in the order of the composition's text; without stored tables."""
        found = []
        for name in self._names:
            if name not in self.stored:
                owner, leaf = self._owner(name)
                found.append(getattr(owner, leaf))
        return found

    def step_stored(self, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
        """A step of AdamW on the rows of stored tables that were read since the last, where backward gave them gradients."""
        for name, table in self.stored.items():
            learnt = [(ids, rows) for of, ids, rows in self._learnt if of == name]
            if learnt:
                table.step(np.concatenate([ids for ids, _ in learnt]), np.concatenate([g for _, g in learnt]), lr, betas, eps, weight_decay)
        self._learnt.clear()

    def extra_repr(self):
        return ", ".join([self.composition.text, *(f"{n}={v}" for n, v in self.sizes.items())])

    def forward(self, x, token_ids=None, residual=None, per_layer_input=None):
        shape = x.shape
        rows = lambda a: None if a is None else a.reshape(-1, a.shape[-1])
        ids = None if token_ids is None else token_ids.reshape(-1)
        threads = torch.get_num_threads() if self.threads is None else self.threads
        weights, kept = self.weights(), [name for name in self._names if name not in self.stored]
        inputs, text, names = (rows(x), ids, rows(residual), rows(per_layer_input)), self.composition.text, " ".join(kept)
        # Gradients that nobody wants are not computed.
        frozen = " ".join(n for n, w in zip(kept, weights) if w.is_floating_point() and not w.requires_grad)
        if self.stored:
            y = _StoredFFN.apply(self, *inputs, names, frozen, threads, *weights)
        elif self.sparse:
            y = _SparseFFN.apply(*inputs, text, names, frozen, threads, *weights)
        else:
            y = torch.ops.tiffin.ffn(*inputs, weights, text, names, frozen, threads)
        return y.reshape(shape)


class _Inputs:
    """What the FFNs of one forward of a model read beside x."""

    def __init__(self, ngrams, activation):
        self.token_ids, self.ngrams, self.ngram_rows, self.activation = None, ngrams, None, activation

    def note(self, _, args, kwargs):
        """Before the model's forward: its ids, and the rows of a table that all n-grams select, (..., tables)."""
        self.token_ids = kwargs.get("input_ids", args[0] if args else None)
        if self.ngrams is None or self.token_ids is None:
            return
        # A key-value cache, whatever releases of transformers call it.
        if any(hasattr(given, "get_seq_length") and given.get_seq_length() > 0 for given in (*args, *kwargs.values())):
            raise RuntimeError("tiffin.torch.replace: n-grams are of whole sequences, and the model was called with the last tokens of some: "
                               "use_cache=False")
        sequences, length = self.token_ids.shape
        rows = self.ngrams(self.token_ids.reshape(-1).numpy(), self.ngrams.histories(sequences), np.repeat(np.arange(sequences), length))
        rows = rows.astype(np.int64) + self.first()[:, None]
        self.ngram_rows = torch.from_numpy(rows.T.reshape(sequences, length, -1).copy())

    def first(self):
        """Where each table begins in the one that has all."""
        each = [0 if self.ngrams.one_table else n for n in self.ngrams.rows_of]
        return np.cumsum([0, *each[:-1]])

    def rows(self):
        return max(self.ngrams.rows_of) if self.ngrams.one_table else sum(self.ngrams.rows_of)


class _InModel(FFN):
    """A composition in the place of a model's FFN, or beside it."""

    def __init__(self, composition, mlp, layer, shared, tables, ngram_width, beside, **options):
        super().__init__(composition, scale=tables, **options)
        self.beside = mlp if beside else None
        reads = {name for name, need in self.composition.needs(**self.sizes).items() if need.rows}
        # A modulator's scale of 0 leaves the model as it was; with tables of 0 beside it neither would ever learn.
        factor = 1.0 if any(name.rpartition(".")[2] == "scale" for name in self._names) else tables
        self._shared, self._inputs, self._residual = {}, shared, None
        held = {} if beside else dict(mlp.named_parameters())
        if beside:  # what it adds begins at 0: by its last projection, as norms would bring rows of 0 back to size
            needs = self.composition.needs(**self.sizes)
            reads, factor = {[n for n in self._names if len(needs[n].shape) == 2 and needs[n].shape[0] == self.sizes["d_model"]][-1]}, tables
        for name in self._names:
            owner, leaf = self._owner(name)
            *_, kind = name.rpartition(".")[0].split(".")
            theirs = held.get(f"{kind}.{leaf}")
            if theirs is not None and theirs.shape == getattr(owner, leaf).shape:
                owner.register_parameter(leaf, theirs)
                self._shared[name] = f"{kind}.{leaf}"
            elif name in reads:
                with torch.no_grad():
                    getattr(owner, leaf).mul_(factor)
        if shared.ngrams is not None:
            values = torch.empty(shared.rows(), ngram_width).normal_(generator=torch.Generator().manual_seed(options["seed"]))
            values *= 1.0 if beside else tables
            self.ngram_embed = nn.Module()
            self.ngram_embed.register_parameter("weight", nn.Parameter(values))
        self._hook = layer.post_attention_layernorm.register_forward_pre_hook(self._note_residual)

    def _note_residual(self, _, given):
        self._residual = given[0]

    def forward(self, x):
        ids = self._inputs.token_ids
        if ids is None or ids.shape != x.shape[:-1]:
            raise RuntimeError(f"tiffin.torch.replace: the model was called with input_ids of shape {None if ids is None else tuple(ids.shape)} "
                               f"and has x of shape {tuple(x.shape)}; its FFN reads token ids: call it with input_ids")
        memory = None
        if self._inputs.ngrams is not None:
            memory = nn.functional.embedding(self._inputs.ngram_rows, self.ngram_embed.weight, sparse=self.sparse).flatten(-2)
        y = super().forward(x, token_ids=ids, residual=self._residual if self.composition.reads_residual else None, per_layer_input=memory)
        return y if self.beside is None else y + self.beside(x)

    def described(self):
        """Its text, its tensors by their names in it, and which of these are the model's own: {name: the model's}."""
        tensors = dict(zip(self._names, self.weights()))
        if self.beside is None:
            return self.composition.text, tensors, self._shared
        own = {f"branch.0.{name}": tensor for name, tensor in self.beside.named_parameters()}
        return (f"parallel(ffn(gate({_ACTIVATIONS[self._inputs.activation]}), dense), {self.composition.text})",
                {**own, **{f"branch.1.{name}": tensor for name, tensor in tensors.items()}}, {n: n.removeprefix("branch.0.") for n in own})


_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


def replace(model, composition, layers, *, beside=False, tables=0.0, freeze=True, sparse=False, threads=None, ngrams=None, ngram_width=0,
            **sizes):
    """Puts a composition in the place of the FFNs of a Hugging Face model whose layers are as Llama's, or beside them, and returns the new
    modules.

        blocks = tiffin.torch.replace(model, "ffn(gate(silu), sum(dense, token_embedding))", layers=range(24, 30))
        optimizer = tiffin.torch.RowAdamW([p for p in model.parameters() if p.requires_grad])
        ...
        tiffin.torch.save_side_file(model, "side.safetensors")

    Tensors of the names and shapes of the model's (gate_proj.weight, up_proj.weight, down_proj.weight) are the model's own; the
    composition's others are new. tables: a factor of the new tables' starting values, or of a modulator's scale where there is one:
    with 0 a model to which tables or modulators are added starts as it was. beside: y is the FFN's and the composition's, added up; it has
    its own d_ff, and begins with `tables` times its last projection: replace(model, "meki", [2, 3], beside=True, d_ff=256). freeze: nothing but the new tensors learns. Sizes
    beyond d_model, d_ff and vocab: see FFN. ngrams, a tiffin.NgramAddresses: the composition's per_layer_input is the rows of the last ids,
    ngram_width numbers of each table, from a parameter ngram_embed.weight of each layer: "engram", beside.
    The model runs in float32 on the CPU, and is called with input_ids.
    """
    config, inputs = model.config, _Inputs(ngrams, model.config.hidden_act)
    if ngrams is not None:
        if ngram_width < 1:
            raise ValueError(f"ngram_width is {ngram_width}; it is the numbers of a row")
        sizes["inner"] = (ngrams.tables * ngram_width,) * 2
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.model

    if freeze:
        model.requires_grad_(False)
    made = {}
    for i in layers:
        if not -len(decoder.layers) <= i < len(decoder.layers):
            raise IndexError(f"layer {i}: the model has {len(decoder.layers)}")
        layer = decoder.layers[i]
        if isinstance(layer.mlp, _InModel):  # replaced before
            layer.mlp._hook.remove()
        made[i] = _InModel(composition, layer.mlp, layer, inputs, tables, ngram_width, beside, layers=config.num_hidden_layers,
                           seed=i % len(decoder.layers), sparse=sparse, threads=threads,
                           **{"d_model": config.hidden_size, "d_ff": config.intermediate_size, "vocab": config.vocab_size, **sizes})
        layer.mlp = made[i]
    decoder.register_forward_pre_hook(inputs.note, with_kwargs=True)
    return list(made.values())


def save_side_file(model, path):
    """Writes the compositions that replace() put into a model as a side file (docs/models.md#side-files): the new tensors, and those of
    the model that learned. The decoder and llama.cpp with tiffin's backend run it beside the model's GGUF file; n-grams the decoder alone."""
    from safetensors.torch import save_file
    tensors, told = {}, {}
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.model
    for i, layer in enumerate(decoder.layers):
        block = layer.mlp
        if not isinstance(block, _InModel):
            continue
        if block._inputs.ngrams is not None:
            options, constants = block._inputs.ngrams.described()
            told.update({f"blk.{i}.ngrams.{key}": value for key, value in options.items()})
            tensors.update({f"blk.{i}.ngrams.{name}": torch.tensor(values) for name, values in constants.items()})
            tensors[f"blk.{i}.ngrams.weight"] = block.ngram_embed.weight.detach().clone().contiguous()
        told[f"blk.{i}.composition"], tensors_of, shared = block.described()
        kept = {}  # what the model's file has, by the prefix of the part that it belongs to
        for name, tensor in tensors_of.items():
            if name in shared and not tensor.requires_grad:
                kept.setdefault(name.removesuffix(shared[name]), []).append(shared[name].rpartition(".")[0])
            else:
                tensors[f"blk.{i}.{name}"] = tensor.detach().clone().contiguous()
        for part, names in kept.items():
            told[f"blk.{i}.{part}weights"] = " ".join(names)
    if not told:
        raise ValueError("save_side_file: the model has no layer that replace() put there")
    save_file(tensors, path, metadata=told)


class RowAdamW(torch.optim.Optimizer):
    """AdamW that steps only the rows of a sparse gradient; dense gradients as torch.optim.AdamW.

    m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, each row with a step count t of its own;
    row -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay row).
    rowwise: one second moment per row, of the mean of g^2 (FBGEMM's partial row-wise Adam).
    count_rows: False: t counts the steps of the table, as FBGEMM and torch.optim.SparseAdam count.
    stored: FFNs with tables in files, whose rows step with the first group's options, each with moments and a count in the file.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, rowwise=False, count_rows=True, stored=()):
        for name, value, holds in (("lr", lr, lr >= 0), ("beta1", betas[0], 0 <= betas[0] < 1), ("beta2", betas[1], 0 <= betas[1] < 1),
                                   ("eps", eps, eps >= 0), ("weight_decay", weight_decay, weight_decay >= 0)):
            if not (math.isfinite(value) and holds):
                raise ValueError(f"{name} is {value}")
        if stored and (rowwise or not count_rows):
            raise ValueError("stored: a table in a file has two moments and a count of steps per row")
        self.stored = list(stored)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, rowwise=rowwise, count_rows=count_rows))

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none)
        for block in self.stored:
            block._learnt.clear()

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        of = self.param_groups[0]
        for block in self.stored:  # first, as they refuse what is not finite
            block.step_stored(of["lr"], of["betas"], of["eps"], of["weight_decay"])
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step(p, group)
        return loss

    def _step(self, p, group):
        (beta1, beta2), state = group["betas"], self.state[p]
        if not state:
            rows = (*p.shape[:-1], 1) if group["rowwise"] and p.dim() > 1 else p.shape
            state["m"], state["v"] = torch.zeros_like(p), p.new_zeros(rows)
            state["t"] = p.new_zeros((*p.shape[:1], *[1] * (p.dim() - 1)) if p.grad.is_sparse and group["count_rows"] else (), dtype=torch.float64)
        m, v, t = state["m"], state["v"], state["t"]
        if p.grad.is_sparse:
            grad = p.grad.coalesce()
            at, g = grad.indices()[0], grad.values()
            rows, m_rows, v_rows = p[at], m[at], v[at]
            t_rows = t[at] if t.dim() else t
        else:
            at, g, rows, m_rows, v_rows, t_rows = None, p.grad, p, m, v, t
        square = g.square()
        if v.shape != p.shape:
            square = square.mean(-1, keepdim=True)
        m_rows, v_rows, t_rows = beta1 * m_rows + (1 - beta1) * g, beta2 * v_rows + (1 - beta2) * square, t_rows + 1
        by_m, by_v = (1 - beta1 ** t_rows).to(p.dtype), (1 - beta2 ** t_rows).to(p.dtype)
        step = m_rows / by_m / ((v_rows / by_v).sqrt() + group["eps"]) + group["weight_decay"] * rows
        if at is None:
            p.add_(step, alpha=-group["lr"])
            state["m"], state["v"], state["t"] = m_rows, v_rows, t_rows
        else:
            p[at] = rows - group["lr"] * step
            m[at], v[at] = m_rows, v_rows
            if t.dim():
                t[at] = t_rows
            else:
                state["t"] = t_rows
