// daemon/ipc/counters_fuzz.cc -- reads any memory as a table of counters: it is refused with a reason, or is a table
// whose every row and name can be read.
//
// In the first byte bit 0 says that the bytes are the whole memory, else they are the front of one of the right size;
// bit 1 says that it is not sealed.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "daemon/ipc/counters_reader.h"

namespace {

void demand(bool holds) {
  if (!holds) std::abort();
}

template <std::size_t n>
void read_label(const char (&label)[n]) {
  demand(strnlen(label, n) < n);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace canarynet::ipc;
  if (size == 0) return 0;
  const bool whole = (data[0] & 1) != 0, sealed = (data[0] & 2) == 0;
  const int memory = memfd_create(kCountersName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  demand(memory >= 0);
  const std::size_t bytes = std::min(size - 1, 2 * sizeof(CountersTable));
  demand(pwrite(memory, data + 1, bytes, 0) == static_cast<ssize_t>(bytes));
  if (!whole) demand(ftruncate(memory, sizeof(CountersTable)) == 0);
  if (sealed) demand(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  const auto table = std::make_unique<CountersTable>();
  const auto status = read_counters(memory, table.get());
  close(memory);
  if (!status.ok()) {
    demand(!status.text().empty());
    return 0;
  }
  const CountersTable& t = *table;
  demand(sealed && t.nics <= kNicsMax && t.links <= kLinksMax && t.choices <= kChoicesMax);
  read_label(t.process);
  read_label(t.host);
  read_label(t.build);
  for (std::uint32_t i = 0; i < t.nics; ++i) {
    read_label(t.nic[i].device);
    read_label(t.nic[i].transport);
  }
  for (std::uint32_t i = 0; i < t.links; ++i) {
    demand(t.link[i].nic < t.nics);
    read_label(t.link[i].peer);
    read_label(t.link[i].remote);
  }
  for (std::uint32_t i = 0; i < t.choices; ++i) {
    const ChoiceRow& c = t.choice[i];
    demand(c.chosen_by == ChosenBy::kForced || c.chosen_by == ChosenBy::kMeasured || c.chosen_by == ChosenBy::kKept ||
           c.chosen_by == ChosenBy::kStatic);
    demand(static_cast<std::uint32_t>(c.reason) <= static_cast<std::uint32_t>(ChoiceReason::kStays));
    read_label(c.collective);
    read_label(c.planner);
    read_label(c.runner_up);
    for (const ChoiceTimes& times : c.times) read_label(times.planner);
  }
  return 0;
}
