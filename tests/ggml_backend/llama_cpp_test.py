#!/usr/bin/env python3
"""benchmarks/llama_cpp.py over programs that only print what llama.cpp's do: folders are found however they are named.

usage: llama_cpp_test.py LLAMA_CPP_SCRIPT
"""
import os
import pathlib
import subprocess
import sys
import tempfile

BENCH = """#!/bin/sh
echo 'tiffin: feed-forward blocks of ggml run here' >&2
echo '[{"n_prompt": 8, "avg_ts": 20.0}, {"n_prompt": 0, "avg_ts": 10.0}]'
"""
# Says more than its results, and is faster at prompts with its own argument alone.
OTHER = """#!/bin/sh
echo 'repacked 7 tensors'
case " $* " in *' -rtr 1 '*) fast=40.0;; *) fast=25.0;; esac
echo '[{"n_prompt": 8, "avg_ts": '$fast'}, {"n_prompt": 0, "avg_ts": 10.0}]'
"""
PERPLEXITY = """#!/bin/sh
echo 'Final estimate: PPL = 7.5000'
"""


def main():
    script = os.path.abspath(sys.argv[1])
    failed = 0

    def check(what, folder, *options, status=0, says=("| m.gguf | prompt | 20.0 |", "| m.gguf | 7.5000 |")):
        nonlocal failed
        done = subprocess.run([sys.executable, script, "--rounds", "1", "--library", "lib.so", "--text", "t", *options, "m.gguf"],
                              cwd=folder, capture_output=True, text=True)
        if done.returncode != status or not all(s in done.stdout + done.stderr for s in says):
            print(f"{what}: status {done.returncode}\n{done.stdout}{done.stderr}")
            failed = 1

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        inner = folder / "bin"
        inner.mkdir()
        for at in folder, inner:
            for program, text in ("llama-bench", BENCH), ("llama-perplexity", PERPLEXITY):
                (at / program).write_text(text)
                (at / program).chmod(0o755)
            for other in "lib.so", "t", "m.gguf":
                (at / other).write_text("")
        check("the folder itself", folder, "--bin", ".", says=["| m.gguf | prompt | 20.0 |", " of the processors' time"])
        check("below it", folder, "--bin", "bin")
        check("above it", inner, "--bin", "..")
        check("in full", folder, "--bin", name)
        beside = folder / "other"
        beside.mkdir()
        (beside / "llama-bench").write_text(OTHER)
        (beside / "llama-bench").chmod(0o755)
        check("others beside it", folder, "--bin", ".", "--beside", "plain=other", "--beside", "repacked=other,-rtr,1",
              says=["| plain | tiffin over it |", "| m.gguf | prompt | 20.0 | 20.0 | 1.00 | 1.00 to 1.00 | 25.0 | 0.80 | 0.80 to 0.80 | 40.0 | 0.50 |",
                    "| m.gguf | generation | 10.0 | 10.0 | 1.00 | 1.00 to 1.00 | 10.0 | 1.00 |"])
        # A wide model at half the speed, and ours at two thirds: it takes 1 / 20 more per token, and ours half of that.
        for at, wide in (folder, 10.0), (beside, 10.0):
            text = BENCH.replace("20.0}", "'$fast'}").replace("echo '[", f"""case "$*" in *wide*) fast={wide};; *) fast=20.0;; esac
[ -n "$GGML_BACKEND_PATH" ] && case "$*" in *wide*) fast=13.3333333;; esac
echo '[""")
            (at / "llama-bench").write_text(text)
        (folder / "wide.gguf").write_text("")
        done = subprocess.run([sys.executable, script, "--rounds", "1", "--library", "lib.so", "--bin", ".", "--pairs", "--beside", "plain=other",
                               "m.gguf", "wide.gguf"], cwd=folder, capture_output=True, text=True)
        if "| wide.gguf | prompt | 40.0 | 20.0 | 2.00 | 2.00 to 2.00 | 20.0 | 2.00 | 2.00 to 2.00 |" not in done.stdout:
            print(f"pairs: {done.stdout}{done.stderr}")
            failed = 1
        check("an odd number in pairs", folder, "--bin", ".", "--pairs", status=2, says=["1 models are not pairs"])
        # With a side file a quarter slower, wherever the library is loaded with it.
        (folder / "llama-bench").write_text(BENCH.replace("20.0}", "'$fast'}").replace(
            "echo '[", "fast=20.0; [ -n \"$TIFFIN_SIDE_FILE\" ] && [ -n \"$GGML_BACKEND_PATH\" ] && fast=16.0\necho '["))
        (folder / "tables").write_text("")
        check("a side file", folder, "--bin", ".", "--side-file", "tables",
              says=["| tables | tiffin over it |", "| m.gguf | prompt | 20.0 | 20.0 | 1.00 | 1.00 to 1.00 | 16.0 | 1.25 | 1.25 to 1.25 |"])
        check("a side file that is not there", folder, "--bin", ".", "--side-file", "no_tables", status=1, says=["no_tables: is not there"])
        check("another that is not there", folder, "--bin", ".", "--beside", "gone=nowhere", status=1,
              says=[f"{folder.resolve() / 'nowhere' / 'llama-bench'}: is not there"])
        check("one without a name", folder, "--bin", ".", "--beside", "other", status=2, says=["'other' is not NAME=BIN[,ARGUMENT...]"])
        (inner / "llama-perplexity").unlink()
        check("without a program that is needed", folder, "--bin", "bin", status=1,
              says=[f"{inner.resolve() / 'llama-perplexity'}: is not there"])
    return failed


if __name__ == "__main__":
    sys.exit(main())
