// What only gpulet measures: who holds which device, what each Pod has used of it, which GPUs answer, how
// they are cut. Names and labels are listed in docs/metrics.md.
#pragma once

#include "inventory/snapshot.h"
#include "metrics/accounts.h"
#include "metrics/attribution.h"
#include "metrics/dcgm_page.h"
#include "metrics/exposition.h"
#include "metrics/sample.h"

namespace gpulet::metrics {

struct OwnPage {
  const inventory::Snapshot& snapshot;
  const Sample& sample;
  const Holders& holders;
  const Uses& uses;
  const Accounts& accounts;
};
// A device that is in the snapshot and not in the sample has only what the kubelet says of it.
void add_own(Exposition& page, const OwnPage& own);

}  // namespace gpulet::metrics
