#include "doctor/archive.h"

#include <array>
#include <cstdio>

namespace gpulet::doctor {
namespace {

constexpr std::size_t kBlock = 512;

// The fields of a header: where each is, and how long.
struct Field {
  std::size_t at, size;
};
constexpr Field kName{0, 100}, kMode{100, 8}, kUser{108, 8}, kGroup{116, 8}, kSize{124, 12}, kTime{136, 12},
    kChecksum{148, 8}, kType{156, 1}, kMagic{257, 8}, kUserName{265, 32}, kGroupName{297, 32},
    kPrefix{345, 155};

using Header = std::array<char, kBlock>;

void put(Header& header, Field field, std::string_view text) {
  text.copy(header.data() + field.at, field.size);
}

// Octal, zeroes before it and a zero byte behind.
void put_number(Header& header, Field field, unsigned long long value) {
  char text[24];
  std::snprintf(text, sizeof text, "%0*llo", static_cast<int>(field.size) - 1, value);
  put(header, field, text);
}

// How much of a name stands in the prefix, without the slash behind it; npos for one that fits nowhere.
std::size_t prefix_of(const std::string& name) {
  if (name.empty()) return std::string::npos;
  if (name.size() <= kName.size) return 0;
  const auto slash = name.find('/', name.size() - kName.size - 1);
  return slash == 0 || slash > kPrefix.size ? std::string::npos : slash;
}

Header header_of(const ArchiveFile& file, std::size_t prefix, long long seconds) {
  Header header{};
  put(header, kName, std::string_view(file.name).substr(prefix == 0 ? 0 : prefix + 1));
  put(header, kPrefix, std::string_view(file.name).substr(0, prefix));
  put_number(header, kMode, 0600);
  put_number(header, kUser, 0);
  put_number(header, kGroup, 0);
  put_number(header, kSize, file.content.size());
  put_number(header, kTime, static_cast<unsigned long long>(seconds > 0 ? seconds : 0));
  put(header, kType, "0");
  put(header, kMagic,
      std::string_view("ustar\0"
                       "00",
                       8));
  put(header, kUserName, "root");
  put(header, kGroupName, "root");
  put(header, kChecksum, std::string(kChecksum.size, ' '));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  char text[9];
  std::snprintf(text, sizeof text, "%06o", sum);
  put(header, kChecksum, std::string_view(text, 7));  // with its zero byte, then the blank that is there
  return header;
}

}  // namespace

Result<std::string> tar_of(const std::vector<ArchiveFile>& files, std::chrono::system_clock::time_point at) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at.time_since_epoch()).count();
  std::string archive;
  for (const auto& file : files) {
    const auto prefix = prefix_of(file.name);
    if (prefix == std::string::npos)
      return fail(Code::kInvalidArgument, "is no name for an archive: 1 to 100 bytes would do", file.name);
    const auto header = header_of(file, prefix, seconds);
    archive.append(header.data(), header.size());
    archive += file.content;
    archive.append((kBlock - file.content.size() % kBlock) % kBlock, '\0');
  }
  archive.append(2 * kBlock, '\0');
  return archive;
}

}  // namespace gpulet::doctor
