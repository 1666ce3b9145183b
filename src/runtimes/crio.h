// CRI-O's settings: /etc/crio/crio.conf, then every file of /etc/crio/crio.conf.d by name (crio.conf.d(5)).
#pragma once

#include "runtimes/layered.h"

namespace gpulet::runtimes::crio {

LayeredSetting setting(const Target& target);

}  // namespace gpulet::runtimes::crio
