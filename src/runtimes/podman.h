// Podman's settings: /usr/share/containers/containers.conf, /etc/containers/containers.conf, then
// /etc/containers/containers.conf.d/*.conf by name (containers.conf(5)).
//
// Before 5.5 the folders of specs are built in and the setting is not read; 5.5 reads it and looks by default
// into /etc/cdi only, so it misses what is generated (podman #26569); 5.6 looks into both.
#pragma once

#include "runtimes/layered.h"

namespace gpulet::runtimes::podman {

LayeredSetting setting(const Target& target);

}  // namespace gpulet::runtimes::podman
