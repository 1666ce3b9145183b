// The real header, with every function that it declares visible outside and none renamed to a newer version:
// this library defines all of them, the old ones too.
#pragma once

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop
