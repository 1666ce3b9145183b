// Profiling fields of GPUs before Hopper, by DCGM's nv-hostengine: what `dcgmi dmon` prints of them. Pure.
//
// A row is the entity, then one column per field, in the order in which they were asked for; "N/A" is no
// value. Headers and messages are among the rows.
// Source: dcgmi dmon's output in NVIDIA/DCGM issues #151 and #244, and DCGM's own dmon: columns are padded,
// ratios have three decimals, and a header is repeated.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "inventory/snapshot.h"
#include "metrics/fields.h"

namespace gpulet::metrics {

// Those of `wanted` that only nv-hostengine has before Hopper, in the order of their ids: DCGM_FI_PROF_*.
std::vector<Field> host_engine_fields(const std::set<Field>& wanted);

// The value of dmon's --field-id: "57,1001,1004". The first column is the PCI bus id, as the ids of entities
// are DCGM's own.
std::string dmon_field_ids(const std::vector<Field>& fields);

struct DmonRow {
  inventory::PciAddress pci;
  Values values;
};
// nullopt: no row of a GPU, or not with all columns. Values that are no number, or below zero, are left out.
std::optional<DmonRow> parse_dmon_row(std::string_view line, const std::vector<Field>& fields);

// Whether the line belongs to a header or is empty.
bool is_dmon_header(std::string_view line);

}  // namespace gpulet::metrics
