# Toolchain: 64-bit Arm from any Debian machine, tests under qemu
# (apt-get install g++-aarch64-linux-gnu qemu-user). Dependencies are headers only: the machine's own do.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
# Debian keeps xsimd's configuration in the folder of one architecture.
file(GLOB xsimd_DIR /usr/lib/*/cmake/xsimd)
