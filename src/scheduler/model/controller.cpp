#include "scheduler/model/controller.h"

#include <algorithm>

namespace gpulet::scheduler {
namespace {

constexpr std::string_view kRandomLetters = "bcdfghjklmnpqrstvwxz2456789";
constexpr std::size_t kRandomSize = 5;
// A number of 32 bits, digit by digit in these letters.
constexpr std::string_view kHashLetters = "456789bcdf";
constexpr std::size_t kMaxHashSize = 10;
constexpr std::string_view kIndexDigits = "0123456789";

// Whether `name` ends in '-' and letters of `letters`, of `least` to `most`; removes them then.
bool remove_suffix(std::string_view& name, std::string_view letters, std::size_t least, std::size_t most) {
  const auto dash = name.rfind('-');
  if (dash == std::string_view::npos || dash == 0) return false;
  const std::string_view suffix = name.substr(dash + 1);
  if (suffix.size() < least || suffix.size() > most) return false;
  if (suffix.find_first_not_of(letters) != std::string_view::npos) return false;
  name = name.substr(0, dash);
  return true;
}

}  // namespace

std::string controller_of_pod(std::string_view pod) {
  const auto slash = pod.find('/');
  const std::size_t start = slash == std::string_view::npos ? 0 : slash + 1;
  std::string_view name = pod.substr(start);
  const bool random = remove_suffix(name, kRandomLetters, kRandomSize, kRandomSize);
  // A Deployment's own name may end in a number: it stays.
  if (!random || !remove_suffix(name, kHashLetters, 1, kMaxHashSize))
    remove_suffix(name, kIndexDigits, 1, kIndexDigits.size());
  return std::string(pod.substr(0, start)).append(name);
}

}  // namespace gpulet::scheduler
