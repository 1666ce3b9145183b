// A shared object that holds nothing but its name: what stands in a driver root for NVIDIA's libraries, so
// that who looks for libraries, reads SONAMEs, runs ldconfig or dlopen finds what it expects.
#pragma once

#include <string>
#include <string_view>

namespace gpulet::sim {

// The bytes of an ELF file for this machine's architecture, with DT_SONAME `soname` and no symbols.
std::string make_shared_object(std::string_view soname);

}  // namespace gpulet::sim
