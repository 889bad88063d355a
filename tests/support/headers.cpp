// The headers that CMakeLists.txt precompiles for the tests; nothing of its own.
