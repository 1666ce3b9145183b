#include "runtimes/podman.h"

namespace gpulet::runtimes::podman {

LayeredSetting setting(const Target& target) {
  const Version setting_read{5, 5, 0}, both_by_default{5, 6, 0};
  const bool heeded = !target.version || *target.version >= setting_read;
  const bool one_by_default = heeded && (!target.version || *target.version < both_by_default);
  return {.engine = Engine::kPodman,
          .table = {"engine"},
          .first = {"/usr/share/containers/containers.conf", target.config},
          .pattern = target.drop_in.substr(0, target.drop_in.rfind('/')) + "/*.conf",
          .heeded = heeded,
          .default_dirs = one_by_default ? std::vector<std::string>{"/etc/cdi"} : wanted_spec_dirs()};
}

}  // namespace gpulet::runtimes::podman
