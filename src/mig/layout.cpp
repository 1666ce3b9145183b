#include "mig/layout.h"

#include <algorithm>
#include <vector>

#include "base/text.h"

namespace gpulet::mig {
namespace {

constexpr unsigned kMostSlices = 64;
constexpr unsigned kMostGigabytes = 100'000;

// "7g" with unit "g": 7. Errors say the part.
Result<unsigned> take_number(std::string_view part, std::string_view unit, std::string_view meaning,
                             unsigned most) {
  const auto refused = [&](const std::string& what) {
    return fail(Code::kInvalidArgument, what + " in '" + std::string(part) + "'; a number from 1 and '" +
                                            std::string(unit) + "' would do (" + std::string(meaning) + ")");
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
                                              "' is malformed; me, me.all or gfx would do");
    }
    first = separator;
  }
  if (first) return fail(Code::kInvalidArgument, "an empty attribute; me, me.all or gfx would do");
  return {};
}

Result<ProfileName> parse(std::string_view text) {
  const auto sign = text.find_first_of("+-");
  const auto fields = text::split(text.substr(0, sign), '.');
  if (fields.size() != 2 && fields.size() != 3) {
    return fail(Code::kInvalidArgument,
                "has " + std::to_string(fields.size()) +
                    " parts between dots; two or three would do, as 1g.10gb or 1c.2g.20gb");
  }
  const std::size_t at = fields.size() - 2;
  ProfileName name;
  GPULET_TRY_ASSIGN(name.slices, take_number(fields[at], "g", "slices of the GPU instance", kMostSlices));
  GPULET_TRY_ASSIGN(name.gigabytes, take_number(fields[at + 1], "gb", "its memory", kMostGigabytes));
  name.compute = name.slices;
  if (at == 1) {
    GPULET_TRY_ASSIGN(name.compute,
                      take_number(fields[0], "c", "slices of the compute instance", kMostSlices));
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

std::string ProfileName::str() const {
  return whole() ? instance : std::to_string(compute) + "c." + instance;
}

Result<ProfileName> parse_profile_name(std::string_view text) {
  if (text.empty()) return fail(Code::kInvalidArgument, "an empty profile name; 1g.10gb would do");
  auto name = parse(text);
  if (!name) {
    return fail(name.error().with("profile '" + std::string(text.substr(0, 64)) + "'"));
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

Layout layout_now(const State& state) {
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

std::string describe(const Layout& layout) {
  if (!layout.enabled) return "MIG disabled";
  std::string text;
  for (const auto& [name, count] : layout.devices) {
    text += (text.empty() ? "" : " + ") + std::to_string(count) + " \u00d7 " + name;
  }
  return text.empty() ? "no instances" : text;
}

std::string at(const Placement& place) {
  const std::string first = std::to_string(place.start);
  return place.size <= 1 ? "at " + first : "at " + first + "-" + std::to_string(place.start + place.size - 1);
}

std::string describe_gpu(const State& state) {
  return "GPU " + std::to_string(state.index) + " (" + state.model + ")";
}

}  // namespace gpulet::mig
