// mig-parted's file of named layouts, so that a node's file and its label go on to work:
//
//   version: v1
//   mig-configs:
//     all-balanced:
//       - device-filter: ["0x233010DE", "0x20B210DE:0x147F10DE"]   # or one of them; all GPUs when left out
//         devices: all                                             # or a list of indices
//         mig-enabled: true
//         mig-devices: {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
//
// Source: mig-parted v0.15.0, api/spec/v1/spec.go and pkg/types/{mig_config,device}.go.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "mig/layout.h"
#include "mig/state.h"

namespace gpulet::mig {

// A kind of GPU by its PCI ids, each device << 16 | vendor.
struct DeviceFilter {
  std::uint32_t device = 0;
  std::optional<std::uint32_t> subsystem;
  friend bool operator==(const DeviceFilter&, const DeviceFilter&) = default;
};

struct LayoutEntry {
  std::vector<DeviceFilter> filters;             // any of them; empty: every GPU
  std::optional<std::vector<unsigned>> indices;  // as NVML counts; nullopt: all
  Layout layout;
  std::string place;  // "path:line:column" of the entry; empty of one that is in no file
};

// A layout and who says so.
struct LayoutAt {
  Layout layout;
  std::string place;  // as LayoutEntry::place; empty for one that the hardware offers
  friend bool operator==(const LayoutAt&, const LayoutAt&) = default;
};

struct LayoutFile {
  struct Config {
    std::string name;
    std::vector<LayoutEntry> entries;
  };
  std::string path;
  std::vector<Config> configs;  // as in the file
};

// Errors, kInvalidArgument, about "path:line:column": the field, what was found and what would do.
Result<LayoutFile> parse_layout_file(std::string_view text, const std::string& path);

// The file at `path`. Errors: as parse_layout_file and base/file.h.
Result<LayoutFile> load_layout_file(const std::string& path);

// What the named config wants of the GPU: its last entry that is about it, as mig-parted carries out all in
// turn; nullopt when none is. Errors: kNotFound, no config of that name, with the nearest that are.
Result<std::optional<LayoutAt>> layout_of(const LayoutFile& file, std::string_view config, const State& gpu);

// "no config 'x' in <where>; did you mean 'y'?", or with the names that there are: most alike first, at most
// 8.
Error unknown_config(std::string_view config, const std::string& where, std::vector<std::string> names);

}  // namespace gpulet::mig
