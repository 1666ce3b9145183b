#include "mig/layout.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/text.h"
#include "mig/layout_file.h"
#include "mig/plan.h"

namespace gpulet::mig {
namespace {

constexpr unsigned kMaxSlices = 64;
constexpr unsigned kMaxGigabytes = 100'000;

// "7g" with unit "g": 7. Errors name the part.
Result<unsigned> parse_number_prefix(std::string_view part, std::string_view unit, std::string_view meaning,
                                     unsigned most) {
  const auto refused = [&](const std::string& what) {
    return fail(Code::kInvalidArgument, what + " in '" + std::string(part) +
                                            "'; expected a number from 1 and '" + std::string(unit) + "' (" +
                                            std::string(meaning) + ")");
  };
  if (part.size() < unit.size() || part.substr(part.size() - unit.size()) != unit) {
    return refused("'" + std::string(unit) + "' is missing");
  }
  const auto digits = part.substr(0, part.size() - unit.size());
  const auto number = text::parse_unsigned(digits);
  if (!number || digits.front() == '0' || *number > most) return refused("no number");
  return static_cast<unsigned>(*number);
}

// "me", "me.all", "gfx": letters and digits, the first a letter, in parts between dots and commas.
Status check_attributes(std::string_view attributes) {
  bool first = true;
  for (const char c : attributes) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool digit = c >= '0' && c <= '9';
    const bool separator = c == '.' || c == ',';
    if (first ? !letter : !letter && !digit && !separator) {
      return fail(Code::kInvalidArgument, "attribute '" + std::string(attributes.substr(0, 64)) +
                                              "' is malformed; expected me, me.all or gfx");
    }
    first = separator;
  }
  if (first) return fail(Code::kInvalidArgument, "an empty attribute; expected me, me.all or gfx");
  return {};
}

Result<ProfileName> parse_parts(std::string_view text) {
  const auto sign = text.find_first_of("+-");
  const auto fields = text::split(text.substr(0, sign), '.');
  if (fields.size() != 2 && fields.size() != 3) {
    return fail(Code::kInvalidArgument,
                "has " + std::to_string(fields.size()) +
                    " parts between dots; expected two or three, as in 1g.10gb or 1c.2g.20gb");
  }
  const std::size_t at = fields.size() - 2;
  ProfileName name;
  GPULET_TRY_ASSIGN(name.slices,
                    parse_number_prefix(fields[at], "g", "slices of the GPU instance", kMaxSlices));
  GPULET_TRY_ASSIGN(name.gigabytes, parse_number_prefix(fields[at + 1], "gb", "its memory", kMaxGigabytes));
  name.compute = name.slices;
  if (at == 1) {
    GPULET_TRY_ASSIGN(name.compute,
                      parse_number_prefix(fields[0], "c", "slices of the compute instance", kMaxSlices));
  }
  if (name.compute > name.slices) {
    return fail(Code::kInvalidArgument, std::to_string(name.compute) + "c is more than the " +
                                            std::to_string(name.slices) + "g that it is part of");
  }
  if (sign != std::string_view::npos) GPULET_TRY(check_attributes(text.substr(sign + 1)));
  name.instance = fields[at] + "." + fields[at + 1];
  if (sign != std::string_view::npos) name.instance += text.substr(sign);
  return name;
}

}  // namespace

std::string ProfileName::canonical_name() const {
  return is_whole() ? instance : std::to_string(compute) + "c." + instance;
}

Result<ProfileName> parse_profile_name(std::string_view text) {
  if (text.empty())
    return fail(Code::kInvalidArgument, "an empty profile name; expected one such as 1g.10gb");
  auto name = parse_parts(text);
  if (!name) {
    return fail(name.error().with_context("profile '" + std::string(text.substr(0, 64)) + "'"));
  }
  return name;
}

std::string device_name(const Profile& profile, unsigned slices) {
  return slices == profile.slices ? profile.name : std::to_string(slices) + "c." + profile.name;
}

const Profile* find_profile(const State& state, unsigned id) {
  const auto found = std::ranges::find(state.profiles, id, &Profile::id);
  return found == state.profiles.end() ? nullptr : &*found;
}

const Profile* find_profile(const State& state, std::string_view name) {
  const auto found = std::ranges::find(state.profiles, name, &Profile::name);
  return found == state.profiles.end() ? nullptr : &*found;
}

std::optional<unsigned> compute_slices(const Profile& profile, unsigned compute_profile) {
  const auto found = std::ranges::find(profile.compute, compute_profile, &ComputeProfile::id);
  if (found == profile.compute.end()) return std::nullopt;
  return found->slices;
}

Layout current_layout(const State& state) {
  Layout layout;
  layout.enabled = state.enabled;
  if (!state.enabled) return layout;
  for (const auto& instance : state.instances) {
    const Profile* profile = find_profile(state, instance.profile);
    for (const auto& compute : instance.compute) {
      const auto slices = profile == nullptr ? std::nullopt : compute_slices(*profile, compute.profile);
      const std::string name = slices ? device_name(*profile, *slices)
                                      : "compute profile " + std::to_string(compute.profile) +
                                            " of profile " + std::to_string(instance.profile);
      ++layout.devices[name];
    }
  }
  return layout;
}

std::string layout_text(const Layout& layout) {
  if (!layout.enabled) return "MIG disabled";
  std::string text;
  for (const auto& [name, count] : layout.devices) {
    text += (text.empty() ? "" : " + ") + std::to_string(count) + " \u00d7 " + name;
  }
  return text.empty() ? "no instances" : text;
}

std::string placement_text(const Placement& place) {
  const std::string first = std::to_string(place.start);
  return place.size <= 1 ? "at " + first : "at " + first + "-" + std::to_string(place.start + place.size - 1);
}

std::string describe_gpu(const State& state) {
  return "GPU " + std::to_string(state.index) + " (" + state.model + ")";
}

namespace {

// A profile without attributes: neither "+me" nor "-me".
bool label_safe(const Profile& profile) { return profile.name.find_first_of("+-") == std::string::npos; }

// The profile without attributes of that many slices with the most instances, which is the
// smallest.
const Profile* smallest(const State& gpu, unsigned slices) {
  const Profile* best = nullptr;
  for (const auto& profile : gpu.profiles) {
    if (!label_safe(profile) || profile.slices != slices) continue;
    if (best == nullptr || profile.max_instances > best->max_instances) best = &profile;
  }
  return best;
}

std::optional<Layout> balanced(const State& gpu) {
  unsigned slices = 0;
  for (const auto& profile : gpu.profiles) slices = std::max(slices, profile.slices);
  std::vector<std::pair<unsigned, unsigned>> counts;  // slices, how many
  if (slices == 7) counts = {{1, 2}, {2, 1}, {3, 1}};
  if (slices == 4) counts = {{1, 2}, {2, 1}};
  if (counts.empty()) return std::nullopt;
  Layout layout{true, {}};
  for (const auto& [size, count] : counts) {
    const Profile* profile = smallest(gpu, size);
    if (profile == nullptr) return std::nullopt;
    layout.devices[profile->name] = count;
  }
  return layout;
}

bool fits(State gpu, const Layout& layout) {
  gpu.enabled = true;
  gpu.pending.reset();
  gpu.instances.clear();
  return make_plan(gpu, layout).has_value();
}

}  // namespace

std::vector<NamedLayout> derive_layouts(const State& gpu) {
  std::vector<NamedLayout> layouts = {{"all-disabled", {}}};
  if (!gpu.capable) return layouts;
  layouts.push_back({"all-enabled", {true, {}}});
  if (auto layout = balanced(gpu); layout && fits(gpu, *layout)) {
    layouts.push_back({"all-balanced", std::move(*layout)});
  }
  for (const auto& profile : gpu.profiles) {
    std::string name = "all-" + profile.name;
    std::ranges::replace(name, '+', '.');
    // A profile's maximum alone may disagree with its placements, so count what really fits.
    for (unsigned count = profile.max_instances; count != 0; --count) {
      Layout layout{true, {{profile.name, count}}};
      if (!fits(gpu, layout)) continue;
      layouts.push_back({std::move(name), std::move(layout)});
      break;
    }
  }
  std::ranges::sort(layouts, {}, &NamedLayout::name);
  return layouts;
}

Result<std::vector<std::optional<Layout>>> derived_layouts(std::string_view name,
                                                           std::span<const State> gpus) {
  std::vector<std::optional<Layout>> result(gpus.size());
  std::set<std::string> names;
  bool found = false;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    for (auto& [own, layout] : derive_layouts(gpus[i])) {
      names.insert(own);
      if (own != name) continue;
      result[i] = std::move(layout);
      found = true;
    }
  }
  if (found) return result;
  return fail(unknown_config(name, "the layouts of this node's GPUs", {names.begin(), names.end()}));
}

}  // namespace gpulet::mig
