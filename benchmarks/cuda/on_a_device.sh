#!/usr/bin/env bash
# usage: benchmarks/cuda/on_a_device.sh [--build | --run] [FOLDER]
#
# On a machine with an NVIDIA device: builds the CUDA backend for it, runs the conformance suites there, and times the
# layers. FOLDER gets bench_cuda.{json,txt,md,png} (default: build/device).
#
# Where the compiler and the device are in different machines that share the folder: --build on the one, with the
# device's architecture in CUDAARCHS (CUDAARCHS=90 for an H100), and --run on the other;
# TIFFIN_NATIVE=OFF too where their processors differ.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
steps="build run"
case ${1:-} in
    --build | --run) steps=${1#--} && shift ;;
    -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && [[ $1 == --help ]] && exit 0 || exit 2 ;;
esac
out=${1:-$root/build/device}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root"
case $steps in *build*)
    CUDACXX=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
    export CUDACXX
    generator=()
    command -v ninja >/dev/null && generator=(-G Ninja)
    cmake -S . -B build/device "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DTIFFIN_CUDA=ON \
        -DCMAKE_CUDA_ARCHITECTURES="${CUDAARCHS:-native}" -DTIFFIN_NATIVE="${TIFFIN_NATIVE:-ON}" \
        -DTIFFIN_BUILD_EXAMPLES=OFF -DTIFFIN_BUILD_BENCHMARKS=OFF -DTIFFIN_TEST_COMPILING=OFF -DTIFFIN_TEST_LEVELS=OFF \
        -DTIFFIN_TEST_CONSUMERS=OFF -DTIFFIN_TEST_FORM=device
    cmake --build build/device -j "$(nproc)"
    ;;
esac
case $steps in *run*)
    ctest --test-dir build/device --output-on-failure -R "cuda[.](device|host)|bench_cuda" || failed=yes
    build/device/benchmarks/cuda/bench_cuda --benchmark_out="$out/bench_cuda.json" --benchmark_out_format=json \
        --benchmark_min_time=0.2 | tee "$out/bench_cuda.txt"
    python3 benchmarks/report.py "$out/bench_cuda.json" "$out/bench_cuda" || echo "no report: it takes python3"
    ;;
esac
[ -z "${failed:-}" ]
