// The layers that choose experts or rows, compiled by themselves.
#define CONTENDERS_HERE
#include "contender.hpp"

CONTENDERS_OF_ROUTES(MADE_CONTENDER)
