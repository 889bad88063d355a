// doctest with assertions that compile sooner. An exception that escapes from the expression of an
// assertion fails the test case as a whole then, not the assertion.
#pragma once

#define DOCTEST_CONFIG_SUPER_FAST_ASSERTS
#include <doctest/doctest.h>
