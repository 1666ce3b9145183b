#include "cdi/names.h"

namespace gpulet::cdi {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_letter_or_digit(char c) { return is_letter(c) || (c >= '0' && c <= '9'); }

Status check(const std::string& what, std::string_view text, std::string_view inner, bool letter_first) {
  const auto wrong = [&](const std::string& why) {
    return fail(Code::kInvalidArgument, what + " '" + std::string(text) + "' " + why);
  };
  if (text.empty()) return fail(Code::kInvalidArgument, "the " + what + " is empty");
  if (letter_first && !is_letter(text.front())) return wrong("does not begin with a letter");
  if (!is_letter_or_digit(text.front())) return wrong("does not begin with a letter or digit");
  for (const char c : text) {
    if (!is_letter_or_digit(c) && inner.find(c) == std::string_view::npos) {
      return wrong("may have letters, digits and " + std::string(inner) + " only");
    }
  }
  if (!is_letter_or_digit(text.back())) return wrong("does not end with a letter or digit");
  return {};
}

}  // namespace

Result<NameStrategy> parse_name_strategy(std::string_view text) {
  if (text == "index") return NameStrategy::kIndex;
  if (text == "uuid") return NameStrategy::kUuid;
  if (text == "type-index") return NameStrategy::kTypeIndex;
  return fail(Code::kInvalidArgument,
              "there is no naming of devices '" + std::string(text) + "': index, uuid or type-index");
}

std::string gpu_name(NameStrategy strategy, const inventory::Gpu& gpu) {
  if (strategy == NameStrategy::kUuid) return gpu.uuid.str();
  return (strategy == NameStrategy::kTypeIndex ? "gpu" : "") + std::to_string(gpu.index);
}

std::string mig_name(NameStrategy strategy, const inventory::Gpu& gpu, const inventory::MigDevice& mig) {
  if (strategy == NameStrategy::kUuid) return mig.uuid.str();
  return (strategy == NameStrategy::kTypeIndex ? "mig" : "") + std::to_string(gpu.index) + ":" +
         std::to_string(mig.index);
}

Status check_vendor(std::string_view vendor) { return check("vendor", vendor, "_-.", true); }
Status check_class(std::string_view device_class) { return check("class", device_class, "_-.", true); }
Status check_device_name(std::string_view name) { return check("device name", name, "_-.:", false); }

std::string qualified_name(std::string_view kind, std::string_view device) {
  return std::string(kind) + "=" + std::string(device);
}

}  // namespace gpulet::cdi
