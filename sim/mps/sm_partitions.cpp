#include "sim/mps/sm_partitions.h"

#include <algorithm>
#include <cstdio>

#include "base/text.h"

namespace gpulet::sim::mps {
namespace {

constexpr int kFirstWithPartitions = 8, kFirstWithLargeChunks = 9;  // compute capability
constexpr std::size_t kMaskBytes = 27, kShortUuid = 8;
constexpr unsigned char kChunkMask = 0x0f;

std::string base64(const std::vector<unsigned char>& bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i + 2 < bytes.size(); i += 3) {
    const unsigned group = (unsigned{bytes[i]} << 16) | (unsigned{bytes[i + 1]} << 8) | bytes[i + 2];
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[(group >> shift) & 63u];
  }
  return text;
}

std::string id_of(const std::vector<unsigned>& chunks) {
  std::vector<unsigned char> mask(kMaskBytes);
  for (const auto chunk : chunks) mask[chunk] = kChunkMask;
  return base64(mask);
}

std::string row(const std::string& uuid, const std::string& id, const std::string& free, std::size_t used,
                unsigned sms_of_chunk, const std::string& clients) {
  char text[160];
  std::snprintf(text, sizeof text, "%-10.*s %-38s %6s %6zu %6zu %s\n", static_cast<int>(kShortUuid),
                uuid.c_str(), id.c_str(), free.c_str(), used, used * sms_of_chunk, clients.c_str());
  return text;
}

}  // namespace

unsigned sms_of_chunk(int compute_major) {
  if (compute_major < kFirstWithPartitions) return 0;
  return compute_major < kFirstWithLargeChunks ? 4 : 8;
}

SmPartitions::SmPartitions(std::vector<PartitionableDevice> devices) {
  for (auto& facts : devices) {
    const auto chunks =
        facts.sms_of_chunk == 0 ? 0 : std::min<std::size_t>(facts.sms / facts.sms_of_chunk, kMaskBytes);
    devices_.push_back({.facts = std::move(facts), .is_used = std::vector<bool>(chunks)});
  }
}

SmPartitions::Device* SmPartitions::find_partitionable(const std::string& uuid) {
  const auto found =
      std::ranges::find_if(devices_, [&](const Device& device) { return device.facts.uuid == uuid; });
  return found == devices_.end() ? nullptr : &*found;
}

SmPartitions::Partition* SmPartitions::find_partition(const std::string& partition) {
  const auto slash = partition.find('/');
  auto* device = slash == std::string::npos ? nullptr : find_partitionable(partition.substr(0, slash));
  if (device == nullptr) return nullptr;
  const auto found = device->partitions.find(partition.substr(slash + 1));
  return found == device->partitions.end() ? nullptr : &found->second;
}

std::string SmPartitions::add_partition(const std::string& uuid, const std::string& chunks) {
  auto* device = find_partitionable(uuid);
  const auto count = text::parse_unsigned(chunks);
  if (device == nullptr || !count || *count == 0) return "Failed to create partition: invalid argument\n";
  std::vector<unsigned> free;
  for (unsigned chunk = 0; chunk < device->is_used.size() && free.size() < *count; ++chunk) {
    if (!device->is_used[chunk]) free.push_back(chunk);
  }
  if (free.size() < *count) return "Failed to create partition: not enough free chunks\n";
  for (const auto chunk : free) device->is_used[chunk] = true;
  const auto id = id_of(free);
  device->partitions[id].chunks = std::move(free);
  return "Partition " + uuid + "/" + id + " created\n";
}

std::string SmPartitions::remove_partition(const std::string& uuid, const std::string& id) {
  auto* partition = find_partition(uuid + "/" + id);
  if (partition == nullptr) return "Failed to remove partition: it does not exist\n";
  if (partition->clients != 0) return "Failed to remove partition: it is in use\n";
  auto* device = find_partitionable(uuid);
  for (const auto chunk : partition->chunks) device->is_used[chunk] = false;
  device->partitions.erase(id);
  return {};
}

std::string SmPartitions::list_partitions() const {
  std::string table = "GPU        Partition                                free   used   used clients\n";
  table += "                                                   chunk  chunk     SM\n";
  for (const auto& device : devices_) {
    const auto used = static_cast<std::size_t>(std::ranges::count(device.is_used, true));
    table += row(device.facts.uuid, "-", std::to_string(device.is_used.size() - used), used,
                 device.facts.sms_of_chunk, "-");
    for (const auto& [id, partition] : device.partitions) {
      table += row(device.facts.uuid, id, "", partition.chunks.size(), device.facts.sms_of_chunk,
                   partition.clients != 0 ? "Yes" : "No");
    }
  }
  return table;
}

std::optional<unsigned> SmPartitions::add_client(const std::string& partition) {
  auto* found = find_partition(partition);
  if (found == nullptr) return std::nullopt;
  ++found->clients;
  const auto* device = find_partitionable(partition.substr(0, partition.find('/')));
  return static_cast<unsigned>(found->chunks.size()) * device->facts.sms_of_chunk;
}

void SmPartitions::remove_client(const std::string& partition) {
  if (auto* found = find_partition(partition); found != nullptr && found->clients > 0) --found->clients;
}

}  // namespace gpulet::sim::mps
