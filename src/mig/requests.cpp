#include "mig/requests.h"

#include <algorithm>
#include <tuple>

#include "base/text.h"

namespace gpulet::mig {
namespace {

Error unknown_profile(const State& state, const ProfileName& name) {
  std::vector<std::string> names;
  for (const auto& profile : state.profiles) names.push_back(profile.name);
  std::string message = describe_gpu(state) + " has no profile " + name.instance;
  // A name of another board's is meant for the profile of as many slices, the smallest of them.
  const Profile* same = nullptr;
  for (const auto& profile : state.profiles) {
    if (profile.slices == name.slices && (same == nullptr || profile.most > same->most)) same = &profile;
  }
  auto close = text::nearest(name.instance, names);
  if (same != nullptr && (!close || find_profile(state, *close)->slices != name.slices ||
                          name.instance.find_first_of("+-") == std::string::npos)) {
    close = same->name;
  }
  message += close ? "; did you mean " + *close + "? It has " : "; it has ";
  return Error(Code::kInvalidArgument, message + text::join(names, ", "));
}

// One line of a layout, on this GPU.
struct Wanted {
  std::string name;
  const Profile* profile = nullptr;
  unsigned slices = 0;  // of the compute instance
  unsigned count = 0;
};

Result<Wanted> wanted_of(const State& state, const std::string& text, unsigned count) {
  GPULET_TRY_ASSIGN(const ProfileName name, parse_profile_name(text));
  const Profile* profile = find_profile(state, name.instance);
  if (profile == nullptr) return fail(unknown_profile(state, name));
  // What the name says of a whole one need not be what the profile has.
  const unsigned slices = name.whole() ? profile->slices : name.compute;
  std::vector<std::string> sizes;
  for (const auto& compute : profile->compute) sizes.push_back(device_name(*profile, compute.slices));
  const bool offered = sizes.empty() || std::ranges::find(profile->compute, slices,
                                                          &ComputeProfile::slices) != profile->compute.end();
  if (slices == 0 || slices > profile->slices || !offered) {
    return fail(Code::kInvalidArgument,
                describe_gpu(state) + " has no " + name.str() + "; " + text::join(sizes, ", ") + " would do");
  }
  return Wanted{name.str(), profile, slices, count};
}

Result<std::vector<Wanted>> all_wanted(const State& state, const Layout& layout) {
  std::vector<Wanted> all;
  for (const auto& [name, count] : layout.devices) {
    if (count == 0) continue;
    GPULET_TRY_ASSIGN(auto wanted, wanted_of(state, name, count));
    all.push_back(std::move(wanted));
  }
  return all;
}

void add(std::vector<Request>& requests, const Wanted& wanted, unsigned count) {
  if (count == 0) return;
  auto request = std::ranges::find(requests, wanted.profile, &Request::profile);
  if (request == requests.end()) {
    request = requests.insert(request, {wanted.profile, Parts(wanted.profile->slices + 1)});
  }
  request->parts[wanted.slices] += count;
}

// The nearest layout that fits: most kinds, then most devices, then most compute slices; of equal ones that
// with more of the kinds that come first.
class Nearest {
 public:
  Nearest(const State& state, std::vector<Wanted> wanted) : state_(state), wanted_(std::move(wanted)) {
    for (const auto& profile : state.profiles) {
      slices_ = std::max(slices_, profile.slices);
      for (const auto& place : profile.placements) memory_ = std::max(memory_, place.start + place.size);
    }
    for (auto& item : wanted_) {
      item.count = std::min(item.count, item.profile->most * (item.profile->slices / item.slices));
    }
    counts_.resize(wanted_.size());
    parts_.resize(state.profiles.size());
  }

  Layout best() {
    choose(0, {});
    Layout layout{true, {}};
    for (std::size_t i = 0; i < best_counts_.size(); ++i) {
      if (best_counts_[i] != 0) layout.devices[wanted_[i].name] = best_counts_[i];
    }
    return layout;
  }

 private:
  struct Score {
    unsigned kinds = 0, devices = 0, slices = 0;
    friend auto operator<=>(const Score&, const Score&) = default;
  };

  // Whether the GPU instances that the counts need at least are no more than the GPU.
  bool may_fit() const {
    unsigned slices = 0, memory = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i] == 0) continue;
      const Profile& profile = state_.profiles[i];
      const unsigned instances = (parts_[i] + profile.slices - 1) / profile.slices;
      slices += instances * profile.slices;
      if (!profile.placements.empty()) memory += instances * profile.placements.front().size;
    }
    return slices <= slices_ && memory <= memory_;
  }

  void choose(std::size_t at, Score score) {
    if (!may_fit()) return;
    Score bound = score;
    bound.slices = slices_;
    for (std::size_t i = at; i < wanted_.size(); ++i) {
      if (wanted_[i].count != 0) ++bound.kinds;
      bound.devices += wanted_[i].count;
    }
    if (bound <= best_) return;
    if (at == wanted_.size()) return try_it(score);
    const Wanted& item = wanted_[at];
    unsigned& parts = parts_[static_cast<std::size_t>(item.profile - state_.profiles.data())];
    for (unsigned count = item.count + 1; count-- > 0;) {
      const unsigned more = count * item.slices;
      counts_[at] = count;
      parts += more;
      choose(at + 1, {score.kinds + (count != 0 ? 1 : 0), score.devices + count, score.slices + more});
      parts -= more;
    }
  }

  void try_it(const Score& score) {
    if (score <= best_) return;
    std::vector<Request> requests;
    for (std::size_t i = 0; i < wanted_.size(); ++i) add(requests, wanted_[i], counts_[i]);
    if (!pack(state_, requests, {})) return;
    best_ = score;
    best_counts_ = counts_;
  }

  const State& state_;
  std::vector<Wanted> wanted_;
  unsigned slices_ = 0, memory_ = 0;            // the GPU's
  std::vector<unsigned> counts_, best_counts_;  // by wanted_
  std::vector<unsigned> parts_;                 // compute slices, by State::profiles
  Score best_;
};

}  // namespace

Result<std::vector<Request>> requests_of(const State& state, const Layout& layout) {
  GPULET_TRY_ASSIGN(const auto all, all_wanted(state, layout));
  std::vector<Request> requests;
  for (const auto& wanted : all) add(requests, wanted, wanted.count);
  return requests;
}

Error does_not_fit(const State& state, const Layout& layout) {
  const auto all = all_wanted(state, layout);
  const Layout nearest = all ? Nearest(state, *all).best() : Layout{true, {}};
  std::string message = describe(layout) + " do not fit on " + describe_gpu(state);
  message +=
      nearest.devices.empty() ? "; nor does any part of it" : "; the nearest that does: " + describe(nearest);
  return Error(Code::kInvalidArgument, message);
}

}  // namespace gpulet::mig
