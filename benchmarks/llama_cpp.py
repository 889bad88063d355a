#!/usr/bin/env python3
"""Stock llama.cpp, the same with its feed-forward blocks by tiffin, and further programs, in turns.

    benchmarks/llama_cpp.py --bin path/to/llama.cpp/build/bin --library libggml-tiffin.so [--beside NAME=BIN[,ARGUMENT...]] MODEL.gguf...

Runs llama-bench (prompt and generation) once without the library and once with it, as many rounds as asked, and prints for
each model the median of the ratios of tokens per second with their quartiles. --beside adds the llama-bench of another folder
to each round, under a name of yours, with arguments of its own: --beside 'repacked=ik_llama.cpp/build/bin,-rtr,1'. --pairs takes
the models two by two, a narrow and a wide one that differ in the width of their feed-forward blocks alone, and compares the times
that the wide one takes more: those of the blocks, without the attention that each program computes in its own way. --text adds
the perplexity of a text by llama-perplexity, --memory the peak of resident memory and the time of a first token by llama-bench.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from disturbance import Disturbance


def environment(library, preload=False, side_file=None):
    """What makes a program load the library: by itself, or where it does not, by the linker."""
    made = {k: v for k, v in os.environ.items() if k not in ("GGML_BACKEND_PATH", "LD_PRELOAD", "TIFFIN_SIDE_FILE")}
    if side_file:
        made["TIFFIN_SIDE_FILE"] = str(side_file)
    if library:
        made["LD_PRELOAD" if preload else "GGML_BACKEND_PATH"] = str(library)
    return made


def run(command, env):
    done = subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]}: status {done.returncode}\n{done.stderr[-2000:]}")
    return done


def program(text):
    """NAME=BIN[,ARGUMENT...] as its parts."""
    name, _, rest = text.partition("=")
    folder, *arguments = rest.split(",")
    if not name or not folder:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=BIN[,ARGUMENT...]")
    return name, Path(folder).resolve(), arguments


def bench(args, model, library=None, folder=None, arguments=(), side_file=None):
    done = run([(folder or args.bin) / "llama-bench", "-m", model, "-p", args.prompt, "-n", args.generate, "-t", args.threads, "-r", 1,
                "-o", "json", *arguments], environment(library, side_file=side_file))
    if library and "feed-forward blocks of ggml" not in done.stderr:
        sys.exit(f"llama-bench has not loaded {library}:\n{done.stderr[-2000:]}")
    told = json.loads(done.stdout[done.stdout.index("["):])  # some print lines of their own before it
    return {("prompt" if t["n_prompt"] else "generation"): t["avg_ts"] for t in told}


def more(results):
    """Tokens per second of one model, or of what the second of a pair takes more time for."""
    if len(results) == 1:
        return results[0]
    narrow, wide = results
    times = {test: 1 / wide[test] - 1 / narrow[test] for test in wide}
    return {test: 1 / max(time, 1e-9) for test, time in times.items()}


def perplexity(args, model, library):
    done = run([args.bin / "llama-perplexity", "-m", model, "-f", args.text, "-c", 512, "--chunks", args.chunks, "-t", args.threads],
               environment(library, preload=True))
    return float(re.search(r"PPL = ([0-9.]+)", done.stdout + done.stderr).group(1))


def first_token(args, model, library):
    """Seconds from the start of the program to its end after one token, and the peak of resident memory in MiB."""
    begin = time.monotonic()
    child = subprocess.Popen([str(args.bin / "llama-bench"), "-m", str(model), "-p", "0", "-n", "1", "-t", str(args.threads),
                              "-r", "1", "--no-warmup"], env=environment(library), stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"llama-bench: status {status}")
    return time.monotonic() - begin, used.ru_maxrss / 1024


def quartiles(values):
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parse.add_argument("--bin", required=True, type=Path, help="folder with llama-bench and llama-perplexity")
    parse.add_argument("--library", required=True, type=Path, help="libggml-tiffin.so")
    parse.add_argument("--beside", action="append", type=program, default=[], metavar="NAME=BIN[,ARGUMENT...]",
                       help="llama-bench of another folder, in the same turns; may be given again")
    parse.add_argument("--side-file", action="append", type=Path, default=[], metavar="FILE",
                       help="tiffin with this side file, in the same turns (docs/models.md#side-files); may be given again")
    parse.add_argument("--pairs", action="store_true", help="models are NARROW WIDE NARROW WIDE ...: compare what the wide ones take more")
    parse.add_argument("--rounds", type=int, default=7)
    parse.add_argument("--prompt", type=int, default=512, help="tokens")
    parse.add_argument("--generate", type=int, default=32, help="tokens")
    parse.add_argument("--threads", type=int, default=os.cpu_count())
    parse.add_argument("--text", type=Path, help="compare the perplexity of this text")
    parse.add_argument("--chunks", type=int, default=32, help="of 512 tokens, of the text")
    parse.add_argument("--memory", action="store_true", help="compare peak memory and the time to a first token")
    args = parse.parse_args()
    if args.pairs and len(args.models) % 2:
        parse.error(f"--pairs: {len(args.models)} models are not pairs")
    library = args.library.resolve()
    args.bin = args.bin.resolve()  # without a folder in its name a program is looked for in PATH
    for path in [library, args.bin / "llama-bench", *([args.bin / "llama-perplexity", args.text] if args.text else []),
                 *(folder / "llama-bench" for _, folder, _ in args.beside), *args.side_file, *args.models]:
        if not path.exists():
            sys.exit(f"{path}: is not there")

    ways = {"stock": {}, **{name: {"folder": folder, "arguments": arguments} for name, folder, arguments in args.beside},
            **{path.name: {"library": library, "side_file": path.resolve()} for path in args.side_file}}
    others = list(ways)
    unit = "tokens/s of what the wide one has more" if args.pairs else "tokens/s"
    print(f"| model | test | tiffin, {unit} |" + "".join(f" {name} | tiffin over it | quartiles |" for name in others))
    print("|---" * (3 + 3 * len(others)) + "|", flush=True)
    others_had = Disturbance()
    step = 2 if args.pairs else 1
    for at in range(0, len(args.models), step):
        model = args.models[at + step - 1]
        rounds = []  # of each: the results of ours, then of the others
        for i in range(args.rounds):
            if sys.stderr.isatty():
                print(f"\r{model.name}: round {i + 1} of {args.rounds}", end="", file=sys.stderr)
            rounds.append([more([bench(args, one, **how) for one in args.models[at:at + step]])
                           for how in ({"library": library}, *ways.values())])
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
        for test in rounds[0][0]:
            cells = [f"{statistics.median(r[0][test] for r in rounds):.1f}"]
            for i in range(1, 1 + len(others)):
                low, middle, high = quartiles([r[0][test] / r[i][test] for r in rounds])
                cells += [f"{statistics.median(r[i][test] for r in rounds):.1f}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]
            print(f"| {model.name} | {test} | " + " | ".join(cells) + " |", flush=True)
    if args.text:
        print("\n| model | perplexity, stock | tiffin | relative difference |\n|---|---|---|---|", flush=True)
        for model in args.models:
            a, b = perplexity(args, model, None), perplexity(args, model, library)
            print(f"| {model.name} | {a:.4f} | {b:.4f} | {b / a - 1:+.1e} |", flush=True)
    if args.memory:
        print("\n| model | first token, stock, s | tiffin, s | peak memory, stock, MiB | tiffin, MiB |\n|---|---|---|---|---|", flush=True)
        for model in args.models:
            first_token(args, model, None)  # the file is in the cache of the system from now on
            pairs = [(first_token(args, model, None), first_token(args, model, library)) for _ in range(args.rounds)]
            median = lambda which, what: statistics.median(p[which][what] for p in pairs)
            print(f"| {model.name} | {median(0, 0):.2f} | {median(1, 0):.2f} | {median(0, 1):.0f} | {median(1, 1):.0f} |", flush=True)
    print("\n" + others_had.told())


if __name__ == "__main__":
    main()
