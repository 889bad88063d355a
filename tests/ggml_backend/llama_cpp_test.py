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
        check("the folder itself", folder, "--bin", ".")
        check("below it", folder, "--bin", "bin")
        check("above it", inner, "--bin", "..")
        check("in full", folder, "--bin", name)
        beside = folder / "other"
        beside.mkdir()
        (beside / "llama-bench").write_text(OTHER)
        (beside / "llama-bench").chmod(0o755)
        check("others beside it", folder, "--bin", ".", "--beside", "plain=other", "--beside", "repacked=other,-rtr,1",
              says=["| plain, tokens/s | tiffin over it |", "| m.gguf | prompt | 20.0 | 20.0 | 1.00 | 1.00 to 1.00 | 25.0 | 0.80 | 0.80 to 0.80 | 40.0 | 0.50 |",
                    "| m.gguf | generation | 10.0 | 10.0 | 1.00 | 1.00 to 1.00 | 10.0 | 1.00 |"])
        check("another that is not there", folder, "--bin", ".", "--beside", "gone=nowhere", status=1,
              says=[f"{folder.resolve() / 'nowhere' / 'llama-bench'}: is not there"])
        check("one without a name", folder, "--bin", ".", "--beside", "other", status=2, says=["'other' is not NAME=BIN[,ARGUMENT...]"])
        (inner / "llama-perplexity").unlink()
        check("without a program that is needed", folder, "--bin", "bin", status=1,
              says=[f"{inner.resolve() / 'llama-perplexity'}: is not there"])
    return failed


if __name__ == "__main__":
    sys.exit(main())
