#include "mig/export.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <map>

#include "base/text.h"
#include "config/values.h"

namespace gpulet::mig {
namespace {

bool plain(const std::string& key) {
  if (key.empty() || config::parse_yaml_bool(key) || text::lower(key) == "null") return false;
  if (std::isalpha(static_cast<unsigned char>(key.front())) == 0) return false;
  return std::ranges::all_of(key, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_';
  });
}

std::string quoted(const std::string& key) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : key) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (code < 0x20 || code == 0x7f) {
      out += {'\\', 'x', kHex[code >> 4], kHex[code & 15]};
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string hexadecimal(std::uint32_t id) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08X", id);
  return text;
}

// "[0, 1, 4]" of anything that has a text.
template <class List, class Text>
std::string listed(const List& items, Text text_of) {
  std::vector<std::string> texts;
  for (const auto& item : items) texts.push_back(text_of(item));
  return "[" + text::join(texts, ", ") + "]";
}

Status holds_only(const State& gpu, const Layout& layout) {
  for (const auto& [name, count] : layout.devices) {
    if (parse_profile_name(name)) continue;
    return fail(Code::kUnsupported, describe_gpu(gpu) + " has a MIG device that no file can name: " + name);
  }
  return {};
}

}  // namespace

Result<LayoutFile> export_layouts(const std::string& name, std::span<const State> gpus, bool whole) {
  LayoutFile file{{}, {{name, {}}}};
  auto& entries = file.configs.front().entries;
  std::map<std::uint32_t, unsigned> kinds;                // how many GPUs of each
  std::vector<std::map<std::uint32_t, unsigned>> covers;  // the same, of each entry
  for (const auto& gpu : gpus) {
    const Layout layout = layout_now(gpu);
    GPULET_TRY(holds_only(gpu, layout));
    ++kinds[gpu.pci_device_id];
    auto entry = std::ranges::find(entries, layout, &LayoutEntry::layout);
    if (entry == entries.end()) {
      entry = entries.insert(entry, LayoutEntry{{}, std::vector<unsigned>{}, layout, {}});
      covers.emplace_back();
    }
    entry->indices->push_back(gpu.index);
    ++covers[static_cast<std::size_t>(entry - entries.begin())][gpu.pci_device_id];
  }
  for (std::size_t i = 0; whole && i < entries.size(); ++i) {
    const bool every =
        std::ranges::all_of(covers[i], [&](const auto& kind) { return kinds[kind.first] == kind.second; });
    if (!every) continue;
    entries[i].indices.reset();
    if (entries.size() == 1) continue;
    for (const auto& [kind, count] : covers[i]) entries[i].filters.push_back({kind, std::nullopt});
  }
  return file;
}

std::string str(const DeviceFilter& filter) {
  return hexadecimal(filter.device) + (filter.subsystem ? ":" + hexadecimal(*filter.subsystem) : "");
}

std::string to_yaml(const LayoutFile& file) {
  std::string text = "version: v1\nmig-configs:\n";
  for (const auto& config : file.configs) {
    text += "  " + (plain(config.name) ? config.name : quoted(config.name)) + ":\n";
    for (const auto& entry : config.entries) {
      std::string lines;
      if (!entry.filters.empty()) {
        const auto filters = listed(entry.filters, [](const auto& one) { return quoted(str(one)); });
        lines += "      device-filter: " + filters + "\n";
      }
      const auto indices = entry.indices
                               ? listed(*entry.indices, [](unsigned index) { return std::to_string(index); })
                               : std::string("all");
      lines += "      devices: " + indices + "\n";
      lines += std::string("      mig-enabled: ") + (entry.layout.enabled ? "true" : "false") + "\n";
      lines += std::string("      mig-devices:") + (entry.layout.devices.empty() ? " {}\n" : "\n");
      for (const auto& [profile, count] : entry.layout.devices) {
        lines += "        " + quoted(profile) + ": " + std::to_string(count) + "\n";
      }
      text += lines.replace(4, 1, "-");
    }
  }
  return text;
}

}  // namespace gpulet::mig
