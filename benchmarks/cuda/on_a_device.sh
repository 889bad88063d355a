#!/usr/bin/env bash
# On a machine with an NVIDIA device: builds the CUDA backend for it, runs the conformance suites there, and times
# the layers. $1: a folder for bench_cuda.{json,txt,md,png} (default: build/device).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-$root/build/device}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root"
CUDACXX=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
export CUDACXX
generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
cmake -S . -B build/device "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DTIFFIN_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native \
    -DTIFFIN_BUILD_EXAMPLES=OFF -DTIFFIN_BUILD_BENCHMARKS=OFF -DTIFFIN_TEST_COMPILING=OFF -DTIFFIN_TEST_LEVELS=OFF \
    -DTIFFIN_TEST_CONSUMERS=OFF \
    -DTIFFIN_TEST_FORM=device
cmake --build build/device -j "$(nproc)"
ctest --test-dir build/device --output-on-failure -R "cuda[.](device|host)|bench_cuda"
build/device/benchmarks/cuda/bench_cuda --benchmark_out="$out/bench_cuda.json" --benchmark_out_format=json \
    --benchmark_min_time=0.2 | tee "$out/bench_cuda.txt"
python3 benchmarks/report.py "$out/bench_cuda.json" "$out/bench_cuda" || echo "no report: it takes python3"
