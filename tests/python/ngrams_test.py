#!/usr/bin/env python3
"""tiffin.NgramAddresses against the formulas of docs/tables.md in whole numbers of Python, for interleaved sequences.

    ngrams_test.py [LIBRARY]
"""
import threading

from checks import done, expect, np, refused, tiffin

rng = np.random.default_rng(11)


def window(past, end, order, end_counts):
    """ids[k]: the id k tokens before the last of `past`; None where it is missing."""
    found, cut = [past[-1]], False
    for k in range(1, order):
        id = past[-1 - k] if k < len(past) and not cut else None
        if end is not None and id == end:
            cut = True
            id = id if end_counts else None
        found.append(id)
    return found


def engram(ids, multipliers, primes, compressed=None, pad=0, offsets=None, unsigned_remainder=False, oldest_first=False, **_):
    counted = [pad if id is None else id if compressed is None else int(compressed[id]) for id in ids]
    if oldest_first:
        counted = counted[::-1]
    rows, mix = [], 0
    for k, (c, m) in enumerate(zip(counted, multipliers)):
        mix ^= c * m % 2 ** 64
        for prime in primes[k - 1] if k else ():
            rest = (mix if unsigned_remainder or mix < 2 ** 63 else mix - 2 ** 64) % prime
            rows.append(rest + (offsets[len(rows)] if offsets else 0))
    return rows


def longcat(ids, vocab, ratio, longest, per_length):
    rows = []
    for i in range((longest - 1) * per_length):
        m, n = ratio * vocab + 2 * i + 1, 2 + i // per_length
        rows.append(sum((id or 0) * (pow(vocab, k, m) if k else 1) for k, id in enumerate(ids[:n])) % m)
    return rows


big = [2 ** 40 + 15, 2 ** 41 + 27, 2 ** 39 + 7]
primes = [[10007, 10009], [10037], [10039, 10061, 10067]]
kinds = [
    ("engram", dict(multipliers=big[:2] + [3, 77], primes=primes, vocab=997), engram, True),
    ("engram", dict(multipliers=[5, 7], primes=[[101, 103]], compressed=rng.integers(0, 50, 400), pad=3), engram, True),
    ("engram", dict(multipliers=[2 ** 62 + 1, 2 ** 61 + 3, 9], primes=[[101], [103]], vocab=500, may_wrap=True), engram, True),
    ("engram", dict(multipliers=[2 ** 62 + 1, 2 ** 61 + 3, 9], primes=[[101], [103]], vocab=500, may_wrap=True, unsigned_remainder=True), engram, True),
    ("engram", dict(multipliers=[3, 5, 9], primes=[[101], [103, 107]], vocab=500, oldest_first=True, offsets=[0, 101, 204]), engram, True),
    ("longcat", dict(vocab=311, ratio=9, longest=4, per_length=2), longcat, False)]
for kind, options, formula, end_counts in kinds:
    for end in (None, 7):
        address = getattr(tiffin.NgramAddresses, kind)(**options, end=end)
        ids, of = rng.integers(0, address.vocab, 400), rng.integers(0, 3, 400)
        ids[rng.random(400) < 0.15] = 7
        past, whole = address.histories(3), [[], [], []]
        calls = np.split(np.arange(400), [1, 1, 57, 200])
        rows = np.concatenate([address(ids[part], past, of[part]) for part in calls], 1)
        wanted = np.empty_like(rows)
        for t, (id, s) in enumerate(zip(ids.tolist(), of.tolist())):
            whole[s].append(id)
            wanted[:, t] = formula(window(whole[s], end, address.order, end_counts), **options)
        expect(f"{kind}, {options}, end {end}", rows.shape == (address.tables, 400) and (rows == wanted).all())
        expect(f"{kind}: rows below the tables'", all((r < most).all() for r, most in zip(rows, address.rows_of)))

address = tiffin.NgramAddresses.engram(multipliers=[3, 5, 7], primes=[[101], [103]], vocab=50)
expect(f"{address!r}", (address.order, address.tables, address.vocab, address.rows_of) == (3, 2, 50, (101, 103)))
past = address.histories(2, undoable=4)
address([1, 2, 3, 4], past)
ahead = address([5, 6, 8], past)
past.undo(0, 3)
expect("undone", (address([5, 6, 8], past) == ahead).all())
past.copy(0, 1)
expect("a beam that splits", (address([9], past, [1]) == address([9], past)).all())
past.reset(1)
expect("begun anew", (address([9], past, [1]) == address([9], address.histories())).all())
refused("undone too far", "size", "tokens", lambda: past.undo(0, 9))
refused("no such sequence", "size", "sequence", lambda: past.undo(2, 1))
refused("no such sequence", "size", "to", lambda: past.copy(0, 5))
before = address([11], address.histories())
for what, code, says, ids, of in (("an id beyond", "token_id", "ids", [1, 50], None), ("a negative id", "token_id", "ids", [-1], None),
                                  ("a sequence beyond", "size", "sequence_of", [1], [2]), ("a negative one", "size", "sequences", [1], [-1]),
                                  ("floats", "dtype", "ids", [0.5], None), ("as many", "size", "sequences", [1, 2], [0])):
    fresh = address.histories(2)
    refused(what, code, says, lambda: address(ids, fresh, of))
    expect(f"{what}: the history is as it was", (address([11], fresh) == before).all())
refused("no histories", "option", "histories", lambda: address([1], None))
short = tiffin.NgramAddresses.engram(multipliers=[3, 5], primes=[[101]], vocab=50)
refused("histories of a shorter hash", "size", "histories", lambda: address([1], short.histories()))
for what, code, options in (("one multiplier", "size", dict(multipliers=[3], primes=[], vocab=5)),
                            ("as many lists", "size", dict(multipliers=[3, 5], primes=[[7], [9]], vocab=5)),
                            ("a prime of 0", "option", dict(multipliers=[3, 5], primes=[[0]], vocab=5)),
                            ("an overflow", "option", dict(multipliers=[2 ** 62, 5], primes=[[7]], vocab=50)),
                            ("a negative count", "option", dict(multipliers=[3, 5], primes=[[7]], compressed=[-1])),
                            ("as many offsets", "size", dict(multipliers=[3, 5], primes=[[7]], vocab=5, offsets=[1, 2])),
                            ("floats", "option", dict(multipliers=[3.5, 5], primes=[[7]], vocab=5))):
    try:
        tiffin.NgramAddresses.engram(**options)
        expect(f"{what}: not refused", False)
    except tiffin.Error as error:
        expect(f"{what}: {error.code}, {error}", error.code == code)
refused("no ids", "size", "tables", lambda: tiffin.NgramAddresses.longcat(vocab=0, ratio=1, longest=2, per_length=1))
refused("no such file", "file", "nowhere", lambda: tiffin.NgramAddresses.open("nowhere.gguf"))

results = [None] * 4
def often(i):
    own = address.histories()
    results[i] = np.concatenate([address([t % 50], own) for t in range(300)], 1)
threads = [threading.Thread(target=often, args=(i,)) for i in range(4)]
[t.start() for t in threads], [t.join() for t in threads]
expect("four threads", all((r == results[0]).all() for r in results))
done()
