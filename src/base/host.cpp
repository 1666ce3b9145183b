#include "base/host.h"

#include <limits.h>
#include <unistd.h>

#include <array>

namespace gpulet {

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};  // stays terminated
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : std::string();
}

}  // namespace gpulet
