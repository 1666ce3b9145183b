#include "mig/compute_fit.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "mig/layout.h"

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

// Puts `make[from...]` on slices that are not `taken`: the lowest places, by backtracking.
bool place(const Profile& profile, Slices taken, std::size_t from, std::vector<ComputeFit::New>& make) {
  if (from == make.size()) return true;
  for (const auto& candidate : *placements_of(profile, make[from].slices)) {
    if ((slices_at(candidate) & taken) != 0) continue;
    make[from].placement = candidate;
    if (place(profile, taken | slices_at(candidate), from + 1, make)) return true;
  }
  make[from].placement.reset();
  return false;
}

class Fit {
 public:
  Fit(const Profile& profile, const Parts& parts, const std::vector<const GpuInstance*>& there,
      unsigned fresh)
      : profile_(profile),
        there_(there),
        wanted_(parts),
        bins_(there.size() + fresh),
        taken_(bins_.size()),
        in_use_(static_cast<unsigned>(
            std::ranges::count_if(there, [](const auto* i) { return !i->holders.empty(); }))) {}

  std::optional<ComputeFit> best() {
    choose(0, 0, 0, 0);
    return std::move(best_);
  }

 private:
  unsigned slices_of(const ComputeInstance& compute) const {
    const auto slices = compute_slices(profile_, compute.profile).value_or(0);
    return slices < wanted_.size() ? slices : 0;
  }

  // Of what stays in the GPU instances from `index` on, item by item; then the rest is distributed.
  void choose(std::size_t index, std::size_t item, unsigned intact, unsigned kept) {
    if (done_) return;
    if (index == there_.size()) return distribute(intact, kept);
    const auto& compute = there_[index]->compute;
    if (item == compute.size()) {
      const bool whole = bins_[index].keep.size() == compute.size();
      return choose(index + 1, 0, intact + (whole && !there_[index]->holders.empty() ? 1 : 0), kept);
    }
    const unsigned slices = slices_of(compute[item]);
    if (slices != 0 && wanted_[slices] != 0) {
      --wanted_[slices];
      bins_[index].keep.push_back(item);
      taken_[index] += slices;
      choose(index, item + 1, intact, kept + 1);
      taken_[index] -= slices;
      bins_[index].keep.pop_back();
      ++wanted_[slices];
    }
    choose(index, item + 1, intact, kept);
  }

  void distribute(unsigned intact, unsigned kept) {
    if (best_ && std::pair(intact, kept) <= std::pair(best_->intact, best_->kept)) return;
    for (auto& bin : bins_) bin.make.clear();
    if (!put(static_cast<unsigned>(wanted_.size()) - 1, 0, wanted_)) return;
    best_ = ComputeFit{intact, kept, bins_};
    for (auto& bin : bins_) bin.make.clear();
    const bool all_kept = std::accumulate(wanted_.begin(), wanted_.end(), 0u) == 0;
    done_ = intact == in_use_ && all_kept;
  }

  // The parts left, largest first, equal ones into rising bins.
  bool put(unsigned slices, std::size_t from, Parts& left) {
    while (slices != 0 && left[slices] == 0) {
      --slices;
      from = 0;
    }
    if (slices == 0) return placed();
    for (std::size_t bin = from; bin < bins_.size(); ++bin) {
      if (taken_[bin] + slices > profile_.slices) continue;
      taken_[bin] += slices;
      bins_[bin].make.push_back({slices, std::nullopt});
      --left[slices];
      const bool good = put(slices, bin, left);
      ++left[slices];
      taken_[bin] -= slices;
      if (good) return true;
      bins_[bin].make.pop_back();
      // New GPU instances that are empty are all alike.
      if (bin >= there_.size() && taken_[bin] == 0) break;
    }
    return false;
  }

  bool placed() {
    for (std::size_t index = 0; index < bins_.size(); ++index) {
      auto& bin = bins_[index];
      if (bin.keep.empty() && bin.make.empty()) return false;
      bool known = std::ranges::all_of(
          bin.make, [&](const auto& part) { return placements_of(profile_, part.slices) != nullptr; });
      Slices taken = 0;
      for (const auto item : bin.keep) {
        const auto& at = there_[index]->compute[item].placement;
        known = known && at.size != 0;
        taken |= slices_at(at);
      }
      if (known && !place(profile_, taken, 0, bin.make)) return false;
    }
    return true;
  }

  const Profile& profile_;
  const std::vector<const GpuInstance*>& there_;
  Parts wanted_;
  std::vector<ComputeFit::Instance> bins_;
  std::vector<unsigned> taken_;  // compute slices in use, by bin
  unsigned in_use_;
  std::optional<ComputeFit> best_;
  bool done_ = false;
};

}  // namespace

std::optional<ComputeFit> fit_compute(const Profile& profile, const Parts& parts,
                                      const std::vector<const GpuInstance*>& there, unsigned fresh) {
  return Fit(profile, parts, there, fresh).best();
}

}  // namespace gpulet::mig
