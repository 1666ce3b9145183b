#include "runtimes/crio.h"

namespace gpulet::runtimes::crio {

LayeredSetting setting(const Target& target) {
  return {.engine = Engine::kCrio,
          .table = {"crio", "runtime"},
          .first = {target.config},
          .pattern = target.drop_in.substr(0, target.drop_in.rfind('/')) + "/*",
          .default_dirs = wanted_spec_dirs()};
}

}  // namespace gpulet::runtimes::crio
