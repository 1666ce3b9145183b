// Every text that another library takes as JSON is read without an error, and values are returned as written.
#include <cstdint>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const bool deep = exceeds_nesting(text);
  JsonReader reader(text);
  const auto value = reader.skip_value();
  const bool valid = reader.finish().has_value();
  const bool marked = text.starts_with("\xEF\xBB\xBF");  // a byte order mark, which the library skips
  if (!marked && !parse_json(text).is_discarded() && !valid) std::abort();
  if (valid && (deep || text.find(value) == std::string_view::npos)) std::abort();
  // Entering everything passes the same text.
  JsonReader walker(text);
  std::size_t open = 0, steps = 0;
  std::string kinds;
  do {
    if (++steps > 2 * size + 2) std::abort();
    if (walker.enter_object()) {
      kinds += '{';
    } else if (walker.enter_array()) {
      kinds += '[';
    } else {
      walker.skip_value();
    }
    for (std::string_view key; !kinds.empty(); kinds.pop_back()) {
      if (kinds.back() == '{' ? walker.next_member(key) : walker.next_item()) break;
    }
    open = kinds.size();
  } while (open > 0);
  if (walker.finish().has_value() != valid) std::abort();
  std::string quoted;
  append_json_string(quoted, text);
  JsonReader string(quoted);
  string.skip_value();
  if (!string.finish()) std::abort();
  return 0;
}
