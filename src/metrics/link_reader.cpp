#include "metrics/link_reader.h"

#include <algorithm>
#include <utility>

namespace gpulet::metrics {
namespace {

using nvml::LinkCounter;

constexpr std::uint64_t kKib = 1024;

// Counters that are DCGM's values.
struct ByCounter {
  Field field;
  LinkCounter counter;
};
constexpr ByCounter kByCounter[] = {
    {Field::kLinkCrcFlit, LinkCounter::kCrcFlitErrors},
    {Field::kLinkCrcData, LinkCounter::kCrcDataErrors},
    {Field::kLinkReplay, LinkCounter::kReplayErrors},
    {Field::kLinkRecovery, LinkCounter::kRecoveryErrors},
};
constexpr ByCounter kBySum[] = {
    {Field::kNvLinkCrcErrors, LinkCounter::kCrcErrors},
    {Field::kNvLinkRecoveryErrors, LinkCounter::kRecoveryErrors},
    {Field::kNvLinkReplayErrors, LinkCounter::kReplayErrors},
    {Field::kNvLinkTransmittedPackets, LinkCounter::kTransmittedPackets},
    {Field::kNvLinkTransmittedBytes, LinkCounter::kTransmittedBytes},
    {Field::kNvLinkReceivedPackets, LinkCounter::kReceivedPackets},
    {Field::kNvLinkReceivedBytes, LinkCounter::kReceivedBytes},
    {Field::kNvLinkMalformedPackets, LinkCounter::kMalformedPackets},
    {Field::kNvLinkBufferOverruns, LinkCounter::kBufferOverruns},
    {Field::kNvLinkReceiveErrors, LinkCounter::kReceiveErrors},
    {Field::kNvLinkRemoteErrors, LinkCounter::kRemoteErrors},
    {Field::kNvLinkGeneralErrors, LinkCounter::kGeneralErrors},
    {Field::kNvLinkIntegrityErrors, LinkCounter::kIntegrityErrors},
    {Field::kNvLinkTransmitDiscards, LinkCounter::kTransmitDiscards},
    {Field::kNvLinkRecoveriesDone, LinkCounter::kRecoveriesDone},
    {Field::kNvLinkRecoveriesFailed, LinkCounter::kRecoveriesFailed},
    {Field::kNvLinkRecoveries, LinkCounter::kRecoveries},
    {Field::kNvLinkSymbolErrors, LinkCounter::kSymbolErrors},
    {Field::kNvLinkEffectiveErrors, LinkCounter::kEffectiveErrors},
};

// gpulet's kinds of errors: those up to NVLink 4, then those from NVLink 5 on.
struct ErrorKind {
  LinkCounter counter;
  const char* kind;
};
constexpr ErrorKind kErrorKinds[] = {{LinkCounter::kReplayErrors, "replay"},
                                     {LinkCounter::kRecoveryErrors, "recovery"},
                                     {LinkCounter::kCrcErrors, "crc"},
                                     {LinkCounter::kRecoveries, "recovery"},
                                     {LinkCounter::kReceiveErrors, "receive"},
                                     {LinkCounter::kTransmitDiscards, "discard"},
                                     {LinkCounter::kIntegrityErrors, "integrity"}};

std::optional<std::uint64_t> find_counter(const nvml::NvLinkValues& values, LinkCounter counter) {
  const auto found = values.counters.find(counter);
  if (found == values.counters.end()) return std::nullopt;
  return found->second;
}

// A switch of a multi-node fabric has the address FFFFFFFF:FF:FF.0. Source: facts/real-hardware.
bool is_address(const inventory::PciAddress& address) {
  return address != inventory::PciAddress{} && address.domain != 0xFFFFFFFF;
}

std::optional<Bytes> data_of(const nvml::NvLinkValues& values, LinkCounter kib, LinkCounter bytes) {
  if (const auto data = find_counter(values, kib)) return Bytes{*data * kKib};
  if (const auto all = find_counter(values, bytes)) return Bytes{*all};
  return std::nullopt;
}

}  // namespace

std::uint64_t dcgm_bandwidth(std::uint64_t kib, std::chrono::nanoseconds time) {
  constexpr double kThousand = 1000;
  return static_cast<std::uint64_t>(static_cast<double>(kib) / std::chrono::duration<double>(time).count() /
                                    kThousand);
}

std::string describe_remote(const inventory::NvLink& link, const inventory::Snapshot& snapshot) {
  if (!is_address(link.remote)) return link.kind == inventory::NvLinkRemote::kSwitch ? "switch" : "";
  if (link.kind != inventory::NvLinkRemote::kSwitch) {
    const auto gpu = std::ranges::find(snapshot.gpus, link.remote, &inventory::Gpu::pci);
    if (gpu != snapshot.gpus.end()) return gpu->uuid.str();
  }
  return link.remote.nvml_text();
}

LinkReader::LinkReader(const std::set<Field>& wanted) : wants_own_(wanted.contains(Field::kLinks)) {
  for (const auto& one : link_fields()) {
    if (wanted.contains(one.field)) fields_.insert(one.field);
  }
  for (const auto& one : kByCounter) {
    if (wanted.contains(one.field)) counters_.insert(one.counter);
  }
  for (const auto& one : kBySum) {
    if (!wanted.contains(one.field)) continue;
    sums_.insert(one.field);
    counters_.insert(one.counter);
  }
  if (wants_own_ || wanted.contains(Field::kLinkBandwidth))
    counters_.insert({LinkCounter::kTransmitted, LinkCounter::kReceived});
  if (!wants_own_) return;
  counters_.insert({LinkCounter::kTransmittedBytes, LinkCounter::kReceivedBytes});
  for (const auto& one : kErrorKinds) counters_.insert(one.counter);
}

Result<LinkReader::Reading> LinkReader::sample_links(const nvml::Session& session, nvml::Device device,
                                                     const inventory::Snapshot& snapshot,
                                                     const inventory::Gpu& gpu,
                                                     std::chrono::nanoseconds now) {
  Reading reading;
  if (!wants_own_ && fields_.empty() && sums_.empty()) return reading;
  const nvml::NvLinks driver(session, device);
  if (!known_) {
    const auto states = driver.read_states();
    if (!states && states.error().code() != Code::kUnsupported) return fail(states.error());
    known_.emplace();
    for (const auto& state : states ? *states : std::vector<nvml::NvLinkState>())
      known_->push_back({state.index});
  }
  for (auto& known : *known_) {
    const auto link = std::ranges::find(gpu.nvlinks, known.index, &inventory::NvLink::index);
    if (link != gpu.nvlinks.end()) known.remote = describe_remote(*link, snapshot);
    reading.links.push_back({known.index, known.remote});
  }
  // Only rates are wanted: GpuReader adds them.
  if (counters_.empty()) return reading;
  std::vector<unsigned> indices;
  for (const auto& known : *known_) indices.push_back(known.index);
  GPULET_TRY_ASSIGN(const auto values, driver.read_values(indices, counters_));
  for (std::size_t i = 0; i < known_->size(); ++i) {
    const auto found = values.find(known_->at(i).index);
    if (found != values.end()) fill_sample(known_->at(i), found->second, now, reading.links[i]);
  }
  for (const auto& one : kBySum) {
    if (!sums_.contains(one.field)) continue;
    std::optional<std::uint64_t> sum;
    for (const auto& [index, link] : values) {
      if (const auto count = find_counter(link, one.counter)) sum = sum.value_or(0) + *count;
    }
    if (sum) reading.sums[one.field] = *sum;
  }
  return reading;
}

void LinkReader::fill_sample(KnownLink& known, const nvml::NvLinkValues& values, std::chrono::nanoseconds now,
                             LinkSample& sample) const {
  for (const auto& one : kByCounter) {
    if (!fields_.contains(one.field)) continue;
    if (const auto count = find_counter(values, one.counter)) sample.values[one.field] = *count;
  }
  const auto transmitted = find_counter(values, LinkCounter::kTransmitted);
  const auto received = find_counter(values, LinkCounter::kReceived);
  if (fields_.contains(Field::kLinkBandwidth) && transmitted && received) {
    const Traffic traffic{*transmitted + *received, now};
    const auto before = std::exchange(known.traffic, traffic);
    if (before && now > before->when && traffic.kib >= before->kib)
      sample.values[Field::kLinkBandwidth] = dcgm_bandwidth(traffic.kib - before->kib, now - before->when);
  }
  if (!wants_own_) return;
  sample.up = values.up;
  sample.transmitted = data_of(values, LinkCounter::kTransmitted, LinkCounter::kTransmittedBytes);
  sample.received = data_of(values, LinkCounter::kReceived, LinkCounter::kReceivedBytes);
  for (const auto& [counter, kind] : kErrorKinds) {
    if (const auto count = find_counter(values, counter)) sample.errors.try_emplace(kind, *count);
  }
}

}  // namespace gpulet::metrics
