// The judgements, one for each check; checks.cpp has the table. For this room's .cpp files.
#pragma once

#include "doctor/check.h"

namespace gpulet::doctor {

Judgement judge_bus(const Facts& facts);
Judgement judge_nouveau(const Facts& facts);
Judgement judge_driver(const Facts& facts);
Judgement judge_library(const Facts& facts);
Judgement judge_version(const Facts& facts);
Judgement judge_nodes(const Facts& facts);
Judgement judge_rights_of_nodes(const Facts& facts);
Judgement judge_answers(const Facts& facts);

Judgement judge_kubelet(const Facts& facts);
Judgement judge_plugin(const Facts& facts);
Judgement judge_agent(const Facts& facts);
Judgement judge_runtime(const Facts& facts);
Judgement judge_cdi(const Facts& facts);
Judgement judge_resource(const Facts& facts);
Judgement judge_pods(const Facts& facts);
Judgement judge_two_plugins(const Facts& facts);
Judgement judge_rights(const Facts& facts);
Judgement judge_clock(const Facts& facts);

Judgement judge_gpus(const Facts& facts);
Judgement judge_mig(const Facts& facts);
Judgement judge_mps(const Facts& facts);
Judgement judge_throttling(const Facts& facts);
Judgement judge_iommu(const Facts& facts);
Judgement judge_width(const Facts& facts);
Judgement judge_fabric(const Facts& facts);

// What the judges are written with.
inline Judgement pass(std::string found) { return {Verdict::kPass, std::move(found)}; }
inline Judgement warn(std::string found, std::string fix) {
  return {Verdict::kWarn, std::move(found), std::move(fix)};
}
inline Judgement fails(std::string found, std::string fix) {
  return {Verdict::kFail, std::move(found), std::move(fix)};
}
inline Judgement cannot_tell(std::string why, std::string fix = {}) {
  return {Verdict::kCannotTell, std::move(why), std::move(fix)};
}
inline Judgement cannot_tell(const Error& error) { return cannot_tell(error.text()); }

// "a, b and 3 more".
std::string some_of(const std::vector<std::string>& things, std::size_t most = 3);
// "1 GPU", "8 GPUs".
std::string counted(std::size_t count, std::string_view thing);

}  // namespace gpulet::doctor
