// tools/ctl/view.h -- two looks at the counters of this host's processes → rates, as text and as JSON. Pure.
//
// Rates are bytes per second by the writers' own clocks: from writing to writing, or for an engine that was idle from
// the first look on. A process that was not there at the first look has none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "daemon/ipc/counters_reader.h"

namespace canarynet::ctl {

struct Look {
  ipc::CountersScan scan;
  Nanos taken;
};

// One engine at the second look; points into both.
struct EngineView {
  int pid = 0;
  const ipc::CountersTable* now = nullptr;
  const ipc::CountersTable* before = nullptr;  // null: it was not there
  double seconds = 0;                          // between the two writings; 0: nothing was written since

  const ipc::LinkRow* before_of(const ipc::LinkRow& link) const;  // null: it was not there
  // How much a counter grew per second.
  std::optional<double> rate(std::uint64_t value, std::uint64_t value_before) const;
  std::optional<double> rate(std::uint32_t nic, ipc::NicMetric metric) const;
  // The link's part of what goes to its peer: between the looks, or since the start where nothing went meanwhile.
  std::optional<double> share(const ipc::LinkRow& link) const;
  // How long ago alpha or beta was measured.
  std::optional<Nanos> age(const ipc::LinkRow& link, Nanos taken) const;
  // The busier direction's share of what the NIC can carry: the measured or the nominal rate, whichever is less.
  std::optional<double> utilisation(std::uint32_t nic) const;
};

std::vector<EngineView> compare(const Look& before, const Look& after);

// "310 us", "1.20 ms", "3.5 s"; "-" for 0.
std::string time_text(std::uint64_t ns);
// "1.5 MB", "12 B".
std::string bytes_text(double bytes);
std::string top_text(const Look& before, const Look& after, int links_max);
// What is known of each path: alpha, beta, share, losses, age.
std::string links_text(const Look& before, const Look& after);
// What runs each kind of operation, why, how long it was expected to take, and how long it took. Of one look.
std::string explain_text(const Look& look);
std::string explain_json(const Look& look);
// What the tables and NICs of a look leave out, and which were not believed.
void print_notes(std::string* out, const Look& look);
// One line each.
std::string top_json(const Look& before, const Look& after);
std::string links_json(const Look& before, const Look& after);
// Frames taken for lost, and packets that TCP sent again.
std::uint64_t losses(const ipc::LinkRow& link);

}  // namespace canarynet::ctl
