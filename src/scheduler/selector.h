// Match expressions over what is known of a device, in the form of Node Feature Discovery's rules: an
// attribute, an operator, values. Pure. Source: NFD, NodeFeatureRule "matchExpressions": In, NotIn, InRegexp,
// Exists, DoesNotExist, Gt, Lt, GtLt, IsTrue, IsFalse.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::scheduler {

inline constexpr std::size_t kMaxSelectorBytes = 4096;
inline constexpr std::size_t kMaxExpressions = 32;
inline constexpr std::size_t kMaxValues = 64;

// What an expression may ask about. A number is compared as a number, a version part by part, a text in any
// case.
enum class Attribute { kModel, kArchitecture, kMemory, kCompute, kDriver, kCuda, kMig, kShares, kNuma };
// NFD's InRegexp is not taken: an expression of a stranger would choose how long a decision takes.
enum class Operator { kIn, kNotIn, kExists, kDoesNotExist, kGt, kLt, kGtLt, kIsTrue, kIsFalse };

struct Expression {
  Attribute attribute{};
  Operator op{};
  std::vector<std::string> values;
  // `memory Gt 40000`
  std::string text() const;
  friend bool operator==(const Expression&, const Expression&) = default;
};

// A device as expressions see it.
struct Attributes {
  std::string_view model, architecture;
  std::uint64_t memory_mib = 0;
  std::string compute;  // "9.0"
  std::string_view driver;
  std::string cuda;              // "12.8"
  std::string_view mig_profile;  // empty: a whole GPU
  unsigned shares = 1;           // that the device is offered as
  int numa = -1;                 // not known
};

// {"memory": {"op": "Gt", "value": ["40000"]}, "architecture": {"op": "In", "value": ["hopper"]}}; all must
// hold. Errors: kInvalidArgument, naming the attribute or operator and what is accepted.
Result<std::vector<Expression>> parse_selector(std::string_view json);

bool matches(const Expression& expression, const Attributes& device);

// -1, 0 or 1: part by part as numbers, a missing part as 0. What is no number counts as 0.
int compare_versions(std::string_view a, std::string_view b);

// Whether `wanted` ("H100", "H100 PCIe", "Tesla-T4") is whole words of `name`, in any case; blanks, '-' and
// '_' part words.
bool names_model(std::string_view wanted, std::string_view name);

}  // namespace gpulet::scheduler
