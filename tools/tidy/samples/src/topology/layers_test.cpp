#include <cstdlib>
#include "nvml/library.h"

void in_a_test() { getenv("HOME"); }
