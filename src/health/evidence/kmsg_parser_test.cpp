#include "health/evidence/kmsg_parser.h"

#include <gtest/gtest.h>

namespace gpulet::health {
namespace {

using inventory::NvLinkRemote;
using inventory::PciAddress;

TEST(KmsgRecord, HasTheFirstLine) {
  const auto record =
      parse_kmsg_record("4,1234,56789012,-;NVRM: Xid (PCI:0000:3b:00): 79\n SUBSYSTEM=pci\n DEVICE=+pci:x\n");
  ASSERT_TRUE(record);
  EXPECT_EQ(record->sequence, 1234u);
  EXPECT_EQ(record->microseconds, 56789012u);
  EXPECT_EQ(record->text, "NVRM: Xid (PCI:0000:3b:00): 79");
  EXPECT_EQ(parse_kmsg_record("6,1,2,-,caller=T1;a\\x0ab\\x5cc \\xzz")->text, "a\nb\\c \\xzz");
  EXPECT_EQ(parse_kmsg_record("6,1,2,-;")->text, "");
  EXPECT_EQ(parse_kmsg_record("6,1,2,-;" + std::string(10'000, 'x'))->text.size(), kMaxKmsgLine);
  for (const auto* text :
       {"", ";", "6", "6,1", "6,1,2", "6,1,2,-", "x,1,2,-;a", "6,,2,-;a", " SUBSYSTEM=pci"}) {
    EXPECT_FALSE(parse_kmsg_record(text)) << text;
  }
}

struct XidRow {
  const char* line;
  PciAddress gpu;
  std::uint64_t code;
  std::optional<std::uint32_t> pid;
  std::string process;
  std::uint32_t gpu_instance = kNoInstance, compute_instance = kNoInstance;
};

TEST(XidLine, OldAndNewForms) {
  const XidRow rows[] = {
      {"NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
       {0, 0x3b, 0, 0},
       79,
       1234,
       "python3"},
      {"NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC "
       "7, TPC 7)",
       {0, 0xcb, 0, 0},
       13,
       std::nullopt,
       ""},
      {"NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX "
       "SWITCH TIMEOUT",
       {0, 0xcb, 0, 0},
       109,
       1797828,
       "pt_main_thread"},
      {"NVRM: Xid (PCI:0000:cb:00): 31, pid=\"77\", name=\"a b\", Ch 1", {0, 0xcb, 0, 0}, 31, 77, "a b"},
      {"NVRM: Xid (0000:03:00): 14, Channel 00000001", {0, 3, 0, 0}, 14, std::nullopt, ""},
      {"NVRM: Xid (PCI:0000:3b:00): 48, An uncorrectable double bit error (DBE) has been detected on GPU",
       {0, 0x3b, 0, 0},
       48,
       std::nullopt,
       ""},
      {"NVRM: Xid (PCI:0000:3b:00): 43", {0, 0x3b, 0, 0}, 43, std::nullopt, ""},
      {"NVRM: Xid (PCI:0018:01:00): 45, pid=9, name=x", {0x18, 1, 0, 0}, 45, 9, "x"},
      {"NVRM: Xid (PCI:0000:01:00 GPU-I:05): 69, pid=5, name=cuda, Class Error",
       {0, 1, 0, 0},
       69,
       5,
       "cuda",
       5},
      {"NVRM: Xid (PCI:0000:01:00 GPU-I:02 GPU-CI:01): 31, pid=5, name=cuda, Ch",
       {0, 1, 0, 0},
       31,
       5,
       "cuda",
       2,
       1},
      {"[12.5] NVRM: Xid (PCI:0000:01:00): 31, pid=5, name=cuda, Ch", {0, 1, 0, 0}, 31, 5, "cuda"},
      {"NVRM: Xid (PCI:0000:01:00): 31, pid=99999999999, name=cuda, Ch",
       {0, 1, 0, 0},
       31,
       std::nullopt,
       "cuda"},
  };
  for (const auto& row : rows) {
    const auto line = parse_kmsg_line(row.line);
    ASSERT_TRUE(line) << row.line;
    const auto* xid = std::get_if<XidLine>(&*line);
    ASSERT_NE(xid, nullptr) << row.line;
    EXPECT_EQ(xid->gpu, row.gpu) << row.line;
    EXPECT_EQ(xid->code, row.code) << row.line;
    EXPECT_EQ(xid->pid, row.pid) << row.line;
    EXPECT_EQ(xid->process, row.process) << row.line;
    EXPECT_EQ(xid->gpu_instance, row.gpu_instance) << row.line;
    EXPECT_EQ(xid->compute_instance, row.compute_instance) << row.line;
  }
}

TEST(XidLine, NvLink5HasUnitLinkAndRegisters) {
  const auto line = parse_kmsg_line(
      "NVRM: Xid (PCI:0019:01:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 "
      "0x00000000 "
      "0x00000000 0x00000000 0x00000000)");
  ASSERT_TRUE(line);
  EXPECT_EQ(std::get<XidLine>(*line).nvlink5, (NvLink5Detail{"RLW_SRC_TRACK", false, 12, 0x040988e2, 8}));
  const auto with_process = parse_kmsg_line(
      "NVRM: Xid (PCI:0018:01:00): 149, pid=4, name=<unknown>, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 "
      "(0x025525c6 "
      "0x00000000 0x00000000)");
  ASSERT_TRUE(with_process);
  EXPECT_EQ(std::get<XidLine>(*with_process).nvlink5,
            (NvLink5Detail{"NETIR_LINK_EVT", true, 9, 0x025525c6, 0}));
  for (const auto* text :
       {"145, RLW_REMAP", "145, RLW_REMAP Odd XC0 Link 1 (0x1 0x1)", "145, RLW_REMAP Fatal XC0 Link",
        "145, RLW_REMAP Fatal Link 1 (1 2)", "145, RLW_REMAP Fatal Link 1 (0x1)", "145"}) {
    const auto odd = parse_kmsg_line("NVRM: Xid (PCI:0000:01:00): " + std::string(text));
    ASSERT_TRUE(odd) << text;
    EXPECT_EQ(std::get<XidLine>(*odd).nvlink5, std::nullopt) << text;
  }
}

TEST(XidLine, Xid154HasTheRecoveryAction) {
  const auto line = parse_kmsg_line(
      "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot "
      "Required)");
  ASSERT_TRUE(line);
  EXPECT_EQ(std::get<XidLine>(*line).recovery_action, 2u);
  EXPECT_EQ(
      std::get<XidLine>(*parse_kmsg_line("NVRM: Xid (PCI:0000:3b:00): 154, nothing known")).recovery_action,
      std::nullopt);
}

TEST(SxidLine, HasSwitchSeverityAndLink) {
  const auto fatal =
      parse_kmsg_line("nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 30 LTSSM Fault Up");
  ASSERT_TRUE(fatal);
  const auto& sxid = std::get<SxidLine>(*fatal);
  EXPECT_EQ(sxid.nvswitch, (PciAddress{0, 0x85, 0, 0}));
  EXPECT_EQ(sxid.code, 20034u);
  EXPECT_TRUE(sxid.fatal);
  EXPECT_EQ(sxid.link, 30u);
  const auto mild = parse_kmsg_line(
      "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error "
      "(First)");
  ASSERT_TRUE(mild);
  EXPECT_FALSE(std::get<SxidLine>(*mild).fatal);
  EXPECT_FALSE(
      parse_kmsg_line("nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 12028, Severity 0 Engine instance 32"));
  EXPECT_FALSE(
      parse_kmsg_line("nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 12028, Data {0x00140004, 0x00100000}"));
}

TEST(FallenOffLine, InTheFormOfEachDriver) {
  for (const auto* text :
       {"NVRM: GPU 0000:5a:00.0: GPU has fallen off the bus.",
        "NVRM: GPU at PCI:0000:5a:00: GPU has fallen off the bus.",
        "NVRM: GPU at 0000:5a:00.0 has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:5a:00.0 (PCI ID: 10de:2330) installed in this system has fallen "
        "off the bus and is not responding to commands."}) {
    const auto line = parse_kmsg_line(text);
    ASSERT_TRUE(line) << text;
    EXPECT_EQ(std::get<FallenOffLine>(*line).gpu, (PciAddress{0, 0x5a, 0, 0})) << text;
  }
}

TEST(FallenOffLine, InSeveralLines) {
  const char* const first = "NVRM: The NVIDIA GPU 0000:5a:00.0";
  const char* const second = "NVRM: (PCI ID: 10de:2330) installed in this system has";
  const char* const last = "NVRM: fallen off the bus and is not responding to commands.";
  KmsgLineParser parser;
  EXPECT_FALSE(parser.parse_line(last)) << "of an unknown GPU";
  EXPECT_FALSE(parser.parse_line(first));
  EXPECT_FALSE(parser.parse_line(second));
  EXPECT_FALSE(parser.parse_line("usb 1-1: new device")) << "another driver's line may be in between";
  const auto fallen = parser.parse_line(last);
  ASSERT_TRUE(fallen);
  EXPECT_EQ(std::get<FallenOffLine>(*fallen).gpu, (PciAddress{0, 0x5a, 0, 0}));
  EXPECT_FALSE(parser.parse_line(last)) << "reported once";
  EXPECT_FALSE(parser.parse_line(first));
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(parser.parse_line("NVRM: another message"));
  EXPECT_FALSE(parser.parse_line(last)) << "too long after its first line";
  EXPECT_TRUE(parser.parse_line("NVRM: Xid (PCI:0000:3b:00): 79, pid=1")) << "other faults as before";
}

TEST(FaultLine, OtherLinesAreIgnored) {
  for (const auto* text :
       {"", "NVRM: ", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module", "Xid (PCI:0000:3b:00): 79",
        "NVRM: Xid (PCI:0000:3b:00) 79", "NVRM: Xid (PCI:zz:3b:00): 79", "NVRM: Xid (PCI:0000:3b:00): x",
        "NVRM: Xid (): 79", "NVRM: Xid (PCI:0000:3b): 79, a", "NVRM: Xid (PCI:0000:3b:40): 79, a",
        "NVRM: Xid (PCI:0000:3b:00.9): 79, a", "NVRM: Xid (PCI:0000:3b:00): 99999999999999999999, a",
        "NVRM: it has fallen off the bus", "nvidia-nvswitch0: SXid (PCI:0000:85:00.0): x, Fatal",
        "nvidia-nvlink: SXid (PCI:0000:85:00.0): 1, Fatal",
        "usb 1-1: device has fallen off the bus 0000:5a:00.0"}) {
    EXPECT_FALSE(parse_kmsg_line(text)) << text;
  }
}

TEST(FaultLine, IsEvidenceForItsGpusOnly) {
  inventory::Snapshot snapshot;
  for (unsigned i = 0; i < 3; ++i) {
    inventory::Gpu gpu;
    gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
    gpu.pci = {0, 0x10 + i, 0, 0};
    // The first two are on one switch.
    gpu.nvlinks.push_back({0, NvLinkRemote::kSwitch, {0, i < 2 ? 0x85u : 0x86u, 0, 0}});
    gpu.nvlinks.push_back({1, NvLinkRemote::kSwitch, {0, i < 2 ? 0x85u : 0x86u, 0, 0}});
    snapshot.gpus.push_back(gpu);
  }
  const Time at(std::chrono::seconds(7));
  const auto evidence = [&](const char* line) {
    return kmsg_line_evidence(*parse_kmsg_line(line), snapshot, at);
  };
  const auto xid = evidence("NVRM: Xid (PCI:0000:11:00 GPU-I:03): 94, pid=8, name=x, Contained");
  ASSERT_EQ(xid.size(), 1u);
  EXPECT_EQ(xid[0].scope, (Scope{DeviceUuid("GPU-1"), 3}));
  EXPECT_EQ(xid[0].at, at);
  const auto& report = std::get<XidReport>(xid[0].body);
  EXPECT_EQ(report.code, 94u);
  EXPECT_EQ(report.pid, 8u);
  EXPECT_EQ(source_of(xid[0].body), Source::kKernelLog);
  const auto fallen = evidence("NVRM: GPU 0000:12:00.0: GPU has fallen off the bus.");
  ASSERT_EQ(fallen.size(), 1u);
  EXPECT_EQ(fallen[0].scope, (Scope{DeviceUuid("GPU-2")}));
  const auto sxid =
      evidence("nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 30 LTSSM Fault Up");
  ASSERT_EQ(sxid.size(), 2u);
  EXPECT_EQ(sxid[0].scope.gpu, DeviceUuid("GPU-0"));
  EXPECT_EQ(sxid[1].scope.gpu, DeviceUuid("GPU-1"));
  EXPECT_TRUE(std::get<SwitchFault>(sxid[0].body).fatal);
  EXPECT_TRUE(evidence("NVRM: Xid (PCI:0000:77:00): 79, a").empty());
}

}  // namespace
}  // namespace gpulet::health
