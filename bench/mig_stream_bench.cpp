// `make mig-stream`: a stream of Pods that ask for MIG devices of several profiles, on one node of simulated
// H100s in virtual time: how many get theirs with static layouts, and with devices cut on demand
// (mig/on_demand.h) within gpulet.mig.onDemand. Everything is decided by the agent's code; the same seeds
// give the same table.
//
// The mix changes: every six hours another half of the profiles is asked for four times as often, as services
// by day and training by night do. A Pod gives up when it has waited for kPatience.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "mig/on_demand.h"
#include "mig/plan.h"
#include "mig/test_states.h"

namespace {

using namespace std::chrono_literals;
using gpulet::Duration;
using gpulet::Time;
using gpulet::mig::Layout;

constexpr std::size_t kGpus = 8;
constexpr Duration kStep = 15s, kLength = 3 * 24h, kPatience = 30min, kWaitFirst = 30s, kShift = 6h;
constexpr unsigned kSeeds = 2;

struct Profile {
  const char* name;
  unsigned slices;
  double weight;  // of its requests
  bool by_day;
};
constexpr std::array<Profile, 5> kProfiles = {{{"1g.10gb", 1, 8, true},
                                               {"1g.20gb", 1, 3, true},
                                               {"2g.20gb", 2, 3, false},
                                               {"3g.40gb", 3, 2, false},
                                               {"7g.80gb", 7, 0.3, false}}};

struct Request {
  std::size_t profile = 0;
  Time at{};
  Duration runs{};
};

// Three days of requests that would need that share of all compute slices.
std::vector<Request> make_stream(double load, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<Request> stream;
  std::exponential_distribution<double> lasts(1.0 / 3600);
  for (Time now{}; now < Time(kLength); now += kStep) {
    const bool is_day = (now.time_since_epoch() / kShift) % 2 == 0;
    double sum = 0, slices = 0;
    std::array<double, kProfiles.size()> weights{};
    for (std::size_t i = 0; i < kProfiles.size(); ++i) {
      weights[i] = kProfiles[i].weight * (kProfiles[i].by_day == is_day ? 4 : 1);
      sum += weights[i];
      slices += weights[i] * kProfiles[i].slices;
    }
    const double per_hour = load * kGpus * 7 / (slices / sum);  // each runs for an hour
    const double seconds = std::chrono::duration<double>(kStep).count();
    std::poisson_distribution<unsigned> count(per_hour * seconds / 3600);
    for (unsigned n = count(random); n > 0; --n) {
      std::discrete_distribution<std::size_t> which(weights.begin(), weights.end());
      stream.push_back({which(random), now,
                        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(lasts(random)))});
    }
  }
  return stream;
}

struct Counts {
  std::size_t requests = 0, served = 0, changes = 0;
  std::array<std::pair<std::size_t, std::size_t>, kProfiles.size()> by_profile{};  // served of all
};

struct Holder {
  unsigned instance = 0;
  Time until{};
};

class Node {
 public:
  explicit Node(const std::vector<Layout>& layouts)
      : machine_(gpulet::mig::states::test_machine("hgx-h100")) {
    for (std::size_t i = 0; i < kGpus; ++i) {
      gpulet::mig::states::set_mig_mode(machine_->gpus[i]);
      gpus_.push_back({.state = {}, .configured = layouts[i % layouts.size()], .changed_at = std::nullopt});
      read_state(i);
      apply_layout(i, gpus_[i].configured);
    }
  }

  void end_pods(Time now) {
    for (std::size_t i = 0; i < kGpus; ++i) {
      if (std::erase_if(holders_[i], [&](const Holder& one) { return one.until <= now; }) > 0) read_state(i);
    }
  }
  // On the fullest GPU that has the device.
  bool place_pod(const Request& request, Time now) {
    std::size_t best = kGpus;
    for (std::size_t i = 0; i < kGpus; ++i) {
      if (gpulet::mig::idle_devices(gpus_[i].state, kProfiles[request.profile].name) == 0) continue;
      if (best == kGpus || holders_[i].size() > holders_[best].size()) best = i;
    }
    if (best == kGpus) return false;
    for (const auto& instance : gpus_[best].state.instances) {
      if (!instance.holders.empty()) continue;
      const auto* profile = gpulet::mig::find_profile(gpus_[best].state, instance.profile);
      if (profile->name != kProfiles[request.profile].name) continue;
      holders_[best].push_back({instance.id, now + request.runs});
      break;
    }
    read_state(best);
    return true;
  }
  std::size_t decide(const std::vector<gpulet::mig::DeviceDemand>& demands,
                     const gpulet::mig::OnDemandLimits& limits, Time now) {
    for (auto& gpu : gpus_) {
      if (gpulet::mig::is_needed(gpu, demands)) gpu.needed_at = now;
    }
    const auto changes = gpulet::mig::decide_changes(gpus_, demands, limits, now);
    for (const auto& change : changes) {
      apply_layout(change.gpu, change.layout);
      gpus_[change.gpu].changed_at = now;
    }
    return changes.size();
  }

 private:
  void read_state(std::size_t gpu) {
    auto& state = gpus_[gpu].state;
    state = gpulet::mig::states::state_of(machine_->gpus[gpu], static_cast<unsigned>(gpu));
    for (auto& instance : state.instances) {
      if (std::ranges::count(holders_[gpu], instance.id, &Holder::instance) != 0)
        instance.holders.emplace_back("Pod");
    }
  }
  void apply_layout(std::size_t gpu, const Layout& layout) {
    const auto plan = gpulet::mig::make_plan(gpus_[gpu].state, layout);
    if (!plan || plan->is_blocked() || !gpulet::mig::states::carry_out(machine_->gpus[gpu], *plan).empty()) {
      std::fprintf(stderr, "mig_stream_bench: GPU %zu cannot get %s\n", gpu,
                   gpulet::mig::layout_text(layout).c_str());
      std::exit(1);
    }
    read_state(gpu);
  }

  std::unique_ptr<gpulet::sim::Machine> machine_;
  std::vector<gpulet::mig::OnDemandGpu> gpus_;
  std::array<std::vector<Holder>, kGpus> holders_;
};

// The profiles that Pods wait for, those first that wait longest.
std::vector<gpulet::mig::DeviceDemand> demands_of(const std::deque<Request>& waiting, Time now) {
  std::vector<gpulet::mig::DeviceDemand> demands;
  for (const auto& request : waiting) {
    if (now - request.at < kWaitFirst) continue;
    const std::string name = kProfiles[request.profile].name;
    const auto known = std::ranges::find(demands, name, &gpulet::mig::DeviceDemand::profile);
    if (known == demands.end()) {
      demands.push_back({name, 1});
    } else {
      ++known->count;
    }
  }
  return demands;
}

void run_stream(const std::vector<Request>& stream, const std::vector<Layout>& layouts, unsigned max_gpus,
                Counts& counts) {
  Node node(layouts);
  const gpulet::mig::OnDemandLimits limits{.max_gpus = max_gpus, .min_interval = 10min, .idle = 10min};
  std::deque<Request> waiting;
  std::size_t next = 0;
  for (Time now{}; now < Time(kLength); now += kStep) {
    node.end_pods(now);
    for (; next < stream.size() && stream[next].at <= now; ++next) {
      waiting.push_back(stream[next]);
      ++counts.requests;
      ++counts.by_profile[stream[next].profile].second;
    }
    std::erase_if(waiting, [&](const Request& request) { return now - request.at > kPatience; });
    if (max_gpus > 0) counts.changes += node.decide(demands_of(waiting, now), limits, now);
    std::erase_if(waiting, [&](const Request& request) {
      if (!node.place_pod(request, now)) return false;
      ++counts.served;
      ++counts.by_profile[request.profile].first;
      return true;
    });
  }
}

void print_row(const char* name, const std::vector<Layout>& layouts, unsigned max_gpus, double load) {
  Counts counts;
  for (unsigned seed = 1; seed <= kSeeds; ++seed)
    run_stream(make_stream(load, seed), layouts, max_gpus, counts);
  const double hours = std::chrono::duration<double>(kLength).count() / 3600 * kSeeds;
  std::printf("%-44s %6.1f %%  %8.2f ", name,
              100.0 * static_cast<double>(counts.served) / static_cast<double>(counts.requests),
              static_cast<double>(counts.changes) / hours);
  for (const auto& [served, all] : counts.by_profile)
    std::printf(" %6.1f", all == 0 ? 0.0 : 100.0 * static_cast<double>(served) / static_cast<double>(all));
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main() {
  using gpulet::mig::states::enabled_layout;
  const Layout small = enabled_layout({{"1g.10gb", 7}}), twenties = enabled_layout({{"1g.20gb", 4}}),
               balanced = enabled_layout({{"1g.10gb", 2}, {"2g.20gb", 1}, {"3g.40gb", 1}}),
               halves = enabled_layout({{"3g.40gb", 2}}), seconds = enabled_layout({{"2g.20gb", 3}}),
               whole = enabled_layout({{"7g.80gb", 1}});
  const std::vector<Layout> by_mix = {small, balanced, twenties, seconds, halves, balanced, small, whole};
  for (const double load : {0.5, 0.7, 0.9}) {
    std::printf(
        "%zu H100s, requests for %.0f %% of their slices; Pods served, changes of a GPU an hour,\n"
        "and Pods served by profile:",
        kGpus, load * 100);
    for (const auto& profile : kProfiles) std::printf(" %s", profile.name);
    std::printf("\n");
    print_row("static: all-1g.10gb", {small}, 0, load);
    print_row("static: all-balanced", {balanced}, 0, load);
    print_row("static: a GPU or two for each profile", by_mix, 0, load);
    print_row("on demand, maxGpus 2: for each profile", by_mix, 2, load);
    print_row("on demand, maxGpus 4: for each profile", by_mix, 4, load);
    print_row("on demand, maxGpus 8: for each profile", by_mix, 8, load);
    print_row("on demand, maxGpus 8: all-balanced", {balanced}, 8, load);
  }
  return 0;
}
