#include "runtime/counters.h"

#include <algorithm>
#include <cstdio>

#include "base/log.h"

namespace canarynet {
namespace {

using ipc::LinkMetric;
using ipc::NicMetric;
using ipc::ProcessMetric;

ipc::ChosenBy chosen_by(const ChoiceView& view) {
  if (view.by == ChosenBy::kForced) return ipc::ChosenBy::kForced;
  if (view.by == ChosenBy::kMeasured) return ipc::ChosenBy::kMeasured;
  return view.row != nullptr ? ipc::ChosenBy::kKept : ipc::ChosenBy::kStatic;
}
std::uint64_t ppm(double share) { return static_cast<std::uint64_t>(std::clamp(share, 0.0, 1e6) * 1e6); }
std::uint64_t of(std::int64_t n) { return static_cast<std::uint64_t>(std::max<std::int64_t>(n, 0)); }

}  // namespace

EngineCounters::EngineCounters(const Engine& engine, std::span<const int> ranks, int world_size, Nanos now)
    : writer_(ipc::Role::kRank, now) {
  ipc::CountersTable& t = writer_.table();
  t.rank = ranks.front();
  t.local_ranks = static_cast<std::int32_t>(ranks.size());
  t.world_size = world_size;
  begin(engine.rails(), engine.host_name());
  publish(engine, now);
}

EngineCounters::EngineCounters(const Endpoint& endpoint, Nanos now) : writer_(ipc::Role::kEndpoint, now) {
  begin(endpoint.rails(), endpoint.host_name());
  publish(endpoint, now);
}

void EngineCounters::begin(std::span<const Rail> rails, const std::string& host) {
  if (!writer_.refused().empty()) {
    log(LogLevel::kInfo, "no counters for canaryctl: %s", writer_.refused().c_str());
  }
  ipc::CountersTable& t = writer_.table();
  ipc::put_label(t.host, host);
  ipc::put_label(t.build, CANARYNET_VERSION);
  rails_.resize(std::min(rails.size(), ipc::kNicsMax));
  t.nics = static_cast<std::uint32_t>(rails_.size());
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    ipc::put_label(t.nic[i].device, rails[i].device);
    ipc::put_label(t.nic[i].transport, rails[i].address.family == Address::Family::kSharedMemory ? "shm" : "tcp");
    t.nic[i].at(NicMetric::kNominalRate) = of(rails[i].nominal.count);
  }
}

// One pass over the paths: each makes a row, and adds to its NIC's.
template <typename Source>
void EngineCounters::fill_links(const Source& source) {
  ipc::CountersTable& t = writer_.table();
  std::uint64_t left_out = 0;
  t.links = 0;
  source.for_each_link([&](const LinkView& link) {
    const Path& path = link.path;
    const auto rail = static_cast<std::size_t>(path.spec.local_rail);
    if (path.spec.local_rail < 0 || rail >= rails_.size()) return;
    RailStats& sum = rails_[rail];
    const RailStats before = sum;
    sum.add(path);
    if (link.ended || !link.wanted) {
      sum.rate = before.rate;
      sum.lanes_up = before.lanes_up;
      sum.lanes_wanted = before.lanes_wanted;
    }
    if (link.ended) return;
    if (t.links == ipc::kLinksMax) {
      ++left_out;
      return;
    }
    ipc::LinkRow& row = t.link[t.links++];
    row.nic = static_cast<std::uint32_t>(rail);
    row.lane = static_cast<std::uint32_t>(path.spec.lane_index);
    ipc::put_label(row.peer, link.peer);
    ipc::put_label(row.remote, link.remote);
    if (link.remote.empty()) std::snprintf(row.remote, sizeof row.remote, "rail%d", path.spec.remote_rail);
    const LaneCounters lanes = path.counters();
    row.at(LinkMetric::kTransmitBytes) = lanes.bytes_sent;
    row.at(LinkMetric::kReceiveBytes) = lanes.bytes_received;
    row.at(LinkMetric::kUp) = path.state == Path::State::kUp;
    row.at(LinkMetric::kSmoothedRtt) = of(path.estimator.srtt().count);
    row.at(LinkMetric::kMinimumRtt) = of(path.estimator.rtt_min().count);
    row.at(LinkMetric::kRate) = of(path.estimator.rate().count);
    row.at(LinkMetric::kUnackedBytes) = path.unacked_bytes;
    row.at(LinkMetric::kFailovers) = path.failovers;
    row.at(LinkMetric::kSegmentsSent) = lanes.segments_sent;
    row.at(LinkMetric::kSegmentsResent) = lanes.segments_resent;
    row.at(LinkMetric::kAlpha) = of(path.link.alpha().count);
    row.at(LinkMetric::kBeta) = of(path.link.beta().count);
    row.at(LinkMetric::kJitter) = of(path.link.jitter().count);
    row.at(LinkMetric::kLostFrames) = path.link.losses();
    row.at(LinkMetric::kSampledAt) = of(path.link.sampled_at().count);
    row.at(LinkMetric::kLevelChanges) = path.link.changes();
  });
  t.at(ProcessMetric::kLinksLeftOut) = left_out;
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    const RailStats& r = rails_[i];
    ipc::NicRow& row = t.nic[i];
    row.at(NicMetric::kTransmitBytes) = r.lanes.bytes_sent;
    row.at(NicMetric::kReceiveBytes) = r.lanes.bytes_received;
    row.at(NicMetric::kTransmitFrames) = r.lanes.frames_sent;
    row.at(NicMetric::kReceiveFrames) = r.lanes.frames_received;
    row.at(NicMetric::kUp) = r.lanes_wanted == 0 || r.lanes_up != 0;
    row.at(NicMetric::kLanesUp) = r.lanes_up;
    row.at(NicMetric::kMeasuredRate) = of(r.rate.count);
    row.at(NicMetric::kFailovers) = r.failovers;
    const auto reason = [&](Resend why) { return r.resends[static_cast<std::size_t>(why) - 1]; };
    row.at(NicMetric::kResentLost) = reason(Resend::kLost);
    row.at(NicMetric::kResentStalled) = reason(Resend::kStalled);
    row.at(NicMetric::kResentFailover) = reason(Resend::kFailover);
    row.at(NicMetric::kResentHedged) = reason(Resend::kHedged);
    row.at(NicMetric::kCrcErrors) = r.lanes.payload_errors;
    row.at(NicMetric::kHeaderErrors) = r.lanes.header_errors;
  }
}

static_assert(static_cast<unsigned>(ipc::ChoiceReason::kStays) == static_cast<unsigned>(RowReason::kStays));

// "ring", "ring/smaller" (pieces), "ring/ordered" (its ranks, by the measured table), "ring/ordered/smaller", as far as
// there is room. Allocates nothing.
static void put_planner(std::span<char> label, PlannerId planner, std::size_t variant) {
  const auto append = [&](std::string_view text) {
    if (text.size() >= label.size()) return;  // rather than cut
    ipc::put_label(label, text);
    label = label.subspan(text.size());
  };
  append(name_of(planner));
  if ((variant & variant_of(false, true)) != 0) append("/ordered");
  if ((variant & variant_of(true, false)) != 0) append("/smaller");
}

// What operations took since the present table decides, then by what else they ran before, as far as there is room.
static void fill_times(const ChoiceUse::Cell& cell, ipc::ChoiceRow* row) {
  std::size_t lines = 0;
  const auto add = [&](PlannerId planner, std::size_t variant, std::uint64_t operations,
                       std::uint64_t ns) -> ipc::ChoiceTimes* {
    if (operations == 0 || lines == row->times.size()) return nullptr;
    ipc::ChoiceTimes& times = row->times[lines++];
    put_planner(times.planner, planner, variant);
    times.operations = operations;
    times.mean_ns = ns / operations;
    return &times;
  };
  for (std::size_t p = 0; p < cell.took.size(); ++p) {
    const auto [operations, ns] = cell.took_by(static_cast<PlannerId>(p));
    add(static_cast<PlannerId>(p), 0, operations, ns);
  }
  for (std::size_t p = 0; p < cell.took.size(); ++p) {
    for (std::size_t v = 0; v < kVariants; ++v) {
      const auto& t = cell.took[p][v].before;
      ipc::ChoiceTimes* const times = add(static_cast<PlannerId>(p), v, t.operations, t.ns);
      if (times == nullptr) continue;
      times->before = 1;
      times->table_version = t.table;
    }
  }
}

// What each group's operations run by, and why.
void EngineCounters::fill_choices(const Engine& engine) {
  ipc::CountersTable& t = writer_.table();
  std::uint64_t left_out = 0;
  t.choices = 0;
  engine.for_each_choice([&](const Group& group, Collective collective, int size_class, const ChoiceView& view) {
    if (!view.known) return;
    if (t.choices == ipc::kChoicesMax) {
      ++left_out;
      return;
    }
    ipc::ChoiceRow& row = t.choice[t.choices++];
    row = {};
    ipc::put_label(row.collective, name_of(collective));
    if (view.codec != 0 && view.cell != nullptr) ipc::put_label(row.asked, view.cell->codec_name);
    const bool ordered = view.row != nullptr && view.row->in_order;
    put_planner(row.planner, view.planner, variant_of(false, ordered));
    row.group = group.flow;
    row.ranks = static_cast<std::uint32_t>(group.members.size());
    row.chosen_by = chosen_by(view);
    row.piece_bytes = view.piece_bytes;
    row.table_version = table_version(view.table);
    row.table_checksum = table_checksum(view.table);
    row.from_bytes = class_begin(size_class);
    row.to_bytes = size_class + 1 < kSizeClasses ? class_begin(size_class + 1) : 0;
    if (view.row != nullptr) {
      row.predicted_ns = std::uint64_t{view.row->predicted_us} * 1000;
      row.reason = static_cast<ipc::ChoiceReason>(view.row->reason);
      if (view.row->runner_up != view.row->planner) {
        ipc::put_label(row.runner_up, name_of(view.row->runner_up));
        row.runner_up_ns = std::uint64_t{view.row->runner_up_us} * 1000;
      }
    }
    if (view.cell != nullptr) fill_times(*view.cell, &row);
  });
  t.at(ProcessMetric::kChoicesLeftOut) = left_out;
}

// Which codecs they let be chosen, and why.
void EngineCounters::fill_codec_choices(const Engine& engine) {
  ipc::CountersTable& t = writer_.table();
  engine.for_each_codec_choice(
      [&](const Group& group, const CodecUse::Cell& cell, const MeasuredRow* chosen, std::uint32_t table) {
        if (t.choices == ipc::kChoicesMax) {
          ++t.at(ProcessMetric::kChoicesLeftOut);
          return;
        }
        ipc::ChoiceRow& row = t.choice[t.choices++];
        row = {};
        ipc::put_label(row.collective, name_of(Collective::kAllReduce));
        ipc::put_label(row.asked, cell.text);
        ipc::put_label(row.planner, cell.names[chosen != nullptr ? chosen->codec : 0]);
        row.group = group.flow;
        row.ranks = static_cast<std::uint32_t>(group.members.size());
        row.chosen_by = chosen != nullptr ? ipc::ChosenBy::kMeasured : ipc::ChosenBy::kStatic;
        row.table_version = table_version(table);
        row.table_checksum = table_checksum(table);
        row.from_bytes = class_begin(cell.size_class);
        row.to_bytes = cell.size_class + 1 < kSizeClasses ? class_begin(cell.size_class + 1) : 0;
        if (chosen != nullptr) {
          row.predicted_ns = std::uint64_t{chosen->predicted_us} * 1000;
          if (chosen->codec_runner_up != chosen->codec) {
            ipc::put_label(row.runner_up, cell.names[chosen->codec_runner_up]);
            row.runner_up_ns = std::uint64_t{chosen->runner_up_us} * 1000;
          }
        }
        static_assert(ipc::ChoiceRow::kTimesMax >= kCodecCandidatesMax);
        std::size_t lines = 0;
        for (std::size_t i = 0; i < cell.names.size(); ++i) {
          const ChoiceUse::Took& took = cell.took[i];
          if (took.operations == 0) continue;
          ipc::ChoiceTimes& times = row.times[lines++];
          ipc::put_label(times.planner, cell.names[i]);
          times.operations = took.operations;
          times.mean_ns = took.ns / took.operations;
        }
      });
}

template <typename Source>
void EngineCounters::fill_messages(const Source& source) {
  ipc::CountersTable& t = writer_.table();
  const MessageCounters& m = source.message_counters();
  t.at(ProcessMetric::kMessagesInFlight) = source.messages_in_flight();
  t.at(ProcessMetric::kMessageBytesInFlight) = m.sending_bytes;
  t.at(ProcessMetric::kMessagesSent) = m.sent;
  t.at(ProcessMetric::kMessageBytesSent) = m.sent_bytes;
  t.at(ProcessMetric::kMessagesReceived) = m.received;
  t.at(ProcessMetric::kMessageBytesReceived) = m.received_bytes;
}

void EngineCounters::finish(Nanos now) {
  writer_.publish(now);
  next_ = now + kInterval;
}

void EngineCounters::publish(const Engine& engine, Nanos now) {
  std::fill(rails_.begin(), rails_.end(), RailStats{});
  fill_links(engine);
  fill_choices(engine);
  fill_codec_choices(engine);
  fill_messages(engine);
  const Engine::Counters c = engine.counters();
  ipc::CountersTable& t = writer_.table();
  t.at(ProcessMetric::kPeers) = c.peers;
  t.at(ProcessMetric::kOperationsInFlight) = c.operations_in_flight;
  t.at(ProcessMetric::kOperations) = c.operations;
  t.at(ProcessMetric::kOperationFailures) = c.operation_failures;
  t.at(ProcessMetric::kCodecValueBytes) = c.codec_value_bytes;
  t.at(ProcessMetric::kCodecEncodedBytes) = c.codec_encoded_bytes;
  t.at(ProcessMetric::kCodecGainPpm) = ppm(c.codec_gain);
  t.at(ProcessMetric::kCodecResidualPpm) = ppm(c.codec_residual);
  t.at(ProcessMetric::kNullPieces) = c.null_pieces;
  t.at(ProcessMetric::kNullValueBytes) = c.null_value_bytes;
  finish(now);
}

void EngineCounters::publish(const Endpoint& endpoint, Nanos now) {
  for (std::size_t i = 0; i < rails_.size(); ++i) rails_[i] = endpoint.ended_stats(i);
  fill_links(endpoint);
  fill_messages(endpoint);
  const Endpoint::Counters c = endpoint.counters();
  ipc::CountersTable& t = writer_.table();
  t.at(ProcessMetric::kPeers) = c.peers;
  t.at(ProcessMetric::kConnections) = c.connections;
  finish(now);
}

}  // namespace canarynet
