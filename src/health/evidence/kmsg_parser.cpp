#include "health/evidence/kmsg_parser.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace gpulet::health {
namespace {

using inventory::PciAddress;

constexpr std::uint64_t kRecoveryActionChanged = 154;

// Reads a line from its start; a mismatch leaves the position unchanged.
class LineReader {
 public:
  explicit LineReader(std::string_view text) : remaining_(text) {}
  std::string_view remaining() const { return remaining_; }

  bool skip_prefix(std::string_view word) {
    if (!text::starts_with(remaining_, word)) return false;
    remaining_.remove_prefix(word.size());
    return true;
  }
  void skip_blanks() {
    while (!remaining_.empty() && remaining_.front() == ' ') remaining_.remove_prefix(1);
  }
  // The text up to the next `end`, which is skipped; nullopt without one.
  std::optional<std::string_view> read_until(std::string_view end) {
    const auto at = remaining_.find(end);
    if (at == std::string_view::npos) return std::nullopt;
    const auto taken = remaining_.substr(0, at);
    remaining_.remove_prefix(at + end.size());
    return taken;
  }
  std::optional<std::uint64_t> read_decimal(int base = 10) {
    std::uint64_t value = 0;
    const auto [end, error] =
        std::from_chars(remaining_.data(), remaining_.data() + remaining_.size(), value, base);
    if (error != std::errc() || end == remaining_.data()) return std::nullopt;
    remaining_.remove_prefix(static_cast<std::size_t>(end - remaining_.data()));
    return value;
  }
  std::optional<std::uint32_t> read_hex() {
    auto copy = *this;
    if (!copy.skip_prefix("0x")) return std::nullopt;
    const auto value = copy.read_decimal(16);
    if (!value || *value > 0xFFFFFFFF) return std::nullopt;
    *this = copy;
    return static_cast<std::uint32_t>(*value);
  }

 private:
  std::string_view remaining_;
};

// "PCI:0000:3b:00", "0000:3b:00.0", "0000:3b:00".
std::optional<PciAddress> parse_kernel_pci_address(std::string_view text) {
  LineReader reader(text);
  reader.skip_prefix("PCI:");
  PciAddress address;
  const auto part = [&](std::uint32_t& value, std::uint64_t most) {
    const auto read = reader.read_decimal(16);
    if (!read || *read > most) return false;
    value = static_cast<std::uint32_t>(*read);
    return true;
  };
  const bool whole = part(address.domain, 0xFFFFFFFF) && reader.skip_prefix(":") && part(address.bus, 0xFF) &&
                     reader.skip_prefix(":") && part(address.device, 0x1F);
  if (!whole || (reader.skip_prefix(".") && !part(address.function, 7)) || !reader.remaining().empty())
    return std::nullopt;
  return address;
}

std::string_view strip_quotes(std::string_view text) {
  const bool quoted =
      text.size() >= 2 && (text.front() == '\'' || text.front() == '"') && text.back() == text.front();
  if (quoted) text = text.substr(1, text.size() - 2);
  return text == "<unknown>" ? std::string_view() : text;
}

// "PCI:0000:3b:00 GPU-I:02 GPU-CI:00".
bool parse_mig_location(std::string_view place, XidLine& line) {
  const auto parts = text::split(place, ' ');
  if (parts.empty()) return false;
  const auto address = parse_kernel_pci_address(parts[0]);
  if (!address) return false;
  line.gpu = *address;
  for (const auto& part : parts) {
    LineReader reader(part);
    std::uint32_t* field = reader.skip_prefix("GPU-I:")    ? &line.gpu_instance
                           : reader.skip_prefix("GPU-CI:") ? &line.compute_instance
                                                           : nullptr;
    if (field == nullptr) continue;
    if (const auto id = reader.read_decimal(); id && *id < kNoInstance)
      *field = static_cast<std::uint32_t>(*id);
  }
  return true;
}

// "RLW_REMAP Nonfatal XC0 i0 Link 04 (0x004505c6 0x00000001 …)".
std::optional<NvLink5Detail> parse_nvlink5(std::string_view text) {
  LineReader reader(text);
  NvLink5Detail detail;
  const auto unit = reader.read_until(" ");
  if (!unit || unit->empty()) return std::nullopt;
  detail.unit = *unit;
  reader.skip_blanks();
  const auto severity = reader.read_until(" ");
  if (!severity || (*severity != "Fatal" && *severity != "Nonfatal")) return std::nullopt;
  detail.fatal = *severity == "Fatal";
  if (!reader.read_until("Link ")) return std::nullopt;
  const auto link = reader.read_decimal();
  if (!link || *link > 0xFFFF || !reader.read_until("(")) return std::nullopt;
  detail.link = static_cast<unsigned>(*link);
  const auto intr_info = reader.read_hex();
  if (!intr_info) return std::nullopt;
  detail.intr_info = *intr_info;
  reader.skip_blanks();
  const auto status = reader.read_hex();
  if (!status) return std::nullopt;
  detail.error_status = *status;
  return detail;
}

// "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)".
std::optional<unsigned> parse_recovery_action(std::string_view text) {
  LineReader reader(text);
  if (!reader.read_until("recovery action changed") || !reader.read_until(" to ")) return std::nullopt;
  const auto action = reader.read_hex();
  if (!action || *action > 0xFF) return std::nullopt;
  return *action;
}

std::optional<XidLine> parse_xid(LineReader reader) {
  XidLine line;
  const auto place = reader.read_until("): ");
  if (!place || !parse_mig_location(*place, line)) return std::nullopt;
  const auto code = reader.read_decimal();
  if (!code || (!reader.skip_prefix(",") && !reader.remaining().empty())) return std::nullopt;
  line.code = *code;
  reader.skip_blanks();
  if (reader.skip_prefix("pid=")) {
    const auto pid = strip_quotes(reader.read_until(", ").value_or(reader.remaining()));
    const auto number = text::parse_unsigned(pid);
    if (number && *number <= 0xFFFFFFFF) line.pid = static_cast<std::uint32_t>(*number);
    if (reader.skip_prefix("name="))
      line.process = strip_quotes(reader.read_until(", ").value_or(reader.remaining()));
  }
  line.text = reader.remaining();
  if (line.code >= 144 && line.code <= 150) line.nvlink5 = parse_nvlink5(line.text);
  if (line.code == kRecoveryActionChanged) line.recovery_action = parse_recovery_action(line.text);
  return line;
}

// The first line has the severity; the following ones ("Severity 0 Engine instance…", "Data {…") add nothing.
std::optional<SxidLine> parse_sxid(LineReader reader) {
  SxidLine line;
  const auto place = reader.read_until("): ");
  if (!place) return std::nullopt;
  const auto address = parse_kernel_pci_address(*place);
  const auto code = reader.read_decimal();
  if (!address || !code || !reader.skip_prefix(", ")) return std::nullopt;
  line.nvswitch = *address;
  line.code = *code;
  line.fatal = reader.skip_prefix("Fatal");
  if (!line.fatal && !reader.skip_prefix("Non-fatal")) return std::nullopt;
  if (reader.skip_prefix(", Link ")) {
    if (const auto link = reader.read_decimal(); link && *link <= 0xFFFF)
      line.link = static_cast<unsigned>(*link);
  }
  return line;
}

std::optional<FallenOffLine> parse_fallen_off(std::string_view line) {
  if (line.find("fallen off the bus") == std::string_view::npos) return std::nullopt;
  // The first word that is an address; the text around it differs between drivers.
  for (const auto& word : text::split(line, ' ')) {
    std::string_view candidate = word;
    while (!candidate.empty() &&
           (candidate.back() == ':' || candidate.back() == ',' || candidate.back() == ')')) {
      candidate.remove_suffix(1);
    }
    if (text::starts_with(candidate, "(")) candidate.remove_prefix(1);
    if (const auto address = parse_kernel_pci_address(candidate)) return FallenOffLine{*address};
  }
  return std::nullopt;
}

// The log escapes unprintable bytes as \xNN.
std::string unescape_kmsg(std::string_view text) {
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

bool is_same_slot(const PciAddress& a, const PciAddress& b) {
  return a.domain == b.domain && a.bus == b.bus && a.device == b.device;
}

}  // namespace

std::optional<KmsgRecord> parse_kmsg_record(std::string_view record) {
  KmsgRecord parsed;
  LineReader reader(record);
  if (!reader.read_decimal() || !reader.skip_prefix(",")) return std::nullopt;  // priority and facility
  const auto sequence = reader.read_decimal();
  if (!sequence || !reader.skip_prefix(",")) return std::nullopt;
  const auto microseconds = reader.read_decimal();
  if (!microseconds || !reader.skip_prefix(",") || !reader.read_until(";")) return std::nullopt;
  parsed.sequence = *sequence;
  parsed.microseconds = *microseconds;
  const auto line = reader.remaining().substr(0, reader.remaining().find('\n'));
  parsed.text = unescape_kmsg(line.substr(0, kMaxKmsgLine));
  return parsed;
}

std::optional<FaultLine> parse_kmsg_line(std::string_view line) {
  line = line.substr(0, kMaxKmsgLine);
  LineReader reader(line);
  if (reader.read_until("NVRM: ")) {
    if (reader.skip_prefix("Xid (")) {
      if (auto xid = parse_xid(reader)) return *xid;
      return std::nullopt;
    }
    if (const auto fallen = parse_fallen_off(reader.remaining())) return *fallen;
    return std::nullopt;
  }
  if (reader.read_until("nvidia-nvswitch") && reader.read_until("SXid (")) {
    if (const auto sxid = parse_sxid(reader)) return *sxid;
  }
  return std::nullopt;
}

std::optional<FaultLine> KmsgLineParser::parse_line(std::string_view line) {
  constexpr unsigned kMessageLines = 4;
  if (auto fault = parse_kmsg_line(line)) return fault;
  LineReader reader(line.substr(0, kMaxKmsgLine));
  if (!reader.read_until("NVRM: ")) return std::nullopt;
  if (reader.skip_prefix("The NVIDIA GPU ")) {
    const auto rest = reader.remaining();
    announced_ = parse_kernel_pci_address(rest.substr(0, rest.find(' ')));
    lines_left_ = kMessageLines;
    return std::nullopt;
  }
  if (!announced_) return std::nullopt;
  if (reader.remaining().find("fallen off the bus") != std::string_view::npos)
    return FallenOffLine{*std::exchange(announced_, std::nullopt)};
  if (--lines_left_ == 0) announced_.reset();
  return std::nullopt;
}

std::vector<Evidence> kmsg_line_evidence(const FaultLine& line, const inventory::Snapshot& snapshot,
                                         Time at) {
  std::vector<Evidence> evidence;
  for (const auto& gpu : snapshot.gpus) {
    if (const auto* xid = std::get_if<XidLine>(&line); xid && is_same_slot(xid->gpu, gpu.pci)) {
      XidReport report{Source::kKernelLog, xid->code, xid->pid, {}, xid->nvlink5, xid->recovery_action};
      evidence.push_back(
          {normalize_scope({gpu.uuid, xid->gpu_instance, xid->compute_instance}), at, std::move(report)});
    }
    if (const auto* fallen = std::get_if<FallenOffLine>(&line);
        fallen && is_same_slot(fallen->gpu, gpu.pci)) {
      evidence.push_back({{gpu.uuid}, at, FallenOff{}});
    }
    if (const auto* sxid = std::get_if<SxidLine>(&line)) {
      const bool linked = std::ranges::any_of(gpu.nvlinks, [&](const auto& link) {
        return link.kind == inventory::NvLinkRemote::kSwitch && is_same_slot(link.remote, sxid->nvswitch);
      });
      if (linked) evidence.push_back({{gpu.uuid}, at, SwitchFault{sxid->code, sxid->fatal}});
    }
  }
  return evidence;
}

}  // namespace gpulet::health
