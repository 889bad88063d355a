"""Numbers that carry a bound of their rounding error, for run_layer_reference.py.

Derivation of the bounds.  Notation: u unit roundoff, v~ the computed value of v, E(v) >= |v~ - v|.  A `Num`
carries v and E(v) for u = 2^-24 and u = 2^-53, the latter also bounding the errors of this file.

1. Dot product.  s = sum_k a_k b_k (+ further terms c) in any order of summation, fused or not: each of the
   K products and the c terms passes through at most n = K + (number of further terms) roundings, so
       |s~ - s| <= gamma_n (sum|a_k||b_k| + |c|),   gamma_n = n u / (1 - n u).
   A first projection has K = d, exact inputs (x and the weights are stored values that float32
   holds exactly), and as further terms its bias and, in stem_hybrid, U[t].
   Underflow of single terms adds at most n * 2^-126 (flushed to zero), and nothing to a sum of zeros.
   E(a) of inexact inputs is carried over: + sum E(a_k) |b_k| (1 + gamma_n).
   In a nested block n grows by 2 (`slack`): a routing weight or modulator may go into the terms.
2. Activation.  phi~(z~) differs from phi(z) by at most
       E(phi) = L E(z) + c u A,   L the Lipschitz constant,
   where A bounds the size of the intermediate values: silu, gelu and gelu_tanh are z s with s in [0, 1], s
   being computed as (1 + erf)/2, (1 + tanh)/2 or 1/(1 + exp(-z)) to an *absolute* error of a few u
   (erf, tanh: 2 ulp -> 2u; the sum: 2u; halved; the rounded argument a: a erf'(a) u < u/2; the
   product with z: u; together below 4u), hence A = |z~| and c = 4, for sigmoid A = 1.  relu and
   identity round nothing: c = 0.  c is doubled to 8.  relu_squared is relu multiplied by itself, see 3.
3. Product.  h = p m:  E(h) = (|p| + E(p)) E(m) + E(p) |m| + u (|p| + E(p)) (|m| + E(m)).  A table's
   row is exact: E = 0.  Sum: E(p + m) = E(p) + E(m) + u (|p + m| + E(p) + E(m)).
4. Norms.  rms: R = mean(x^2) + eps has E(R) = mean(2|x|E(x) + E(x)^2) + gamma_(n+3) (...) + 2^-24 eps (eps may be
   held as a float); q = R^-1/2 is off by q ((1 - E(R)/R)^-1/2 - 1) and 8u q for root and division (two
   correctly rounded ones take 2u); then two products.  l2: the Euclidean norm N has Lipschitz constant 1,
   so E(N) = |E(x)|_2 + gamma_(n+2) (...); with D = N + eps, E(x / D) = (E(x) + |x/D| E(D)) / (D - E(D)) + u (...).
5. Softmax.  Logits off by at most E(g_e) change p_e by a factor within exp(+-(E(g_e) + max E(g))); g_e - max is
   rounded (u |g_e - max| more in the exponent, for numerator and sum), and exp, sum and division round: together
   gamma_(n+16).  Quotients p / sum p of the chosen are the softmax of log p, so the same bound holds.  log sigma has
   Lipschitz constant 1; computed as it is, it rounds by u (1 + |log sigma|) a few times, and a quotient of
   sigmoids is off by as many u relatively, hence gamma_12 (1 + |log sigma|).
6. r(g) = sign(g) sqrt(max(|g|, 1e-6)) jumps at 0 and does not descend, so that r(g~) lies between r(g - E(g)) and
   r(g + E(g)); the root and the rounded 1e-6 take less than 8u |r|.  Where E(g) = 0, r(0) = 0.
7. Which experts are selected is compared exactly; the cases keep away from near ties.
"""

import math

import numpy as np

U32, U64 = 2.0**-24, 2.0**-53

# Upper bounds of |phi'|.
LIPSCHITZ = {"silu": 1.1, "gelu": 1.13, "gelu_tanh": 1.13, "relu": 1.0, "sigmoid": 0.25, "identity": 1.0}


class Uncertain(Exception):
    """A norm of nothing but rounding errors, in the rows that `rows` flags."""

    def __init__(self, rows):
        super().__init__("a norm of rounding errors in the rows %s" % np.flatnonzero(rows))
        self.rows = rows


class Num:
    def __init__(self, v, e=None):
        self.v = np.atleast_2d(np.asarray(v, np.float64))  # a vector is one row, for all tokens
        self.e = np.zeros((2,) + self.v.shape) if e is None else e

    def rows(self, index):
        return Num(self.v[index], self.e[:, index])

    def pick(self, index):
        """Of each row the columns in `index` (T, k)."""
        both = np.broadcast_to(index, (2,) + index.shape)
        return Num(np.take_along_axis(self.v, index, -1), np.take_along_axis(self.e, both, -1))

    def columns(self, begin, end):
        return Num(self.v[:, begin:end], self.e[:, :, begin:end])

    def column(self, j):
        return Num(self.v[:, j : j + 1], self.e[:, :, j : j + 1])


def units(a):
    return np.array([U32, U64]).reshape((2,) + (1,) * a.ndim)


def gamma(n, a):
    u = units(a)
    return n * u / (1 - n * u)


def sigmoid(z):
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


def phi(name, z):
    if name == "silu":
        return z * sigmoid(z)
    if name == "gelu":
        return z / 2 * (1 + np.vectorize(math.erf, otypes=[np.float64])(z / math.sqrt(2)))
    if name == "gelu_tanh":
        return z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    if name == "relu":
        return np.maximum(z, 0.0)
    if name == "sigmoid":
        return sigmoid(z)
    if name == "identity":
        return z
    if name == "relu_squared":
        return np.maximum(z, 0.0) ** 2
    raise ValueError(name)


def project(a, weight, bias=None, extra=(), slack=0):
    """a W^T + bias + extra; extra: (value, carried error, size, roundings) of further terms."""
    z, size, n = a.v @ weight.T, np.abs(a.v) @ np.abs(weight).T, weight.shape[1] + slack
    carried = a.e @ np.abs(weight).T
    terms = ([(bias, 0.0, np.abs(bias), 1)] if bias is not None else []) + list(extra)
    for value, error, magnitude, roundings in terms:
        z, size, carried, n = z + value, size + magnitude, carried + error, n + roundings
    return Num(z, carried + gamma(n, z) * (size + carried) + n * 2.0**-126 * (size + carried > 0))


def dots(a, rows, slack=0):
    """a . each of the row's own vectors, rows (T, k, d)."""
    z, n = np.einsum("td,tkd->tk", a.v, rows), rows.shape[2] + slack
    size = np.einsum("td,tkd->tk", np.abs(a.v), np.abs(rows))
    carried = np.einsum("utd,tkd->utk", a.e, np.abs(rows))
    return Num(z, carried + gamma(n, z) * (size + carried) + n * 2.0**-126)


def inner(p, m):
    """p . m by row, (T, 1), in any order of the factors and of the sum."""
    terms = multiply(p, m)
    size, carried = (np.sum(a, -1, keepdims=True) for a in (np.abs(terms.v), terms.e))
    n = terms.v.shape[-1] + 2
    e = carried + gamma(n, size) * (size + carried) + n * 2.0**-126 * (size + carried > 0)
    return Num(np.sum(terms.v, -1, keepdims=True), e)


def signed_root(g):
    """sign(g) sqrt(max(|g|, 1e-6))"""

    def of(z):
        return np.sign(z) * np.sqrt(np.maximum(np.abs(z), 1e-6))

    v = of(g.v)
    return Num(v, np.maximum(of(g.v + g.e) - v, v - of(g.v - g.e)) + 8 * units(v) * np.abs(v))


def activate(act, z):
    if act == "relu_squared":
        return multiply(activate("relu", z), activate("relu", z))
    scale = {"relu": 0.0, "identity": 0.0, "sigmoid": 1.0}.get(act, np.abs(z.v) + z.e)
    return Num(phi(act, z.v), LIPSCHITZ[act] * z.e + 8 * units(z.v) * scale)


def multiply(p, m):
    v, big = p.v * m.v, np.abs(p.v) + p.e
    return Num(v, big * m.e + p.e * np.abs(m.v) + units(v) * big * (np.abs(m.v) + m.e))


def add(p, m):
    v, e = p.v + m.v, p.e + m.e
    return Num(v, e + units(v) * (np.abs(v) + e))


def joined(parts):
    """The numbers of each row side by side."""
    return Num(np.concatenate([p.v for p in parts], -1), np.concatenate([p.e for p in parts], -1))


def divide(p, by):
    v = p.v / by.v
    assert not ((by.e >= 0.5 * by.v) & np.isfinite(by.e)).any(), "a divisor that may be zero"
    e = (p.e + np.abs(v) * by.e) / (by.v - by.e)
    return Num(v, e + units(v) * (np.abs(v) + e))


def total(terms, slack=2):
    """The sum of a list of Num, in any order."""
    v, carried = sum(t.v for t in terms), sum(t.e for t in terms)
    return Num(v, carried + gamma(len(terms) + slack, v) * (sum(np.abs(t.v) for t in terms) + carried))


def rms(x, eps, weight=None):
    n, absolute = x.v.shape[-1], np.abs(x.v)
    m = np.mean(x.v**2, -1, keepdims=True)
    em = np.mean(2 * absolute * x.e + x.e**2, -1, keepdims=True)
    r = m + eps
    er = em + gamma(n + 3, m) * (m + em) + U32 * eps + units(m) * eps + n * 2.0**-126
    wrong = (er >= 0.5 * r) & np.isfinite(er)  # what is not finite says enough
    if wrong.any():
        raise Uncertain(wrong.any(axis=(0, 2)))
    q = 1 / np.sqrt(r)
    eq = q * ((1 - er / r) ** -0.5 - 1)
    y = multiply(x, Num(q, eq + 8 * units(q) * (q + eq)))
    return y if weight is None else multiply(y, Num(weight))


def l2(x, eps):
    n = x.v.shape[-1]
    norm = np.sqrt(np.sum(x.v**2, -1, keepdims=True))
    e = np.sqrt(np.sum(x.e**2, -1, keepdims=True))
    e = e + gamma(n + 2, norm) * (norm + e) + U32 * eps
    by = norm + eps
    return divide(x, Num(by, e + units(by) * (by + e)))


def exact_exp(z):
    """One value for one argument wherever it stands; np.exp may differ between its vector body and tail."""
    return np.vectorize(math.exp, otypes=[np.float64])(z)


def softmax(g):
    shifted = g.v - np.max(g.v, -1, keepdims=True)
    p = exact_exp(shifted)
    p = p / np.sum(p, -1, keepdims=True)
    worst = np.max(g.e, -1, keepdims=True) + units(p) * np.max(np.abs(shifted), -1, keepdims=True)
    factor = np.exp(g.e + units(p) * np.abs(shifted) + worst) * (1 + gamma(p.shape[-1] + 16, p))
    return Num(p, p * (factor - 1))


def routing_sigmoid(z):
    """What a choice sees, of weights see log_sigmoid; equal logits give equal values."""
    e = exact_exp(-np.abs(z))
    return np.where(z >= 0, 1 / (1 + e), e / (1 + e))


def log_sigmoid(g):
    """log sigma(g), which softmax turns into sigma(g_i) / sum_j sigma(g_j)."""
    v = np.vectorize(lambda z: min(z, 0.0) - math.log1p(math.exp(-abs(z))), otypes=[np.float64])(g.v)
    return Num(v, g.e + gamma(12, v) * (1 + np.abs(v)))


def router_logits(x, weight):
    """x W^T, equal rows of W giving exactly equal logits (a matrix product does not promise that)."""
    g = project(x, weight)
    return Num(np.sum(x.v[:, None, :] * weight[None], -1), g.e)


def tolerance(backend, value):
    size = np.abs(value.v)
    if backend == "reference":  # the tool's error, this file's error, and one rounding to float32
        return 2 * value.e[1] + U32 * size + 1e-12 * size + 2.0**-149
    # Whatever is stored as float32 is rounded, or flushed, to it: what lies below its normal numbers is lost.
    return value.e[0] + 2 * value.e[1] + 2.0**-126
