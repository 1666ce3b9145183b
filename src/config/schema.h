// The one table of every setting: its flag, its environment variables, its place in the file, its type, its
// default and its help. The command line is built from it, the loader reads through it, `gpulet config print`
// prints by it.
//
// Names and defaults are NVIDIA's where NVIDIA has the setting (k8s-device-plugin v0.20.0, its flags and
// api/config/v1); what it has no place in the file for, and what is our own, lives under `gpulet:`.
// `resources` and `sharing` have a structure of their own: config/sections.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config.h"

namespace gpulet::config {

enum class Kind {
  kBool,
  kString,
  kChoice,     // one of `choices`
  kChoices,    // one or more of `choices`, none twice; in the file a string or a list
  kStrings,    // a list of texts; in the environment and on the command line split at commas
  kUnsigned,   // a whole number
  kUnsigneds,  // a list of whole numbers
  kDuration,   // Go's form: "10s", "1m30s", "500ms"
  kGrace,      // how long a Pod may stay (health/moving.h): "stay", "finish", "finish=30m", "evict"
  kInterval,   // NVIDIA's form: a duration, "infinite", or a number of nanoseconds
};

// A setting's value in its plain form: kBool → bool; kString, kChoice, kUnsigned, kDuration, kGrace,
// kInterval → text; lists → texts.
using Value = std::variant<bool, std::string, std::vector<std::string>>;

struct Setting {
  std::string_view flag = {};  // without dashes; empty where there is none
  std::vector<std::string_view> flag_aliases = {};
  std::vector<std::string_view> environment = {};  // the first one that is set counts
  std::string_view path = {};  // "flags.plugin.passDeviceSpecs"; empty where the file has no place for it
  Kind kind = Kind::kString;
  std::span<const std::string_view> choices = {};
  std::string_view complaint = {};  // NVIDIA's words for a value that is none of `choices`
  // As it would be written in the environment; nullopt: unset unless given.
  std::optional<std::string_view> default_text = std::nullopt;
  std::string_view help = {};  // one line
  // What kUnsigned and kDuration may be, in milliseconds for a duration; nullopt: any number, 1 ms to a day.
  struct Bounds {
    std::uint64_t least = 0, most = 0;
  };
  std::optional<Bounds> bounds = std::nullopt;
  bool discovery_only = false;  // its flag is one of `gpu-feature-discovery` and of no other program
  // Puts a valid value in its place; empty for what is accepted for other programs' sake and has no effect
  // here.
  std::function<void(Config&, const Value&)> assign = nullptr;
};

// Every setting, grouped by section in the order in which they are printed.
std::span<const Setting> settings();

// By flag or alias, by path; null for none.
const Setting* setting_of_flag(std::string_view flag);
const Setting* setting_of_path(std::string_view path);

}  // namespace gpulet::config
