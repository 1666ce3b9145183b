// The texts by which dcgm-exporter's releases name XIDs, in the label err_msg: alerts and dashboards match
// them. Current meanings are in the catalogue (health/xid/xid_catalogue.h).
#pragma once

#include <cstdint>
#include <string_view>

namespace gpulet::metrics {

// "No Error" for 0; "Unknown Error" for a code that dcgm-exporter does not know. Source: dcgm-exporter
// 4.8.2, label err_msg of DCGM_FI_DEV_XID_ERRORS.
std::string_view dcgm_xid_message(std::uint64_t code);

}  // namespace gpulet::metrics
