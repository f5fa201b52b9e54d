#include "tools/ctl/view.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace canarynet::ctl {
namespace {

using ipc::CountersTable;
using ipc::LinkMetric;
using ipc::LinkRow;
using ipc::NicMetric;
using ipc::NicRow;
using ipc::ProcessMetric;

constexpr double kShortestSpan = 0.05;  // seconds; two looks at the same writing measure nothing
// A busy writer's table is up to its interval old (100 ms, runtime/counters.h), and a little older if the writer waits
// for a core.
constexpr std::uint64_t kIdleAge = 250'000'000;

void print(std::string* out, const char* format, ...) __attribute__((format(printf, 2, 3)));
void print(std::string* out, const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  *out += line;
}

std::string rate_text(const std::optional<double>& rate) { return rate ? bytes_text(*rate) : "-"; }

std::string role_text(const CountersTable& t) {
  if (t.role == ipc::Role::kEndpoint) return "endpoint";
  std::string text = "rank " + std::to_string(t.rank);
  if (t.local_ranks > 1) text += "+" + std::to_string(t.local_ranks - 1);
  return text + " of " + std::to_string(t.world_size);
}

std::uint64_t resent(const NicRow& n) {
  return n.at(NicMetric::kResentLost) + n.at(NicMetric::kResentStalled) + n.at(NicMetric::kResentFailover) +
         n.at(NicMetric::kResentHedged);
}

void print_engine(std::string* out, const EngineView& e, int links_max) {
  const CountersTable& t = *e.now;
  for (std::uint32_t i = 0; i < std::max(t.nics, 1u); ++i) {
    if (i == 0) {
      print(out, "%7d %-15.15s %-14.14s %-12.12s ", e.pid, t.process, role_text(t).c_str(), t.host);
    } else {
      print(out, "%51s", "");
    }
    if (i >= t.nics) {
      print(out, "no NIC\n");
      break;
    }
    const NicRow& n = t.nic[i];
    const auto busy = e.utilisation(i);
    char percent[16] = "-";
    if (busy) std::snprintf(percent, sizeof percent, "%.0f%%", std::min(*busy * 100, 999.0));
    print(out, "%-10.10s %-4.4s %-5s %9s %9s %5s %5llu %7llu %9llu\n", n.device, n.transport,
          n.at(NicMetric::kUp) != 0 ? "up" : "DOWN", rate_text(e.rate(i, NicMetric::kTransmitBytes)).c_str(),
          rate_text(e.rate(i, NicMetric::kReceiveBytes)).c_str(), percent,
          static_cast<unsigned long long>(n.at(NicMetric::kLanesUp)), static_cast<unsigned long long>(resent(n)),
          static_cast<unsigned long long>(n.at(NicMetric::kFailovers)));
  }
  const std::uint64_t errors = [&] {
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < t.nics; ++i)
      sum += t.nic[i].at(NicMetric::kCrcErrors) + t.nic[i].at(NicMetric::kHeaderErrors);
    return sum;
  }();
  const auto count = [&](ProcessMetric m) { return static_cast<unsigned long long>(t.at(m)); };
  print(out, "%8speers %llu, connections %llu, collectives %llu (%llu in flight), messages in flight %llu (%s)", "",
        count(ProcessMetric::kPeers), count(ProcessMetric::kConnections), count(ProcessMetric::kOperations),
        count(ProcessMetric::kOperationsInFlight), count(ProcessMetric::kMessagesInFlight),
        bytes_text(static_cast<double>(t.at(ProcessMetric::kMessageBytesInFlight))).c_str());
  if (errors != 0) print(out, ", CORRUPT FRAMES %llu", static_cast<unsigned long long>(errors));
  print(out, "\n");
  const auto shown = std::min<std::uint32_t>(t.links, static_cast<std::uint32_t>(links_max));
  for (std::uint32_t i = 0; i < shown; ++i) {
    const LinkRow& l = t.link[i];
    const double rate = static_cast<double>(l.at(LinkMetric::kRate));
    print(out, "%8s%s > %s %s: %s, rtt %s, gives %s/s, unacknowledged %s, failovers %llu\n", "", t.nic[l.nic].device,
          l.peer, l.remote, l.at(LinkMetric::kUp) != 0 ? "up" : "DOWN",
          time_text(l.at(LinkMetric::kSmoothedRtt)).c_str(), rate == 0 ? "-" : bytes_text(rate).c_str(),
          bytes_text(static_cast<double>(l.at(LinkMetric::kUnackedBytes))).c_str(),
          static_cast<unsigned long long>(l.at(LinkMetric::kFailovers)));
  }
  const std::uint64_t more = t.links - shown + t.at(ProcessMetric::kLinksLeftOut);
  if (more != 0 && links_max != 0) {
    print(out, "%8s%llu more links\n", "", static_cast<unsigned long long>(more));
  }
}

}  // namespace

const LinkRow* EngineView::before_of(const LinkRow& link) const {
  if (before == nullptr) return nullptr;
  for (std::uint32_t i = 0; i < before->links; ++i) {
    const LinkRow& b = before->link[i];
    if (b.nic == link.nic && b.lane == link.lane && std::strcmp(b.peer, link.peer) == 0 &&
        std::strcmp(b.remote, link.remote) == 0)
      return &b;
  }
  return nullptr;
}

std::optional<double> EngineView::rate(std::uint64_t value, std::uint64_t value_before) const {
  if (before == nullptr) return {};
  if (seconds <= 0 || value <= value_before) return 0.0;
  return static_cast<double>(value - value_before) / seconds;
}

std::optional<double> EngineView::rate(std::uint32_t nic, NicMetric metric) const {
  return rate(now->nic[nic].at(metric), before != nullptr ? before->nic[nic].at(metric) : 0);
}

std::optional<double> EngineView::utilisation(std::uint32_t nic) const {
  const auto nominal = static_cast<double>(now->nic[nic].at(NicMetric::kNominalRate));
  const auto measured = static_cast<double>(now->nic[nic].at(NicMetric::kMeasuredRate));
  const double known = nominal == 0 ? measured : measured == 0 ? nominal : std::min(nominal, measured);
  const auto out = rate(nic, NicMetric::kTransmitBytes), in = rate(nic, NicMetric::kReceiveBytes);
  if (known == 0 || !out || !in) return {};
  return std::max(*out, *in) / known;
}

std::uint64_t losses(const LinkRow& link) {
  return link.at(LinkMetric::kLostFrames) + link.at(LinkMetric::kSegmentsResent);
}

std::optional<double> EngineView::share(const LinkRow& link) const {
  double own_meanwhile = 0, meanwhile = 0, all = 0;
  for (std::uint32_t i = 0; i < now->links; ++i) {
    const LinkRow& l = now->link[i];
    if (std::strcmp(l.peer, link.peer) != 0) continue;
    const std::uint64_t sent = l.at(LinkMetric::kTransmitBytes);
    const LinkRow* const b = before_of(l);
    const std::uint64_t then = b != nullptr ? b->at(LinkMetric::kTransmitBytes) : sent;
    const double grew = sent > then ? static_cast<double>(sent - then) : 0;
    all += static_cast<double>(sent);
    meanwhile += grew;
    if (&l == &link) own_meanwhile = grew;
  }
  if (meanwhile > 0) return own_meanwhile / meanwhile;
  if (all > 0) return static_cast<double>(link.at(LinkMetric::kTransmitBytes)) / all;
  return {};
}

std::optional<Nanos> EngineView::age(const LinkRow& link, Nanos taken) const {
  const std::uint64_t at = link.at(LinkMetric::kSampledAt);
  if (at == 0 || at > static_cast<std::uint64_t>(taken.count)) return {};
  return Nanos{taken.count - static_cast<std::int64_t>(at)};
}

std::vector<EngineView> compare(const Look& before, const Look& after) {
  std::vector<EngineView> out;
  for (const ipc::ScannedTable& a : after.scan.tables) {
    EngineView e;
    e.pid = a.pid;
    e.now = a.table.get();
    for (const ipc::ScannedTable& b : before.scan.tables) {
      const bool same = b.pid == a.pid && b.table->number == a.table->number &&
                        b.table->started_ns == a.table->started_ns && b.table->nics == a.table->nics;
      if (same) e.before = b.table.get();
    }
    if (e.before != nullptr && e.now->updated_ns > e.before->updated_ns) {
      // An engine that was idle until the first look has moved everything since. A busy one has been moving bytes since
      // its own writing, so that time counts with them.
      const auto taken = static_cast<std::uint64_t>(before.taken.count);
      const bool idle = taken > e.before->updated_ns && taken - e.before->updated_ns > kIdleAge;
      const std::uint64_t from = idle ? taken : e.before->updated_ns;
      const double span = e.now->updated_ns > from ? static_cast<double>(e.now->updated_ns - from) * 1e-9 : 0;
      e.seconds = std::max(span, kShortestSpan);
    }
    out.push_back(e);
  }
  return out;
}

std::string bytes_text(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  std::size_t i = 0;
  for (; bytes >= 999.5 && i + 1 < std::size(units); ++i) bytes /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, i == 0 || bytes >= 99.95 ? "%.0f %s" : "%.1f %s", bytes, units[i]);
  return text;
}

std::string time_text(std::uint64_t ns) {
  const auto t = static_cast<double>(ns);
  char text[32];
  if (ns == 0) return "-";
  if (t < 1e6) {
    std::snprintf(text, sizeof text, "%.0f us", t / 1e3);
  } else if (t < 1e9) {
    std::snprintf(text, sizeof text, t < 1e7 ? "%.2f ms" : "%.0f ms", t / 1e6);
  } else {
    std::snprintf(text, sizeof text, "%.1f s", t / 1e9);
  }
  return text;
}

void print_notes(std::string* out, const Look& look) {
  if (look.scan.tables.empty()) *out += "no process here has counters of Canary\n";
  for (const std::string& note : look.scan.notes) *out += "passed over: " + note + "\n";
  if (look.scan.hidden != 0) {
    print(out, "%d process%s of other users can't be looked into\n", look.scan.hidden,
          look.scan.hidden == 1 ? "" : "es");
  }
}

std::string links_text(const Look& before, const Look& after) {
  std::string out;
  print(&out, "%7s %-15s %-14s %-10s %-20s %-5s %9s %11s %9s %6s %7s %9s\n", "PID", "PROCESS", "PEER", "NIC", "REMOTE",
        "STATE", "ALPHA", "BETA", "JITTER", "SHARE", "LOSSES", "AGE");
  for (const EngineView& e : compare(before, after)) {
    for (std::uint32_t i = 0; i < e.now->links; ++i) {
      const LinkRow& l = e.now->link[i];
      const auto beta = static_cast<double>(l.at(LinkMetric::kBeta));
      const auto share = e.share(l);
      const auto age = e.age(l, after.taken);
      char percent[16] = "-";
      if (share) std::snprintf(percent, sizeof percent, "%.0f%%", *share * 100);
      print(&out, "%7d %-15.15s %-14.14s %-10.10s %-20.20s %-5s %9s %11s %9s %6s %7llu %9s\n", e.pid, e.now->process,
            l.peer, e.now->nic[l.nic].device, l.remote, l.at(LinkMetric::kUp) != 0 ? "up" : "DOWN",
            time_text(l.at(LinkMetric::kAlpha)).c_str(), beta == 0 ? "-" : (bytes_text(beta) + "/s").c_str(),
            time_text(l.at(LinkMetric::kJitter)).c_str(), percent, static_cast<unsigned long long>(losses(l)),
            age ? time_text(static_cast<std::uint64_t>(age->count)).c_str() : "-");
    }
    const std::uint64_t more = e.now->at(ProcessMetric::kLinksLeftOut);
    if (more != 0) print(&out, "%7d and %llu more links\n", e.pid, static_cast<unsigned long long>(more));
  }
  print_notes(&out, after);
  return out;
}

std::string top_text(const Look& before, const Look& after, int links_max) {
  std::string out;
  const auto engines = compare(before, after);
  print(&out, "canaryctl top: %zu engine%s, over %.1f s\n", engines.size(), engines.size() == 1 ? "" : "s",
        (after.taken - before.taken).seconds());
  print(&out, "%7s %-15s %-14s %-12s %-10s %-4s %-5s %9s %9s %5s %5s %7s %9s\n", "PID", "PROCESS", "ROLE", "HOST",
        "NIC", "KIND", "STATE", "SENT/s", "RECVD/s", "BUSY", "LANES", "RESENT", "FAILOVERS");
  for (const EngineView& e : engines) print_engine(&out, e, links_max);
  print_notes(&out, after);
  return out;
}

}  // namespace canarynet::ctl
