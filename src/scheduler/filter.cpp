#include "scheduler/filter.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

#include "base/text.h"

namespace gpulet::scheduler {
namespace {

using Kind = ContainerRequest::Kind;

std::string cuda_of(unsigned version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Attributes attributes_of(const GpuNode& node, const NodeResource& resource, const Unit& unit) {
  const auto& model = node.model_of(unit);
  return {.model = model.name,
          .architecture = model.architecture,
          .memory_mib = node.memory_of(unit),
          .compute = std::to_string(model.compute_major) + "." + std::to_string(model.compute_minor),
          .driver = node.driver,
          .cuda = cuda_of(node.cuda_version),
          .mig_profile = unit.profile,
          .shares = resource.sharing == Sharing::kNone ? 1 : unit.shares,
          .numa = node.gpus[unit.gpu].numa.value_or(-1)};
}

// "XID 79" of "XID 79: GPU has fallen off the bus".
std::string short_of(const std::string& reason) { return reason.substr(0, reason.find(':')); }

std::string gib(std::uint64_t mib) {
  return mib % 1024 == 0 ? std::to_string(mib / 1024) + "Gi" : std::to_string(mib) + "Mi";
}

unsigned sum(const Shares& shares) { return std::accumulate(shares.begin(), shares.end(), 0U); }

std::vector<Shares> offered(const NodeView& node) {
  std::vector<Shares> free;
  for (const auto& resource : node.node.resources) {
    free.emplace_back();
    for (const auto& unit : resource.units)
      free.back().push_back(static_cast<std::uint16_t>(unit.shares - unit.out));
  }
  return free;
}

}  // namespace

std::string_view name(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "none";
    case Refusal::kTooFew:
      return "too_few";
    case Refusal::kDriver:
      return "driver";
    case Refusal::kModel:
      return "model";
    case Refusal::kMemory:
      return "memory";
    case Refusal::kCompute:
      return "compute";
    case Refusal::kSelector:
      return "selector";
    case Refusal::kLinks:
      return "links";
  }
  return "none";
}

// As kube-scheduler counts: what runs before the others needs its own beside the sidecars before it.
Filter::Filter(const PodRequest& request) : request_(request) {
  std::map<ResourceName, std::pair<unsigned, unsigned>> counts;  // of those that stay; the most at once
  for (const auto& container : request.containers) {
    for (const auto& demand : container.demands) {
      auto& [staying, most] = counts[demand.resource];
      if (container.kind != Kind::kInit) staying += demand.count;
      most = std::max(most, container.kind == Kind::kInit ? staying + demand.count : staying);
    }
  }
  for (const auto& [resource, count] : counts) needs_.push_back({resource, count.second});
}

Refusal Filter::suits(const GpuNode& node, const NodeResource& resource, const Unit& unit) const {
  const Wishes& wishes = request_.wishes;
  const auto& model = node.model_of(unit);
  if (!wishes.models.empty() && std::ranges::none_of(wishes.models, [&](const auto& wanted) {
        return names_model(wanted, model.name);
      })) {
    return Refusal::kModel;
  }
  const auto memory = unit.share_mib != 0 ? unit.share_mib : node.memory_of(unit);
  if (wishes.memory_mib > memory) return Refusal::kMemory;
  if (wishes.compute > std::pair(model.compute_major, model.compute_minor)) return Refusal::kCompute;
  if (!wishes.selector.empty()) {
    const auto attributes = attributes_of(node, resource, unit);
    for (const auto& expression : wishes.selector) {
      if (!matches(expression, attributes)) return Refusal::kSelector;
    }
  }
  return Refusal::kNone;
}

std::string Filter::wanted(Refusal refusal) const {
  const Wishes& wishes = request_.wishes;
  switch (refusal) {
    case Refusal::kModel:
      return text::join(wishes.models, " or ");
    case Refusal::kMemory:
      return gib(wishes.memory_mib) + " of memory";
    case Refusal::kCompute:
      return "compute capability " + std::to_string(wishes.compute.first) + "." +
             std::to_string(wishes.compute.second);
    case Refusal::kSelector: {
      std::string text;
      for (const auto& one : wishes.selector) text.append(text.empty() ? "" : ", ").append(one.text());
      return text;
    }
    default:
      return {};
  }
}

Verdict Filter::judge(const NodeView& node) const {
  const Wishes& wishes = request_.wishes;
  bool published = false;
  std::optional<Failed> failed;
  for (const auto& need : needs_) {
    const auto resource = node.find(need.resource);
    if (!resource) continue;
    published = true;
    if (node.free_total[*resource] < need.count && !failed) {
      failed = Failed{Refusal::kTooFew, " of " + std::to_string(need.count) + " wanted", *resource};
    }
  }
  if (!published) return {};
  const auto& driver = node.node.driver;
  if (!wishes.driver.empty() && compare_versions(driver, wishes.driver) < 0) {
    return {Refusal::kDriver, false, "driver " + driver + ", " + wishes.driver + " wanted"};
  }
  if (!wishes.cuda.empty()) {
    const auto cuda = cuda_of(node.node.cuda_version);
    if (compare_versions(cuda, wishes.cuda) < 0) {
      return {Refusal::kDriver, false, "the driver's CUDA " + cuda + ", " + wishes.cuda + " wanted"};
    }
  }
  if (!failed && wishes.any()) failed = try_on(node, node.free, true);
  if (!failed) return {};
  // With everybody else gone: what it fails then, no leaving Pod can change.
  auto alone = try_on(node, offered(node), false);
  if (alone) failed = std::move(alone);
  return {failed->refusal, !alone, counts(node, failed->resource) + failed->tail};
}

std::optional<Filter::Failed> Filter::try_on(const NodeView& node, std::vector<Shares> free,
                                             bool occupied) const {
  for (const auto& need : needs_) {
    const auto resource = node.find(need.resource);
    if (resource && sum(free[*resource]) < need.count) {
      return Failed{Refusal::kTooFew, " of " + std::to_string(need.count) + " wanted", *resource};
    }
  }
  if (!request_.wishes.any()) return std::nullopt;
  const auto given = allocate(node, request_, free);
  if (!given) return Failed{Refusal::kTooFew, ", too few for all containers", 0};
  for (std::size_t i = 0; i < given->size(); ++i) {
    if (auto failed = check(node, request_.containers[i], (*given)[i], occupied)) return failed;
  }
  return std::nullopt;
}

std::optional<Filter::Failed> Filter::check(const NodeView& node, const ContainerRequest& container,
                                            const Given& given, bool occupied) const {
  for (const auto& [index, shares] : given) {
    const auto& resource = node.node.resources[index];
    for (std::size_t unit = 0; unit < shares.size(); ++unit) {
      if (shares[unit] == 0) continue;
      const auto& one = resource.units[unit];
      const auto gpu = [&] { return " but GPU " + std::to_string(one.gpu); };
      if (const auto refusal = suits(node.node, resource, one); refusal != Refusal::kNone) {
        return Failed{
            refusal,
            gpu() + " (" + node.node.model_of(one).name + ") would be given, " + wanted(refusal) + " wanted",
            index};
      }
      if (!occupied || request_.wishes.memory_mib == 0 || one.shares == 1) continue;
      const auto spoken_for = node.spoken_for[index][unit];
      if (spoken_for + request_.wishes.memory_mib * shares[unit] > node.node.memory_of(one)) {
        const auto left = node.node.memory_of(one) - std::min(spoken_for, node.node.memory_of(one));
        return Failed{Refusal::kMemory,
                      gpu() + " would be given, with " + gib(left) + " not spoken for, " +
                          gib(request_.wishes.memory_mib * shares[unit]) + " wanted",
                      index};
      }
    }
  }
  if (!request_.wishes.links) return std::nullopt;
  auto failed = check_links(node, given);
  if (failed && request_.containers.size() > 1) failed->tail += " for container " + container.name;
  return failed;
}

std::optional<Filter::Failed> Filter::check_links(const NodeView& node, const Given& given) const {
  std::uint64_t gpus = 0;  // kMaxNodeGpus of them have a bit each
  for (const auto& [index, shares] : given) {
    for (std::size_t unit = 0; unit < shares.size(); ++unit) {
      if (shares[unit] != 0) gpus |= std::uint64_t{1} << node.node.resources[index].units[unit].gpu;
    }
  }
  const auto size = node.node.gpus.size();
  for (std::size_t a = 0; a < size; ++a) {
    if ((gpus >> a & 1) == 0) continue;
    for (std::size_t b = a + 1; b < size; ++b) {
      if ((gpus >> b & 1) == 0 || satisfies(node.node.pairs[a * size + b], *request_.wishes.links)) continue;
      return Failed{
          Refusal::kLinks,
          " but no " + std::to_string(std::popcount(gpus)) + " linked by " + request_.wishes.links->text,
          given.front().first};
    }
  }
  return std::nullopt;
}

std::string Filter::counts(const NodeView& node, std::size_t index) const {
  const auto& resource = node.node.resources[index];
  unsigned total = 0;
  std::map<std::string, unsigned> out;  // by what is said of them
  for (const auto& unit : resource.units) {
    total += unit.shares;
    if (unit.out == 0) continue;
    const auto& gpu = node.node.gpus[unit.gpu];
    const std::string why = short_of(unit.why.empty() ? gpu.reason : unit.why);
    std::string words(health::offered(gpu.state) ? "unhealthy" : health::name(gpu.state));
    if (!why.empty()) words += " (" + why + ")";
    out[words] += unit.out;
  }
  std::string text = needs_.size() > 1 ? resource.name.str() + ": " : "";
  text += std::to_string(sum(node.held[index])) + "/" + std::to_string(total);
  text += resource.sharing == Sharing::kNone ? " held" : " shares held";
  for (const auto& [words, count] : out)
    text.append(", ").append(std::to_string(count)).append(" ").append(words);
  return text + ", " + std::to_string(node.free_total[index]) + " free";
}

}  // namespace gpulet::scheduler
