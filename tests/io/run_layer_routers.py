"""run_layer on routers whose probabilities underflow: choices and weights stay those of the formula."""

import math

import numpy as np

from run_layer_cases import NEAR, TreeCase, first_column
from run_layer_composite import glu, mlp, moe, mort, parallel, retoken
from run_layer_harness import RunLayerTest, composite
from run_layer_reference import ORDERS

D = 6
FAR = (-200.0, -1e4)  # 2.6: "All logits far below zero must not give 0/0"


def far(spec, by, t=17, near=None, **options):
    """`spec` with every logit of every router, a number of the order 1, moved by `by`."""

    def change(maker):
        for name, a in maker.values.items():
            if name.endswith("router.weight"):
                a[:, 0] = by

    # the logits are rounded to their own size
    near = max(NEAR, 4e-6 * abs(by)) if near is None else near
    return TreeCase(spec, (D, 9, t), change=change, x=first_column(1.0), near=near, **options)


def fixed(spec, logits, times, bias=None, dtype="F32"):
    """`spec` with the logits `logits` times one of `times` in turn, exact on every backend, and with `bias`."""

    def change(maker):
        a = maker.values["router.weight"]
        a[:] = 0
        a[:, 0] = logits
        if bias is not None:
            maker.values["router.selection_bias"] = np.array(bias, float)

    return TreeCase(spec, (4, 5, 2 * len(times)), dtype, change=change, x=first_column(*times), near=0)


def quotients(logarithms):
    """p_i / sum p of the chosen, by rows, from the logarithms of p, in double."""
    return np.array([[1 / math.fsum(math.exp(b - a) for b in row) for a in row] for row in logarithms])


def log_sigmoid(z):
    return -math.log1p(math.exp(-z)) if z >= 0 else z - math.log1p(math.exp(z))


class Far(RunLayerTest):
    def weigh(self, case, logarithm=log_sigmoid, prefix=""):
        """The expected weights written again, by token, beside those of the reference; then every backend."""
        router = case.tensors[prefix + "router.weight"][0].astype(float)
        logits = case.inputs["x"][0].astype(float) @ router.T
        chosen = np.take_along_axis(logits, case.route[0], -1)
        weights = quotients([[logarithm(z) for z in row] for row in chosen])
        np.testing.assert_allclose(case.outputs["route_weight"].v, weights, rtol=1e-9, atol=1e-300, err_msg=str(case))
        self.assertTrue(np.isfinite(case.outputs["y"].v).all(), str(case))
        self.each([case])

    def test_mort(self):
        self.needs("mort")
        for by in FAR + (200.0,):
            for n, k in ((4, 2), (5, 3), (3, 1), (3, 3)):
                self.weigh(far(mort(glu(9), n, k), by))
        self.weigh(far(mort(mlp(9), 4, 2, norm="rms"), FAR[0]))

    def test_moe(self):
        self.needs("moe")
        for by in FAR:
            for n, k in ((4, 2), (5, 3), (3, 1), (3, 3)):
                self.weigh(far(moe(n, k, mlp(9), router_order="sigmoid_topk_renorm"), by))
            # sigmoids of 0: the bias chooses
            self.weigh(far(moe(5, 2, mlp(9), router_order="sigmoid_topk_renorm", bias=True), by, near=1e-9))

    def test_the_other_orders_do_not_see_a_common_shift(self):
        self.needs("moe")
        for by in FAR:
            for order in ORDERS[:3]:
                for bias in (False, True):
                    near = None if order == "topk_softmax" or not bias else 4e-3
                    self.each([far(moe(5, 2, mlp(9), router_order=order, bias=bias), by, near=near)])

    def test_nested(self):
        if {"mort", "retoken", "parallel", "moe"} <= set(composite()):
            base = moe(4, 2, mlp(5), router_order="sigmoid_topk_renorm")
            for by in FAR:
                self.each([far(s, by) for s in (retoken(base), parallel(mlp(3), base), mort(retoken(mlp(5)), 4))])

    def test_batches_and_threads(self):
        for by in FAR:
            if "mort" in composite():
                self.sweep(far(mort(mlp(9), 5, 3), by, 33))
            if "moe" in composite():
                self.sweep(far(moe(5, 3, mlp(9), router_order="sigmoid_topk_renorm"), by, 33))


class Choices(RunLayerTest):
    """What a bias is added to is a double: sigmoids and softmax that float32 cannot tell apart are told apart."""

    def choose(self, spec, logits, bias, expected, logarithm):
        """expected: factor of the logits -> the experts."""
        case = fixed(spec, logits, tuple(expected), bias)
        self.assertEqual(case.route[0].tolist(), 2 * [list(e) for e in expected.values()])
        chosen = np.take_along_axis(np.outer(np.resize(list(expected), len(case.route[0])), logits), case.route[0], -1)
        weights = quotients([[logarithm(z) for z in row] for row in chosen])
        np.testing.assert_allclose(case.outputs["route_weight"].v, weights, rtol=1e-12, atol=1e-300)
        self.each([case])

    def setUp(self):
        self.needs("moe")

    def test_sigmoids_near_one(self):
        # sigmoid(30) is below 1 in double and 1 in float32; sigmoid(40) and sigmoid(50) are 1 in both: a tie
        spec = moe(3, 2, mlp(5), router_order="sigmoid_topk_renorm", bias=True)
        factors = {1.0: (1, 2), 0.5: (2, 1), 2.0: (0, 1), -1.0: (0, 1), 0.25: (2, 1), -4.0: (0, 1)}
        self.choose(spec, (30.0, 40.0, 50.0), (0, 0, 0), factors, log_sigmoid)
        # -5 in the third is more than a sigmoid can make good for
        self.choose(spec, (30.0, 40.0, 50.0), (0, 0, -5), {1.0: (1, 0), 0.5: (1, 0), 2.0: (0, 1)}, log_sigmoid)

    def test_a_bias_picks_what_underflows(self):
        # the probabilities of the chosen are 7e-66 and 3e-70, of 4 and 8 times the logits 0 in double, too
        spec = moe(3, 2, mlp(5), router_order="softmax_topk_renorm", bias=True)
        factors = {f: (1, 2) for f in (1.0, 0.5, 2.0, 4.0, 8.0)}
        self.choose(spec, (0.0, -150.0, -160.0), (0, 9, 9), factors, lambda z: z)
        self.choose(spec, (0.0, -150.0, -160.0), (0, 9, 9.5), {f: (2, 1) for f in factors}, lambda z: z)
        # the same experts by sigmoids
        spec = moe(3, 2, mlp(5), router_order="sigmoid_topk_renorm", bias=True)
        self.choose(spec, (0.0, -150.0, -160.0), (0, 9, 9), factors, log_sigmoid)
        self.choose(spec, (0.0, -750.0, -800.0), (0, 9, 9), factors, log_sigmoid)

    def test_one_expert_that_underflows(self):
        for order in ORDERS[1:]:
            with self.subTest(order=order):
                case = fixed(moe(3, 1, mlp(5), router_order=order, bias=True), (0.0, -150.0, -999.0), (1.0, 0.5, 4.0), (0, 0, 5000))
                self.assertEqual(case.route[0].tolist(), [[2]] * 6)
                self.assertEqual(case.outputs["route_weight"].v.tolist(), [[1.0]] * 6)
                self.each([case])
