#include "mig/packing.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <numeric>

#include "mig/layout.h"
#include "mig/plan.h"

namespace gpulet::mig {
namespace {

using Slices = std::uint64_t;

// nullopt for what is on no GPU.
std::optional<Slices> mask_of(const Placement& place) {
  if (place.size == 0 || place.size > kMaxMemorySlices || place.start > kMaxMemorySlices - place.size) {
    return std::nullopt;
  }
  return (~Slices{0} >> (kMaxMemorySlices - place.size)) << place.start;
}

// What a GPU has besides memory slices.
struct Pool {
  unsigned compute = 0, decoders = 0, encoders = 0, jpegs = 0, ofas = 0;

  static Pool of(const Profile& profile) {
    const Engines& e = profile.engines;
    return {profile.slices, e.decoders, e.encoders, e.jpegs, e.ofas};
  }
  void grow_to(const Pool& other) {
    for (const auto member : kMembers) this->*member = std::max(this->*member, other.*member);
  }
  // False, and half taken, where there is not enough.
  bool take(const Pool& each, unsigned count) {
    for (const auto member : kMembers) {
      if (each.*member * count > this->*member) return false;
      this->*member -= each.*member * count;
    }
    return true;
  }

 private:
  static constexpr unsigned Pool::* kMembers[] = {&Pool::compute, &Pool::decoders, &Pool::encoders,
                                                  &Pool::jpegs, &Pool::ofas};
};

struct Score {
  unsigned intact = 0, kept_compute = 0;
  int fewer = 0;  // minus the GPU instances
  unsigned kept = 0;
  friend auto operator<=>(const Score&, const Score&) = default;
  friend Score operator+(const Score& a, const Score& b) {
    return {a.intact + b.intact, a.kept_compute + b.kept_compute, a.fewer + b.fewer, a.kept + b.kept};
  }
};

struct Spot {
  Placement placement;
  Slices mask = 0;
  const GpuInstance* there = nullptr;
};

// One request as the search sees it.
struct Level {
  const Profile* profile = nullptr;
  Parts parts;
  bool whole = false;            // compute instances of all slices only, one in each GPU instance
  unsigned least = 0, most = 0;  // GPU instances
  Pool each;
  unsigned size = 0;  // memory slices
  std::vector<Spot> spots;
  // The most that this level and all after it can add, and the memory slices that they need.
  Score bound;
  unsigned need = 0;
};

class Search {
 public:
  Search(const State& state, const std::vector<Request>& requests, const std::vector<GpuInstance>& there) {
    for (const auto& profile : state.profiles) {
      pool_.grow_to(Pool::of(profile));
      for (const auto& place : profile.placements) free_ |= mask_of(place).value_or(0);
    }
    for (const auto& instance : there) free_ |= mask_of(instance.placement).value_or(0);
    for (const auto& request : requests) levels_.push_back(level_of(request, there));
    // Larger ones have fewer places, and the lowest of them come first.
    std::ranges::sort(levels_, [](const Level& a, const Level& b) {
      return std::tuple(b.size, b.profile->slices, a.profile->id) <
             std::tuple(a.size, a.profile->slices, b.profile->id);
    });
    for (std::size_t i = levels_.size(); i-- > 0;) {
      if (i + 1 == levels_.size()) continue;
      levels_[i].bound = levels_[i].bound + levels_[i + 1].bound;
      levels_[i].need += levels_[i + 1].need;
    }
    chosen_.resize(levels_.size());
  }

  std::optional<Packing> best() {
    const bool possible = std::ranges::all_of(levels_, [](const Level& level) {
      return level.least != 0 && level.least <= level.most && level.least <= level.spots.size();
    });
    if (possible) enter(0, free_, pool_, {});
    if (!found_) return std::nullopt;
    return packing();
  }

 private:
  static Level level_of(const Request& request, const std::vector<GpuInstance>& there) {
    Level level;
    level.profile = request.profile;
    level.parts = request.parts;
    level.each = Pool::of(*request.profile);
    const unsigned devices = std::accumulate(request.parts.begin(), request.parts.end(), 0u);
    level.whole = request.parts.back() == devices;
    level.most = std::min(devices, request.profile->most);
    level.least = level.whole ? devices : least_instances(request, devices);
    for (const auto& place : request.profile->placements) {
      if (const auto mask = mask_of(place)) level.spots.push_back({place, *mask, nullptr});
      level.size = std::max(level.size, place.size);
    }
    Parts left = request.parts;
    unsigned with_holders = 0, same = 0, compute = 0;
    for (const auto& instance : there) {
      if (instance.profile != request.profile->id) continue;
      // Where the driver put one, it may be, whatever it lists.
      auto spot = std::ranges::find(level.spots, instance.placement, &Spot::placement);
      if (spot == level.spots.end() && mask_of(instance.placement)) {
        spot = level.spots.insert(spot, {instance.placement, *mask_of(instance.placement), nullptr});
      }
      if (spot == level.spots.end()) continue;
      spot->there = &instance;
      ++same;
      if (!instance.holders.empty()) ++with_holders;
      for (const auto& item : instance.compute) {
        const auto slices = compute_slices(*request.profile, item.profile).value_or(0);
        if (slices >= left.size() || left[slices] == 0) continue;
        --left[slices];
        ++compute;
      }
    }
    std::ranges::sort(level.spots, {}, &Spot::placement);
    level.bound = {std::min(with_holders, level.most), compute, -static_cast<int>(level.least),
                   std::min(same, level.most)};
    level.need = level.least * level.size;
    return level;
  }

  // The fewest GPU instances that hold the parts; more than there are parts where nothing holds them.
  static unsigned least_instances(const Request& request, unsigned devices) {
    unsigned slices = 0;
    for (std::size_t size = 0; size < request.parts.size(); ++size) {
      slices += static_cast<unsigned>(size) * request.parts[size];
    }
    const unsigned each = std::max(request.profile->slices, 1u);
    unsigned count = (slices + each - 1) / each;
    while (count <= request.profile->most && !fit_compute(*request.profile, request.parts, {}, count))
      ++count;
    return count <= request.profile->most ? count : devices + 1;
  }

  void enter(std::size_t at, Slices free, const Pool& pool, const Score& score) {
    if (at == levels_.size()) {
      if (found_ && score <= best_) return;
      found_ = true;
      best_ = score;
      best_chosen_ = chosen_;
      return;
    }
    const Level& level = levels_[at];
    if (found_ && score + level.bound <= best_) return;
    if (level.need > static_cast<unsigned>(std::popcount(free))) return;
    for (unsigned count = level.least; count <= level.most; ++count) {
      Pool left = pool;
      if (!left.take(level.each, count)) return;
      chosen_[at].clear();
      choose(at, 0, count, free, left, score);
    }
  }

  // `count` more spots of the level's, from `from` on.
  void choose(std::size_t at, std::size_t from, unsigned count, Slices free, const Pool& pool,
              const Score& score) {
    if (count == 0) return leave(at, free, pool, score);
    const auto& spots = levels_[at].spots;
    for (std::size_t i = from; i + count <= spots.size(); ++i) {
      if ((spots[i].mask & ~free) != 0) continue;
      chosen_[at].push_back(&spots[i]);
      choose(at, i + 1, count - 1, free & ~spots[i].mask, pool, score);
      chosen_[at].pop_back();
    }
  }

  void leave(std::size_t at, Slices free, const Pool& pool, Score score) {
    const Level& level = levels_[at];
    score.fewer -= static_cast<int>(chosen_[at].size());
    for (const Spot* spot : chosen_[at]) {
      if (spot->there == nullptr) continue;
      ++score.kept;
      if (!level.whole) continue;
      const auto& compute = spot->there->compute;
      const bool keeps = std::ranges::any_of(compute, [&](const auto& item) {
        return compute_slices(*level.profile, item.profile) == level.profile->slices;
      });
      if (keeps) ++score.kept_compute;
      if (!spot->there->holders.empty() && compute.size() == (keeps ? 1u : 0u)) ++score.intact;
    }
    if (!level.whole) {
      const auto fit = fit_of(at, chosen_[at]);
      if (!fit) return;
      score.intact += fit->intact;
      score.kept_compute += fit->kept;
    }
    enter(at + 1, free, pool, score);
  }

  // The level's compute instances in the GPU instances at `spots`: those that are there first.
  std::optional<ComputeFit> fit_of(std::size_t at, const std::vector<const Spot*>& spots) const {
    std::vector<const GpuInstance*> there;
    for (const Spot* spot : spots) {
      if (spot->there != nullptr) there.push_back(spot->there);
    }
    const auto fresh = static_cast<unsigned>(spots.size() - there.size());
    return fit_compute(*levels_[at].profile, levels_[at].parts, there, fresh);
  }

  Packing packing() const {
    Packing packing;
    packing.intact = best_.intact;
    for (std::size_t at = 0; at < levels_.size(); ++at) {
      auto fit = fit_of(at, best_chosen_[at]);
      if (!fit) continue;  // it was there when the packing was found
      std::size_t old = 0;
      auto fresh = static_cast<std::size_t>(
          std::ranges::count_if(best_chosen_[at], [](const Spot* spot) { return spot->there != nullptr; }));
      for (const Spot* spot : best_chosen_[at]) {
        auto& compute = fit->instances[spot->there != nullptr ? old++ : fresh++];
        packing.instances.push_back({levels_[at].profile, spot->placement, spot->there, std::move(compute)});
      }
    }
    std::ranges::sort(packing.instances, {}, &Packing::Instance::placement);
    return packing;
  }

  std::vector<Level> levels_;
  Slices free_ = 0;
  Pool pool_;
  std::vector<std::vector<const Spot*>> chosen_, best_chosen_;
  Score best_;
  bool found_ = false;
};

}  // namespace

std::optional<Packing> pack(const State& state, const std::vector<Request>& requests,
                            const std::vector<GpuInstance>& there) {
  return Search(state, requests, there).best();
}

}  // namespace gpulet::mig
