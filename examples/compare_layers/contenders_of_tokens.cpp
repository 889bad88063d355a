// The dense layers and those that read rows by token ids, compiled by themselves.
#define CONTENDERS_HERE
#include "contender.hpp"

CONTENDERS_OF_TOKENS(MADE_CONTENDER)
