// mig-parted's file of named layouts, so that a node's file and label keep working:
//
//   version: v1
//   mig-configs:
//     all-balanced:
//       - device-filter: ["0x233010DE", "0x20B210DE:0x147F10DE"]   # or a single one; default: all GPUs
//         devices: all                                             # or a list of indices
//         mig-enabled: true
//         mig-devices: {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
//
// Source: mig-parted v0.15.0, api/spec/v1/spec.go and pkg/types/{mig_config,device}.go.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "mig/layout.h"

namespace gpulet::mig {

// A GPU model by its PCI ids, each device << 16 | vendor.
struct DeviceFilter {
  std::uint32_t device = 0;
  std::optional<std::uint32_t> subsystem;
  friend bool operator==(const DeviceFilter&, const DeviceFilter&) = default;
};

struct LayoutEntry {
  std::vector<DeviceFilter> filters;             // any of them; empty: every GPU
  std::optional<std::vector<unsigned>> indices;  // NVML indices; nullopt: all
  Layout layout;
  std::string location;  // "path:line:column" of the entry; empty for an entry without a file
};

// A layout and where it is defined.
struct LocatedLayout {
  Layout layout;
  std::string location;  // as LayoutEntry::location; empty for a layout derived from the hardware
  friend bool operator==(const LocatedLayout&, const LocatedLayout&) = default;
};

struct LayoutFile {
  struct Config {
    std::string name;
    std::vector<LayoutEntry> entries;
  };
  std::string path;
  std::vector<Config> configs;  // in file order
};

// Errors: kInvalidArgument about "path:line:column", with the field, what was found and what was
// expected.
Result<LayoutFile> parse_layout_file(std::string_view text, const std::string& path);

// Loads the file at `path`. Errors: those of parse_layout_file and base/file.h.
Result<LayoutFile> load_layout_file(const std::string& path);

// The layout that the named config gives this GPU: that of the last matching entry, because
// mig-parted applies all of them in turn; nullopt if none matches. Errors: kNotFound if there is no
// such config, with the nearest names.
Result<std::optional<LocatedLayout>> layout_of(const LayoutFile& file, std::string_view config,
                                               const State& gpu);

// "no config 'x' in <where>; did you mean 'y'?", or with at most 8 existing names, most similar
// first.
Error unknown_config(std::string_view config, const std::string& where, std::vector<std::string> names);

// Resolves a layout name for the GPUs of a node: by `file` if there is one, else by what the
// hardware offers. The layouts in the order of `gpus`; nullopt for a GPU that the name does not cover and
// that stays unchanged. Errors: kNotFound if no such name exists, with the nearest.
Result<std::vector<std::optional<LocatedLayout>>> named_layouts(const LayoutFile* file, std::string_view name,
                                                                std::span<const State> gpus);

// The same by the file at `path`, read on each call; empty: by the hardware. Errors: those of the
// file too.
Result<std::vector<std::optional<LocatedLayout>>> named_layouts(const std::string& path,
                                                                std::string_view name,
                                                                std::span<const State> gpus);

// The current layouts of a node's GPUs as a file, to apply on another node or after a
// reinstallation. One config of that name, with an entry for each distinct layout, in the order of the GPUs.
// `whole`: `gpus` are all GPUs of the node, so an entry that covers all of some models has no
// indices, and names the models if there are others. The mode is the current one. Errors:
// kUnsupported if the driver does not report an instance's profile.
Result<LayoutFile> export_layouts(const std::string& name, std::span<const State> gpus, bool whole);

// YAML that parse_layout_file accepts.
std::string to_yaml(const LayoutFile& file);

// "0x233010DE", or with a subsystem "0x233010DE:0x16C110DE".
std::string filter_text(const DeviceFilter& filter);

}  // namespace gpulet::mig
