"""report.py over figures that were measured alone and beside others: these are marked, and counted.

    report_test.py REPORT.py
"""
import json
import pathlib
import subprocess
import sys
import tempfile

CONTEXT = {"date": "today", "threads": "2", "peak_gflops_f32": "1", "peak_gflops_bf16_dot": "1", "peak_gflops_int8_dot": "1", "read_gbs": "1"}


def timed(name, others, **more):
    return {"name": name, "run_name": name, "real_time": 2.0, "roofline": 0.5, **({} if others is None else {"others": others}), **more}


def main():
    failed = 0
    ratio, steady = ({"ratio": 0.9, "quarter": 0.9 - by, "three_quarters": 0.9 + by} for by in (0.1, 0.04))
    runs = [timed("layer/swiglu/simd/f32/8x16/tokens:1/real_time", 0.01), timed("layer/swiglu/simd/f32/8x16/tokens:4/real_time", 0.2),
            timed("ratio/layer/swiglu/simd/f32/8x16/over/peer/onednn/f32/8x16/tokens:1/real_time", 0.3, **ratio),
            timed("ratio/layer/swiglu/simd/f32/8x16/over/peer/onednn/f32/8x16/tokens:4/real_time", 0.0, **ratio),
            timed("ratio/layer/swiglu/simd/f32/8x16/over/peer/onednn/f32/8x16/tokens:16/real_time", 0.0, **steady)]
    for what, all_runs, says, says_not in (
            ("beside others", runs, ["| 2 / 0.50 | 2 / 0.50* |", "| 0.90 (0.80 to 1.00)*~ | 0.90 (0.80 to 1.00)~ | 0.90 (0.86 to 0.94) |",
                                     "2 of 3 ratios with a ~ have quartiles more than 10 % of the median apart",
                                     "Others had at most 30 %", "2 figures with a * were measured beside more than 5 %"], []),
            ("alone", runs[:1], ["| 2 / 0.50 |", "Others had at most 1 %"], ["*", "~"]),
            ("not told", [timed("layer/swiglu/simd/f32/8x16/tokens:1/real_time", None)], ["| 2 / 0.50 |"], ["Others", "*"])):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "of.json"
            path.write_text(json.dumps({"context": CONTEXT, "benchmarks": all_runs}))
            done = subprocess.run([sys.executable, sys.argv[1], path, pathlib.Path(folder) / "of"], capture_output=True, text=True)
            text = (pathlib.Path(folder) / "of.md").read_text() if done.returncode == 0 else done.stderr
            if not all(s in text for s in says) or any(s in text for s in says_not):
                print(f"{what}:\n{text}")
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
