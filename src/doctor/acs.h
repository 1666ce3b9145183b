// PCI Express Access Control Services of a bridge, out of its configuration space. Pure.
// Source: PCI Express Base 4.0, 7.7.8 (ACS Extended Capability): id 0x000D, its control register at 6.
#pragma once

#include <string_view>

namespace gpulet::doctor {

// Whether requests from one device below the bridge to another are sent up to the root complex (P2P Request
// Redirect). False for a space without the capability, or of which the kernel has shown only the beginning.
bool acs_redirects(std::string_view config);

}  // namespace gpulet::doctor
