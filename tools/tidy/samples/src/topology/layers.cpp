#include "base/good.h"
#include "config/config.h"
#include "nvml/library.h"  // expect: layer
#include "topology/layers.h"
