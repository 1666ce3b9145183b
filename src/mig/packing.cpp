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

Slices slices_at(const Placement& place) {
  if (place.size == 0 || place.size >= 64 || place.start >= 64) return place.size == 0 ? 0 : ~Slices{0};
  return ((Slices{1} << place.size) - 1) << place.start;
}

const std::vector<Placement>* placements_of(const Profile& profile, unsigned slices) {
  const auto found = std::ranges::find(profile.compute, slices, &ComputeProfile::slices);
  return found == profile.compute.end() || found->placements.empty() ? nullptr : &found->placements;
}

// Puts `make[from...]` on free slices, at the lowest places, by backtracking.
bool try_placement(const Profile& profile, Slices used, std::size_t from,
                   std::vector<ComputeFit::NewPart>& make) {
  if (from == make.size()) return true;
  for (const auto& candidate : *placements_of(profile, make[from].slices)) {
    if ((slices_at(candidate) & used) != 0) continue;
    make[from].placement = candidate;
    if (try_placement(profile, used | slices_at(candidate), from + 1, make)) return true;
  }
  make[from].placement.reset();
  return false;
}

class ComputeFitSearch {
 public:
  ComputeFitSearch(const Profile& profile, const SliceCounts& parts,
                   const std::vector<const GpuInstance*>& existing, unsigned fresh)
      : profile_(profile),
        existing_(existing),
        requested_(parts),
        bins_(existing.size() + fresh),
        taken_(bins_.size()),
        in_use_(static_cast<unsigned>(
            std::ranges::count_if(existing, [](const auto* i) { return !i->holders.empty(); }))) {}

  std::optional<ComputeFit> best_fit() {
    choose_kept(0, 0, 0, 0);
    return std::move(best_);
  }

 private:
  unsigned slices_of(const ComputeInstance& compute) const {
    const auto slices = compute_slices(profile_, compute.profile).value_or(0);
    return slices < requested_.size() ? slices : 0;
  }

  // Chooses what is kept in the GPU instances from `index` on, item by item; then distributes the
  // rest.
  void choose_kept(std::size_t index, std::size_t item, unsigned intact, unsigned kept) {
    if (done_) return;
    if (index == existing_.size()) return distribute(intact, kept);
    const auto& compute = existing_[index]->compute;
    if (item == compute.size()) {
      const bool whole = bins_[index].keep.size() == compute.size();
      return choose_kept(index + 1, 0, intact + (whole && !existing_[index]->holders.empty() ? 1 : 0), kept);
    }
    const unsigned slices = slices_of(compute[item]);
    if (slices != 0 && requested_[slices] != 0) {
      --requested_[slices];
      bins_[index].keep.push_back(item);
      taken_[index] += slices;
      choose_kept(index, item + 1, intact, kept + 1);
      taken_[index] -= slices;
      bins_[index].keep.pop_back();
      ++requested_[slices];
    }
    choose_kept(index, item + 1, intact, kept);
  }

  void distribute(unsigned intact, unsigned kept) {
    if (best_ && std::pair(intact, kept) <= std::pair(best_->intact, best_->kept)) return;
    for (auto& bin : bins_) bin.create.clear();
    if (!put_part(static_cast<unsigned>(requested_.size()) - 1, 0, requested_)) return;
    best_ = ComputeFit{intact, kept, bins_};
    for (auto& bin : bins_) bin.create.clear();
    const bool all_kept = std::accumulate(requested_.begin(), requested_.end(), 0u) == 0;
    done_ = intact == in_use_ && all_kept;
  }

  // Distributes the remaining parts, largest first, equal ones into rising bins.
  bool put_part(unsigned slices, std::size_t from, SliceCounts& left) {
    while (slices != 0 && left[slices] == 0) {
      --slices;
      from = 0;
    }
    if (slices == 0) return placed();
    for (std::size_t bin = from; bin < bins_.size(); ++bin) {
      if (taken_[bin] + slices > profile_.slices) continue;
      taken_[bin] += slices;
      bins_[bin].create.push_back({slices, std::nullopt});
      --left[slices];
      const bool good = put_part(slices, bin, left);
      ++left[slices];
      taken_[bin] -= slices;
      if (good) return true;
      bins_[bin].create.pop_back();
      // Empty new GPU instances are interchangeable.
      if (bin >= existing_.size() && taken_[bin] == 0) break;
    }
    return false;
  }

  bool placed() {
    for (std::size_t index = 0; index < bins_.size(); ++index) {
      auto& bin = bins_[index];
      if (bin.keep.empty() && bin.create.empty()) return false;
      bool known = std::ranges::all_of(
          bin.create, [&](const auto& part) { return placements_of(profile_, part.slices) != nullptr; });
      Slices used = 0;
      for (const auto item : bin.keep) {
        const auto& at = existing_[index]->compute[item].placement;
        known = known && at.size != 0;
        used |= slices_at(at);
      }
      if (known && !try_placement(profile_, used, 0, bin.create)) return false;
    }
    return true;
  }

  const Profile& profile_;
  const std::vector<const GpuInstance*>& existing_;
  SliceCounts requested_;
  std::vector<ComputeFit::Instance> bins_;
  std::vector<unsigned> taken_;  // compute slices in use, by bin
  unsigned in_use_;
  std::optional<ComputeFit> best_;
  bool done_ = false;
};

}  // namespace

std::optional<ComputeFit> fit_compute(const Profile& profile, const SliceCounts& parts,
                                      const std::vector<const GpuInstance*>& existing, unsigned fresh) {
  return ComputeFitSearch(profile, parts, existing, fresh).best_fit();
}

namespace {

using Slices = std::uint64_t;

// nullopt for a placement that is on no GPU.
std::optional<Slices> mask_of(const Placement& place) {
  if (place.size == 0 || place.size > kMaxMemorySlices || place.start > kMaxMemorySlices - place.size) {
    return std::nullopt;
  }
  return (~Slices{0} >> (kMaxMemorySlices - place.size)) << place.start;
}

// Resources of a GPU besides memory slices.
struct Pool {
  unsigned compute = 0, decoders = 0, encoders = 0, jpegs = 0, ofas = 0;

  static Pool pool_of(const Profile& profile) {
    const Engines& e = profile.engines;
    return {profile.slices, e.decoders, e.encoders, e.jpegs, e.ofas};
  }
  void grow_to(const Pool& other) {
    for (const auto member : kMembers) this->*member = std::max(this->*member, other.*member);
  }
  // Returns false, half reserved, if there is not enough.
  bool reserve_resources(const Pool& each, unsigned count) {
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
  int fewer = 0;  // minus the number of GPU instances
  unsigned kept = 0;
  friend auto operator<=>(const Score&, const Score&) = default;
  friend Score operator+(const Score& a, const Score& b) {
    return {a.intact + b.intact, a.kept_compute + b.kept_compute, a.fewer + b.fewer, a.kept + b.kept};
  }
};

struct Slot {
  Placement placement;
  Slices mask = 0;
  const GpuInstance* existing = nullptr;
};

// One request in the search.
struct Level {
  const Profile* profile = nullptr;
  SliceCounts parts;
  bool whole = false;  // all compute instances have all slices, one in each GPU instance
  unsigned min_instances = 0, max_instances = 0;  // GPU instances
  Pool each;
  unsigned size = 0;  // memory slices
  std::vector<Slot> slots;
  // Upper bound of what this level and all later ones can add, and the memory slices that they
  // need.
  Score bound;
  unsigned need = 0;
};

class PackingSearch {
 public:
  PackingSearch(const State& state, const std::vector<Request>& requests,
                const std::vector<GpuInstance>& existing) {
    for (const auto& profile : state.profiles) {
      pool_.grow_to(Pool::pool_of(profile));
      for (const auto& place : profile.placements) free_ |= mask_of(place).value_or(0);
    }
    for (const auto& instance : existing) free_ |= mask_of(instance.placement).value_or(0);
    for (const auto& request : requests) levels_.push_back(level_of(request, existing));
    // Larger profiles have fewer placements, and get the lowest first.
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

  std::optional<Packing> best_packing() {
    const bool possible = std::ranges::all_of(levels_, [](const Level& level) {
      return level.min_instances != 0 && level.min_instances <= level.max_instances &&
             level.min_instances <= level.slots.size();
    });
    if (possible) enter_level(0, free_, pool_, {});
    if (!found_) return std::nullopt;
    return packing();
  }

 private:
  static Level level_of(const Request& request, const std::vector<GpuInstance>& existing) {
    Level level;
    level.profile = request.profile;
    level.parts = request.slice_counts;
    level.each = Pool::pool_of(*request.profile);
    const unsigned devices = std::accumulate(request.slice_counts.begin(), request.slice_counts.end(), 0u);
    level.whole = request.slice_counts.back() == devices;
    level.max_instances = std::min(devices, request.profile->max_instances);
    level.min_instances = level.whole ? devices : least_instances(request, devices);
    for (const auto& place : request.profile->placements) {
      if (const auto mask = mask_of(place)) level.slots.push_back({place, *mask, nullptr});
      level.size = std::max(level.size, place.size);
    }
    SliceCounts left = request.slice_counts;
    unsigned with_holders = 0, same = 0, compute = 0;
    for (const auto& instance : existing) {
      if (instance.profile != request.profile->id) continue;
      // The driver's own placement is valid even if the driver does not list it.
      auto spot = std::ranges::find(level.slots, instance.placement, &Slot::placement);
      if (spot == level.slots.end() && mask_of(instance.placement)) {
        spot = level.slots.insert(spot, {instance.placement, *mask_of(instance.placement), nullptr});
      }
      if (spot == level.slots.end()) continue;
      spot->existing = &instance;
      ++same;
      if (!instance.holders.empty()) ++with_holders;
      for (const auto& item : instance.compute) {
        const auto slices = compute_slices(*request.profile, item.profile).value_or(0);
        if (slices >= left.size() || left[slices] == 0) continue;
        --left[slices];
        ++compute;
      }
    }
    std::ranges::sort(level.slots, {}, &Slot::placement);
    level.bound = {std::min(with_holders, level.max_instances), compute,
                   -static_cast<int>(level.min_instances), std::min(same, level.max_instances)};
    level.need = level.min_instances * level.size;
    return level;
  }

  // The fewest GPU instances that hold the parts; more than the number of parts if nothing holds
  // them.
  static unsigned least_instances(const Request& request, unsigned devices) {
    unsigned slices = 0;
    for (std::size_t size = 0; size < request.slice_counts.size(); ++size) {
      slices += static_cast<unsigned>(size) * request.slice_counts[size];
    }
    const unsigned each = std::max(request.profile->slices, 1u);
    unsigned count = (slices + each - 1) / each;
    while (count <= request.profile->max_instances &&
           !fit_compute(*request.profile, request.slice_counts, {}, count))
      ++count;
    return count <= request.profile->max_instances ? count : devices + 1;
  }

  void enter_level(std::size_t at, Slices free, const Pool& pool, const Score& score) {
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
    for (unsigned count = level.min_instances; count <= level.max_instances; ++count) {
      Pool left = pool;
      if (!left.reserve_resources(level.each, count)) return;
      chosen_[at].clear();
      choose_instances(at, 0, count, free, left, score);
    }
  }

  // Chooses `count` more slots of the level, from `from` on.
  void choose_instances(std::size_t at, std::size_t from, unsigned count, Slices free, const Pool& pool,
                        const Score& score) {
    if (count == 0) return leave_level(at, free, pool, score);
    const auto& spots = levels_[at].slots;
    for (std::size_t i = from; i + count <= spots.size(); ++i) {
      if ((spots[i].mask & ~free) != 0) continue;
      chosen_[at].push_back(&spots[i]);
      choose_instances(at, i + 1, count - 1, free & ~spots[i].mask, pool, score);
      chosen_[at].pop_back();
    }
  }

  void leave_level(std::size_t at, Slices free, const Pool& pool, Score score) {
    const Level& level = levels_[at];
    score.fewer -= static_cast<int>(chosen_[at].size());
    for (const Slot* spot : chosen_[at]) {
      if (spot->existing == nullptr) continue;
      ++score.kept;
      if (!level.whole) continue;
      const auto& compute = spot->existing->compute;
      const bool keeps = std::ranges::any_of(compute, [&](const auto& item) {
        return compute_slices(*level.profile, item.profile) == level.profile->slices;
      });
      if (keeps) ++score.kept_compute;
      if (!spot->existing->holders.empty() && compute.size() == (keeps ? 1u : 0u)) ++score.intact;
    }
    if (!level.whole) {
      const auto fit = fit_of(at, chosen_[at]);
      if (!fit) return;
      score.intact += fit->intact;
      score.kept_compute += fit->kept;
    }
    enter_level(at + 1, free, pool, score);
  }

  // Fits the level's compute instances into the GPU instances at `slots`, existing ones first.
  std::optional<ComputeFit> fit_of(std::size_t at, const std::vector<const Slot*>& spots) const {
    std::vector<const GpuInstance*> existing;
    for (const Slot* spot : spots) {
      if (spot->existing != nullptr) existing.push_back(spot->existing);
    }
    const auto fresh = static_cast<unsigned>(spots.size() - existing.size());
    return fit_compute(*levels_[at].profile, levels_[at].parts, existing, fresh);
  }

  Packing packing() const {
    Packing packing;
    packing.intact = best_.intact;
    for (std::size_t at = 0; at < levels_.size(); ++at) {
      auto fit = fit_of(at, best_chosen_[at]);
      if (!fit) continue;  // cannot fail: this fit existed during the search
      std::size_t old = 0;
      auto fresh = static_cast<std::size_t>(std::ranges::count_if(
          best_chosen_[at], [](const Slot* spot) { return spot->existing != nullptr; }));
      for (const Slot* spot : best_chosen_[at]) {
        auto& compute = fit->instances[spot->existing != nullptr ? old++ : fresh++];
        packing.instances.push_back(
            {levels_[at].profile, spot->placement, spot->existing, std::move(compute)});
      }
    }
    std::ranges::sort(packing.instances, {}, &Packing::Instance::placement);
    return packing;
  }

  std::vector<Level> levels_;
  Slices free_ = 0;
  Pool pool_;
  std::vector<std::vector<const Slot*>> chosen_, best_chosen_;
  Score best_;
  bool found_ = false;
};

}  // namespace

std::optional<Packing> find_packing(const State& state, const std::vector<Request>& requests,
                                    const std::vector<GpuInstance>& existing) {
  return PackingSearch(state, requests, existing).best_packing();
}

}  // namespace gpulet::mig
