#include "health/kmsg.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace gpulet::health {
namespace {

using inventory::PciAddress;

constexpr std::uint64_t kRecoveryActionChanged = 154;

// Reads a line from its beginning on; whatever does not fit leaves it where it was.
class Reader {
 public:
  explicit Reader(std::string_view text) : left_(text) {}
  std::string_view left() const { return left_; }

  bool take(std::string_view word) {
    if (!text::starts_with(left_, word)) return false;
    left_.remove_prefix(word.size());
    return true;
  }
  void blanks() {
    while (!left_.empty() && left_.front() == ' ') left_.remove_prefix(1);
  }
  // Up to the next `end`, which is passed over; nullopt when there is none.
  std::optional<std::string_view> until(std::string_view end) {
    const auto at = left_.find(end);
    if (at == std::string_view::npos) return std::nullopt;
    const auto taken = left_.substr(0, at);
    left_.remove_prefix(at + end.size());
    return taken;
  }
  std::optional<std::uint64_t> number(int base = 10) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(left_.data(), left_.data() + left_.size(), value, base);
    if (error != std::errc() || end == left_.data()) return std::nullopt;
    left_.remove_prefix(static_cast<std::size_t>(end - left_.data()));
    return value;
  }
  std::optional<std::uint32_t> hexadecimal() {
    auto copy = *this;
    if (!copy.take("0x")) return std::nullopt;
    const auto value = copy.number(16);
    if (!value || *value > 0xFFFFFFFF) return std::nullopt;
    *this = copy;
    return static_cast<std::uint32_t>(*value);
  }

 private:
  std::string_view left_;
};

// "PCI:0000:3b:00", "0000:3b:00.0", "0000:3b:00".
std::optional<PciAddress> parse_address(std::string_view text) {
  Reader reader(text);
  reader.take("PCI:");
  PciAddress address;
  const auto part = [&](std::uint32_t& value, std::uint64_t most) {
    const auto read = reader.number(16);
    if (!read || *read > most) return false;
    value = static_cast<std::uint32_t>(*read);
    return true;
  };
  const bool whole = part(address.domain, 0xFFFFFFFF) && reader.take(":") && part(address.bus, 0xFF) &&
                     reader.take(":") && part(address.device, 0x1F);
  if (!whole || (reader.take(".") && !part(address.function, 7)) || !reader.left().empty())
    return std::nullopt;
  return address;
}

std::string_view unquoted(std::string_view text) {
  const bool quoted =
      text.size() >= 2 && (text.front() == '\'' || text.front() == '"') && text.back() == text.front();
  if (quoted) text = text.substr(1, text.size() - 2);
  return text == "<unknown>" ? std::string_view() : text;
}

// "PCI:0000:3b:00 GPU-I:02 GPU-CI:00": where it is.
bool parse_place(std::string_view place, XidLine& line) {
  const auto parts = text::split(place, ' ');
  if (parts.empty()) return false;
  const auto address = parse_address(parts[0]);
  if (!address) return false;
  line.gpu = *address;
  for (const auto& part : parts) {
    Reader reader(part);
    std::uint32_t* field = reader.take("GPU-I:")    ? &line.gpu_instance
                           : reader.take("GPU-CI:") ? &line.compute_instance
                                                    : nullptr;
    if (field == nullptr) continue;
    if (const auto id = reader.number(); id && *id < kNoInstance) *field = static_cast<std::uint32_t>(*id);
  }
  return true;
}

// "RLW_REMAP Nonfatal XC0 i0 Link 04 (0x004505c6 0x00000001 …)".
std::optional<NvLink5Detail> parse_nvlink5(std::string_view text) {
  Reader reader(text);
  NvLink5Detail detail;
  const auto unit = reader.until(" ");
  if (!unit || unit->empty()) return std::nullopt;
  detail.unit = *unit;
  reader.blanks();
  const auto severity = reader.until(" ");
  if (!severity || (*severity != "Fatal" && *severity != "Nonfatal")) return std::nullopt;
  detail.fatal = *severity == "Fatal";
  if (!reader.until("Link ")) return std::nullopt;
  const auto link = reader.number();
  if (!link || *link > 0xFFFF || !reader.until("(")) return std::nullopt;
  detail.link = static_cast<unsigned>(*link);
  const auto intr_info = reader.hexadecimal();
  if (!intr_info) return std::nullopt;
  detail.intr_info = *intr_info;
  reader.blanks();
  const auto status = reader.hexadecimal();
  if (!status) return std::nullopt;
  detail.error_status = *status;
  return detail;
}

// "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)".
std::optional<unsigned> parse_recovery(std::string_view text) {
  Reader reader(text);
  if (!reader.until("recovery action changed") || !reader.until(" to ")) return std::nullopt;
  const auto action = reader.hexadecimal();
  if (!action || *action > 0xFF) return std::nullopt;
  return *action;
}

std::optional<XidLine> parse_xid(Reader reader) {
  XidLine line;
  const auto place = reader.until("): ");
  if (!place || !parse_place(*place, line)) return std::nullopt;
  const auto code = reader.number();
  if (!code || (!reader.take(",") && !reader.left().empty())) return std::nullopt;
  line.code = *code;
  reader.blanks();
  if (reader.take("pid=")) {
    const auto pid = unquoted(reader.until(", ").value_or(reader.left()));
    const auto number = text::parse_unsigned(pid);
    if (number && *number <= 0xFFFFFFFF) line.pid = static_cast<std::uint32_t>(*number);
    if (reader.take("name=")) line.process = unquoted(reader.until(", ").value_or(reader.left()));
  }
  line.text = reader.left();
  if (line.code >= 144 && line.code <= 150) line.nvlink5 = parse_nvlink5(line.text);
  if (line.code == kRecoveryActionChanged) line.recovery_action = parse_recovery(line.text);
  return line;
}

// Its first line has the severity; those that follow ("Severity 0 Engine instance…", "Data {…") say no more.
std::optional<SxidLine> parse_sxid(Reader reader) {
  SxidLine line;
  const auto place = reader.until("): ");
  if (!place) return std::nullopt;
  const auto address = parse_address(*place);
  const auto code = reader.number();
  if (!address || !code || !reader.take(", ")) return std::nullopt;
  line.nvswitch = *address;
  line.code = *code;
  line.fatal = reader.take("Fatal");
  if (!line.fatal && !reader.take("Non-fatal")) return std::nullopt;
  if (reader.take(", Link ")) {
    if (const auto link = reader.number(); link && *link <= 0xFFFF) line.link = static_cast<unsigned>(*link);
  }
  return line;
}

std::optional<FallenOffLine> parse_fallen_off(std::string_view line) {
  if (line.find("fallen off the bus") == std::string_view::npos) return std::nullopt;
  // The first word that is an address: what stands around it differs from driver to driver.
  for (const auto& word : text::split(line, ' ')) {
    std::string_view candidate = word;
    while (!candidate.empty() &&
           (candidate.back() == ':' || candidate.back() == ',' || candidate.back() == ')')) {
      candidate.remove_suffix(1);
    }
    if (text::starts_with(candidate, "(")) candidate.remove_prefix(1);
    if (const auto address = parse_address(candidate)) return FallenOffLine{*address};
  }
  return std::nullopt;
}

// The log escapes what is not printable as \xNN.
std::string unescaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '\\' && i + 3 < text.size() && text[i + 1] == 'x' &&
        std::from_chars(&text[i + 2], &text[i + 2] + 2, value, 16).ptr == &text[i + 2] + 2) {
      out += static_cast<char>(value);
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool same_slot(const PciAddress& a, const PciAddress& b) {
  return a.domain == b.domain && a.bus == b.bus && a.device == b.device;
}

}  // namespace

std::optional<KernelRecord> parse_record(std::string_view record) {
  KernelRecord parsed;
  Reader reader(record);
  if (!reader.number() || !reader.take(",")) return std::nullopt;  // priority and facility
  const auto sequence = reader.number();
  if (!sequence || !reader.take(",")) return std::nullopt;
  const auto microseconds = reader.number();
  if (!microseconds || !reader.take(",") || !reader.until(";")) return std::nullopt;
  parsed.sequence = *sequence;
  parsed.microseconds = *microseconds;
  const auto line = reader.left().substr(0, reader.left().find('\n'));
  parsed.text = unescaped(line.substr(0, kMaxLine));
  return parsed;
}

std::optional<FaultLine> parse_line(std::string_view line) {
  line = line.substr(0, kMaxLine);
  Reader reader(line);
  if (reader.until("NVRM: ")) {
    if (reader.take("Xid (")) {
      if (auto xid = parse_xid(reader)) return *xid;
      return std::nullopt;
    }
    if (const auto fallen = parse_fallen_off(reader.left())) return *fallen;
    return std::nullopt;
  }
  if (reader.until("nvidia-nvswitch") && reader.until("SXid (")) {
    if (const auto sxid = parse_sxid(reader)) return *sxid;
  }
  return std::nullopt;
}

std::vector<Evidence> evidence_of(const FaultLine& line, const inventory::Snapshot& snapshot, Time at) {
  std::vector<Evidence> evidence;
  for (const auto& gpu : snapshot.gpus) {
    if (const auto* xid = std::get_if<XidLine>(&line); xid && same_slot(xid->gpu, gpu.pci)) {
      XidReport report{Source::kKernelLog, xid->code, xid->pid, {}, xid->nvlink5, xid->recovery_action};
      evidence.push_back(
          {normal({gpu.uuid, xid->gpu_instance, xid->compute_instance}), at, std::move(report)});
    }
    if (const auto* fallen = std::get_if<FallenOffLine>(&line); fallen && same_slot(fallen->gpu, gpu.pci)) {
      evidence.push_back({{gpu.uuid}, at, FallenOff{}});
    }
    if (const auto* sxid = std::get_if<SxidLine>(&line)) {
      const bool linked = std::ranges::any_of(gpu.nvlinks, [&](const auto& link) {
        return link.kind == inventory::NvLinkRemote::kSwitch && same_slot(link.remote, sxid->nvswitch);
      });
      if (linked) evidence.push_back({{gpu.uuid}, at, SwitchFault{sxid->code, sxid->fatal}});
    }
  }
  return evidence;
}

}  // namespace gpulet::health
