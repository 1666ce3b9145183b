#include "sim/kubelet/checkpoint.h"

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace gpulet::sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(std::string_view bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) out += j <= count ? kDigits[group >> (18 - 6 * j) & 63u] : '=';
  }
  return out;
}

std::string from_base64(std::string_view text) {
  std::string out;
  std::uint32_t group = 0;
  int bits = 0;
  for (const char character : text) {
    const auto digit = kDigits.find(character);
    if (digit == std::string_view::npos) break;
    group = (group << 6 | static_cast<std::uint32_t>(digit)) & 0xffffffu;
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      out += static_cast<char>(group >> bits & 0xffu);
    }
  }
  return out;
}

std::uint64_t checksum_of(const Json& data) {
  std::uint32_t hash = 2166136261u;
  for (const char character : data.dump()) hash = (hash ^ static_cast<unsigned char>(character)) * 16777619u;
  return hash;
}

}  // namespace

std::string write_checkpoint(const Checkpoint& checkpoint) {
  Json entries = Json::array();
  for (const auto& entry : checkpoint.entries) {
    Json devices = Json::object();
    for (const auto& [node, ids] : entry.devices) devices[std::to_string(node)] = ids;
    entries.push_back({{"PodUID", entry.pod_uid},
                       {"ContainerName", entry.container},
                       {"ResourceName", entry.resource},
                       {"DeviceIDs", std::move(devices)},
                       {"AllocResp", to_base64(entry.allocate_response)}});
  }
  Json registered = Json::object();
  for (const auto& [resource, ids] : checkpoint.registered) registered[resource] = ids;
  Json data{{"PodDeviceEntries", std::move(entries)}, {"RegisteredDevices", std::move(registered)}};
  const std::uint64_t checksum = checksum_of(data);
  return Json{{"Data", std::move(data)}, {"Checksum", checksum}}.dump();
}

Result<Checkpoint> read_checkpoint(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    const Json& data = json.at("Data");
    if (json.at("Checksum").get<std::uint64_t>() != checksum_of(data)) {
      return fail(Code::kInvalidArgument, "the checkpoint's checksum is wrong");
    }
    Checkpoint checkpoint;
    for (const auto& entry : data.at("PodDeviceEntries")) {
      CheckpointEntry out{entry.at("PodUID"), entry.at("ContainerName"), entry.at("ResourceName"), {}, {}};
      for (const auto& [node, ids] : entry.at("DeviceIDs").items()) {
        const bool known = node != "-1";
        const auto number = known ? text::parse_unsigned(node) : std::optional<std::uint64_t>(0);
        if (!number) return fail(Code::kInvalidArgument, "the checkpoint has a NUMA node '" + node + "'");
        out.devices[known ? static_cast<std::int64_t>(*number) : -1] = ids.get<std::vector<std::string>>();
      }
      out.allocate_response = from_base64(entry.at("AllocResp").get<std::string>());
      checkpoint.entries.push_back(std::move(out));
    }
    for (const auto& [resource, ids] : data.at("RegisteredDevices").items()) {
      checkpoint.registered[resource] = ids.get<std::vector<std::string>>();
    }
    return checkpoint;
  } catch (const nlohmann::json::exception& error) {
    return fail(Code::kInvalidArgument, std::string("not a checkpoint: ") + error.what());
  }
}

}  // namespace gpulet::sim
