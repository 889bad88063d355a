#!/usr/bin/env python3
"""Black-box test of `run_layer` for every block of layer files.

    run_layer_test.py RUN_LAYER [--blocks A,B,...] [--backend B ...] [--threads N] [--keep DIR] [-k TEXT] [-v]
    run_layer_test.py --self-check [--blocks A,B,...] [-k TEXT] [-v]

The expected values are computed in numpy and float64, straight from the formulas of the
pages docs/layers.md and docs/layer_files.md; the tolerance is derived in
run_layer_bounds.py.  Needs Python 3.9 and numpy; without numpy it prints a line and exits with 77.
--blocks: the kinds to test (default: all); a composite layer is tested if all composite kinds in it are
chosen, its dense parts (mlp, glu, stem, stem_gate, stem_hybrid) being taken for granted.
--backend: the backends to test (default: reference eigen simd); --threads: the second thread count
beside 1 (default 2); --keep: leave all files in DIR; -k: only the tests whose name contains TEXT.
--self-check: no tool; identities between blocks (folded = unfolded and so on), and all tests of the composite
kinds with the numpy reference in the tool's place.

    run_layer_files.py       safetensors files, blocks of q8_0 and q4_0
    run_layer_bounds.py      numbers with bounds of their rounding errors
    run_layer_reader.py      the strict reading of layer files
    run_layer_reference.py   every block
    run_layer_cases.py       random layers
    run_layer_harness.py     running the tool and judging what it does
    run_layer_dense.py       tests: dense and STEM blocks, containers, command line
    run_layer_composite.py   tests: values of the other kinds
    run_layer_quantised.py   tests: tensors of q8_0 and q4_0
    run_layer_routers.py     tests: routers whose probabilities underflow
    run_layer_limits.py      tests: names, nesting, OUTPUT
    run_layer_refusals.py    tests: bad input for the other kinds
    run_layer_not_finite.py  tests: NaN and infinity, in weights and in inputs
    run_layer_self_check.py  --self-check

What docs/layers.md leaves open, and what this test takes it to mean
  * Default activation: gelu for mlp, silu for glu (2.1 names none) and for the three STEM blocks
    (2.2: phi = silu).  Every activation of section 1 is valid for every block.
  * Optional biases: `gate_proj.bias (f)`, `up_proj.bias (f)`, `down_proj.bias (d)`, in any subset, also
    in the STEM blocks where the block has that projection.  `stem_embed.bias` is an unused tensor.
  * `token_ids` is optional where no table reads it (mlp, glu); if present it must have length T, and
    its (non-negative) values do not matter.  Tensors may differ in dtype within one file.
  * T = 0 is valid, and x must still have d columns.  A dimension of zero in LAYER is an error.
  * token_ids and x must have exactly the ranks that section 5 gives (1 and 2), x only F32, token_ids
    only I32 or I64.  F64 or integer weights are errors.
  * An id out of range is an error in INPUT: the line has `token_ids` and the id in decimal.
  * Where shapes contradict each other, the line may name any one of the tensors that disagree.
  * Structural errors (truncation, header length, broken JSON) need only the path; everything that
    concerns one tensor needs the path and the tensor's name, everything that concerns an option the
    path and the key (and the value, for a bad value of `block` or `activation`).
  * The path is printed as it was given.  No other file may be left beside OUTPUT after a failure.
  * The line on stderr is printable ASCII and has at most 8 KB, whatever names the files hold; of a name that is not
    printable or too long it has a part.
  * OUTPUT that is LAYER or INPUT, also by another spelling of the path, is refused.  Links are not tested.  An OUTPUT
    may have any name that the file system takes.
  * OUTPUT that exists is replaced on success, unchanged after a failure; with an OUTPUT that cannot be
    written the status is 1 and the line names OUTPUT.
  * OUTPUT holds exactly one tensor, `y`, if nothing routes, else exactly y, route and route_weight.
    What a successful run prints is not looked at.
  * The command line: wrong flags and values give a non-zero status (1 or not) and some line on stderr
    that names the flag; usage lines around it are allowed.
  * A safetensors file need not be padded or aligned, tensors may lie in any order, and JSON
    escapes and white space in the header are valid.
  * `--backend reference` computes in double throughout and rounds y once; the other backends compute
    in float32 or better (no TF32, no bfloat16 products).  Outputs of different --batch and --threads
    are required to be bitwise equal on `simd` only.
Not tested because open: options that exist but do not belong to the block (`top_k` on glu), other
metadata such as `format`, further tensors in INPUT, holes or trailing bytes in the data section,
`--threads 0`, `--flag=value`, flags before the paths, repeated flags, missing token_ids
at T = 0 (in any block).  --weights and --tables are tested only for refusing unknown names.
Composite kinds
  * Default activation of structmoe: gelu.  `top_k`: 1 for moe and structmoe, 2 for mort.  `eps`: 1e-6, of l3 and
    engram 1e-5.  `num_layers`: none.  `router_order`: softmax_topk.  `norm`: l2.  Booleans are "true" and "false".
  * `num_experts`, `branches` and `terms` have no default; `num_experts` must be the rows of router.weight.
  * A nested block states its kind by `expert.block`, `shared.block`, `base.block`, `branch.{i}.block`; its options have
    their own defaults.  Nothing is inherited from the outer block.  `shared.` is one block, there if `shared.block` is.
  * The selection bias is added to what the order ranks: probabilities, logits (topk_softmax) or sigmoids.
    `route` is in the order of these biased values, so that route_weight need not descend.
    They are doubles: what underflows or reaches 1 in double is a tie, which goes to the lower index.  Without a bias the
    choice is that of the logits, also where sigmoids or probabilities underflow.
  * The renormalising orders divide by the sum of the selected weights, without an epsilon.  The quotient is the limit of
    the formula, also where the weights underflow.  softmax_topk gives what it gives: 0 where the probability underflows.
  * structmoe: W1 is up_proj.weight and W2 down_proj.weight for every fusion, with optional biases as in an mlp (a test
    of its own); the bias of W1 is inside phi.  placement = down: the bank reads phi(x W1^T + b1).
  * hash_moe: route_weight is 1; the map's entries are checked when the layer is read, the id when it is used: an id
    beyond the map is an error in INPUT.  k is the map's second dimension, 1 for (V), and `top_k`, if there, is that.
  * meki: one eps for all norms; static-only keeps alpha and mix_norm.weight, drops beta; dynamic-only keeps alpha, beta
    and mix_norm.weight: e = alpha rms(beta G(E[t])).  A folded layer has memory.weight and none of these.
    word_norm.weight present: G reads rms(E[t]) word_norm.weight, the linear G as well.  word_proj.weight beside one of
    the three is an error.
  * ple: the form follows from word_embed.weight.  The full form needs memory.weight; folded = true needs it too and goes
    with none of the other three.  One eps for both norms.
  * Blocks: dtype U8, and the key is the tensor's full name, that of an expert as well, and `.format`.  Tensors of rank 1
    and 0 are not blocks.  A tensor of U8 without the key, and a key without such a tensor, are errors.  The numbers are
    f16 scale times level, which float32 holds exactly; simd gives that with --weights f32 --tables f32.  Each tensor may
    have a format of its own.
  * Nested blocks: 20 deep is valid (retoken on retoken, parallel in parallel).  There may be a limit; it is an error.
  * retoken and mort with `norm` = rms: without a weight.  A folded retoken has no `scale`.
  * Of nested routing parts the outermost writes the route; of parallel branches the first that routes.
  * product_keys: the form is Memory+ where gate_proj.weight or down_proj.weight is there; without the other one, the
    line names either, or what is of no use then.  An activation of the plain form is an unknown option.
  * product_keys, peer: the rows are the best of all n^2 sums; equal sums of other pairs go to the lower row too.
    Numbers that every order of summation gives exactly make ties on every backend; equal keys of any numbers make them
    on reference and simd only.
  * l3: `ranges` is I32 or I64 and not in blocks.  Rows that no range has are allowed.  Where every range is empty,
    route and route_weight have the shape (T, 1): -1 with the weight 0.
  * engram: a key or query of zeros makes g exactly 0, and so the gate 1/2, on every backend.  Where products cancel, g
    may be a rounding error of either sign.  Where 0 < |g| < 1e-6 the gate is that of 1e-6 with the sign of g.
  * longcat_embedding: `terms` is a whole number from 1 up.
  * Parts that read per_layer_input in different widths are an error in LAYER: the line names one of their tensors, or
    per_layer_input.
  * The constants 1/sqrt(2 num_layers), alpha and beta are not rounded to float32 on `reference`; eps may be.
    A table folded while reading is not rounded to float32 either on `reference`.
Not tested because open, composite kinds: an id twice in a row of a hash map, experts of different V, experts or
shared experts that are composite, two branches of moe, structmoe or mort, retoken on mort, mort on mort or parallel,
`router.bias`, meki's SwiGLU G with an odd d, memory.weight and word_embed.weight of different V in ple, per_layer_input
beside memory.weight, router values that differ by less than 1e-4 (but for exact ones), infinite logits, scales of blocks
that are not finite, the least depth of nesting that is refused.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True  # the source tree may be read-only

try:
    import numpy
except ImportError:
    numpy = None


def folder_in_memory():
    """For thousands of files that live for milliseconds: ext4 looks long for an inode that was not used just now."""
    memory = "/dev/shm"
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= 1 << 30:
        return memory
    return None


def main():
    if numpy is None:
        print("SKIPPED: numpy is not installed")
        return 77
    import run_layer_composite
    import run_layer_dense
    import run_layer_limits
    import run_layer_not_finite
    import run_layer_quantised
    import run_layer_refusals
    import run_layer_routers
    import run_layer_self_check
    from run_layer_harness import Result, Settings
    from run_layer_reference import ALL_BLOCKS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_layer", metavar="RUN_LAYER", nargs="?")
    parser.add_argument("--blocks", metavar="A,B,...", type=lambda text: text.split(","), default=ALL_BLOCKS)
    parser.add_argument("--backend", nargs="+", action="extend", metavar="B")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--keep", metavar="DIR")
    parser.add_argument("--self-check", action="store_true")
    parser.add_argument("-k", metavar="TEXT")
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    for block in options.blocks:
        if block not in ALL_BLOCKS:
            parser.error("--blocks: no block %r; there are %s" % (block, ", ".join(ALL_BLOCKS)))
    Settings.blocks, Settings.threads = tuple(options.blocks), options.threads
    modules = [run_layer_dense, run_layer_composite, run_layer_quantised, run_layer_routers, run_layer_limits, run_layer_refusals, run_layer_not_finite]
    if options.self_check:
        Settings.tool, Settings.in_process, Settings.backends = "(the reference)", run_layer_self_check.tool, ("reference",)
        modules = [run_layer_self_check, run_layer_composite, run_layer_quantised, run_layer_routers, run_layer_limits, run_layer_refusals, run_layer_not_finite]
    elif not options.run_layer or not os.path.isfile(options.run_layer):
        parser.error("%s does not exist" % options.run_layer if options.run_layer else "RUN_LAYER is missing")
    else:
        Settings.tool = os.path.abspath(options.run_layer)
        Settings.backends = tuple(options.backend or Settings.backends)

    loader = unittest.TestLoader()
    if options.k:
        loader.testNamePatterns = ["*%s*" % options.k]
    suite = unittest.TestSuite(loader.loadTestsFromModule(m) for m in modules)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="run layer ", dir=folder_in_memory()) as folder:  # the blank is on purpose
        if options.keep:
            os.makedirs(options.keep, exist_ok=True)
            folder, Settings.keep = os.path.abspath(options.keep), True
        Settings.folder = folder
        runner = unittest.TextTestRunner(verbosity=2 if options.v else 1, resultclass=Result)
        result = runner.run(suite)
    print("%d runs of %s in %.1f s" % (Settings.runs, Settings.tool, time.monotonic() - begin))
    return 0 if result.wasSuccessful() and result.testsRun else 1


if __name__ == "__main__":
    sys.exit(main())
