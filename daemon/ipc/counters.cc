#include "daemon/ipc/counters.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace canarynet::ipc {
namespace {

constexpr auto kCounter = MetricKind::kCounter;
constexpr auto kGauge = MetricKind::kGauge;
constexpr auto kNumber = MetricUnit::kNumber;
constexpr auto kBytes = MetricUnit::kBytes;
constexpr auto kNanos = MetricUnit::kNanos;
constexpr auto kRate = MetricUnit::kBytesPerSecond;

// The tables follow the order of the enums; their sizes are checked below.
constexpr MetricInfo kNic[] = {
    {"canary_nic_transmit_bytes_total", "", kCounter, kBytes, "Bytes handed to the NIC, headers included."},
    {"canary_nic_receive_bytes_total", "", kCounter, kBytes, "Bytes received on the NIC, headers included."},
    {"canary_nic_transmit_frames_total", "", kCounter, kNumber, "Frames handed to the NIC."},
    {"canary_nic_receive_frames_total", "", kCounter, kNumber, "Frames received on the NIC."},
    {"canary_nic_up", "", kGauge, kNumber, "0: lanes should be on this NIC, and none is up."},
    {"canary_nic_lanes", "", kGauge, kNumber, "Lanes of the NIC that are up."},
    {"canary_nic_nominal_bytes_per_second", "", kGauge, kRate, "Speed that the driver or a setting names; 0: unknown."},
    {"canary_nic_bandwidth_bytes_per_second", "", kGauge, kRate,
     "Measured delivery rate, sum over lanes; 0: not measured yet."},
    {"canary_nic_failovers_total", "", kCounter, kNumber, "Times a lane on this NIC was given up."},
    {"canary_piece_retransmits_total", "reason=\"lost\"", kCounter, kNumber, "Pieces sent again over this NIC."},
    {"canary_piece_retransmits_total", "reason=\"stalled\"", kCounter, kNumber, "Pieces sent again over this NIC."},
    {"canary_piece_retransmits_total", "reason=\"failover\"", kCounter, kNumber, "Pieces sent again over this NIC."},
    {"canary_piece_retransmits_total", "reason=\"hedged\"", kCounter, kNumber, "Pieces sent again over this NIC."},
    {"canary_piece_crc_errors_total", "", kCounter, kNumber, "Payloads received with a wrong CRC."},
    {"canary_frame_header_errors_total", "", kCounter, kNumber,
     "Frames received whose header or fields can't be right."},
};
constexpr MetricInfo kLink[] = {
    {"canary_link_transmit_bytes_total", "", kCounter, kBytes, "Bytes sent on the link, headers included."},
    {"canary_link_receive_bytes_total", "", kCounter, kBytes, "Bytes received on the link, headers included."},
    {"canary_link_up", "", kGauge, kNumber, "1: the link carries pieces."},
    {"canary_link_smoothed_rtt_seconds", "", kGauge, kNanos, "Smoothed round trip."},
    {"canary_link_minimum_rtt_seconds", "", kGauge, kNanos, "Shortest round trip of the last seconds."},
    {"canary_link_bandwidth_bytes_per_second", "", kGauge, kRate, "Measured delivery rate; 0: not measured yet."},
    {"canary_link_unacknowledged_bytes", "", kGauge, kBytes, "Bytes sent and not acknowledged."},
    {"canary_link_failovers_total", "", kCounter, kNumber, "Times the link's lane was given up."},
    {"canary_link_tcp_segments_total", "", kCounter, kNumber, "Packets with payload that TCP sent on the link."},
    {"canary_link_tcp_resent_segments_total", "", kCounter, kNumber, "Packets that TCP sent again: what the way lost."},
    {"canary_link_alpha_seconds", "", kGauge, kNanos, "One way, half the least round trip; 0: not measured yet."},
    {"canary_link_beta_bytes_per_second", "", kGauge, kRate,
     "Rate at which the link delivers while it is busy, over all its lanes' lives; 0: not measured yet."},
    {"canary_link_jitter_seconds", "", kGauge, kNanos, "Mean difference of two round trips that met no queue."},
    {"canary_link_lost_frames_total", "", kCounter, kNumber, "Frames taken for lost on the link."},
    {"canary_link_sampled_seconds", "", kGauge, kNanos,
     "When alpha or beta was last measured, CLOCK_MONOTONIC; 0: never."},
    {"canary_link_level_changes_total", "", kCounter, kNumber, "Changes of alpha or beta that lasted."},
};
constexpr MetricInfo kProcess[] = {
    {"canary_peers", "", kGauge, kNumber, "Other engines that this one has links to."},
    {"canary_connections", "", kGauge, kNumber, "Connections without a group."},
    {"canary_operations_in_flight", "", kGauge, kNumber, "Collectives under way."},
    {"canary_operations_total", "", kCounter, kNumber, "Collectives that ended, failed ones included."},
    {"canary_operation_failures_total", "", kCounter, kNumber, "Collectives that failed."},
    {"canary_messages_in_flight", "", kGauge, kNumber, "Sends and receives that are not done."},
    {"canary_message_in_flight_bytes", "", kGauge, kBytes, "Bytes of the sends that are not done."},
    {"canary_message_transmits_total", "", kCounter, kNumber, "Sends that the peer has acknowledged."},
    {"canary_message_transmit_bytes_total", "", kCounter, kBytes, "Their bytes."},
    {"canary_message_receives_total", "", kCounter, kNumber, "Receives that are complete."},
    {"canary_message_receive_bytes_total", "", kCounter, kBytes, "Their bytes."},
    {"canary_links_left_out", "", kGauge, kNumber, "Links that have no row here."},
    {"canary_choices_left_out", "", kGauge, kNumber, "Choices of an algorithm that have no row here."},
    {"canary_codec_value_bytes_total", "", kCounter, kBytes, "Values that codecs have encoded."},
    {"canary_codec_encoded_bytes_total", "", kCounter, kBytes, "What they became."},
    {"canary_codec_gain_ppm", "", kGauge, kNumber, "Share of the energy of tensors with error feedback that was sent."},
    {"canary_codec_residual_ppm", "", kGauge, kNumber, "Norm of what is left out of them now, of their own norm."},
    {"canary_null_pieces_total", "", kCounter, kNumber, "Pieces of zeros that were sent without them."},
    {"canary_null_value_bytes_total", "", kCounter, kBytes, "Zeros that they stood for, as values."},
};
static_assert(std::size(kNic) == static_cast<std::size_t>(NicMetric::kCount));
static_assert(std::size(kLink) == static_cast<std::size_t>(LinkMetric::kCount));
static_assert(std::size(kProcess) == static_cast<std::size_t>(ProcessMetric::kCount));

bool printable(char c) { return c >= 0x20 && c < 0x7f; }

// Whether it ends within its field, and nothing in it commands a terminal or breaks a line.
bool is_text(std::span<const char> label) {
  const auto end = std::find(label.begin(), label.end(), '\0');
  return end != label.end() && std::all_of(label.begin(), end, printable);
}

}  // namespace

std::span<const MetricInfo> nic_metrics() { return kNic; }
std::span<const MetricInfo> link_metrics() { return kLink; }
std::span<const MetricInfo> process_metrics() { return kProcess; }

std::string validate(const CountersTable& t, std::size_t bytes) {
  const auto number = [](std::uint64_t n) { return std::to_string(n); };
  if (bytes < offsetof(CountersTable, started_ns)) return "it has " + number(bytes) + " bytes and is no table";
  if (t.magic == 0) return "nothing is written in it yet";
  if (t.magic != kCountersMagic) {
    char hex[32];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(t.magic));
    return "it begins with 0x" + std::string(hex) + " and is no table of ours";
  }
  if (t.version != kCountersVersion) {
    return "it has version " + number(t.version) + ", this program reads version " + number(kCountersVersion);
  }
  if (t.table_bytes != sizeof t || bytes < sizeof t) {
    return "it names " + number(t.table_bytes) + " bytes and has " + number(bytes) + ", a table has " +
           number(sizeof t);
  }
  if (t.role != Role::kRank && t.role != Role::kEndpoint)
    return "there is no role " + number(static_cast<std::uint32_t>(t.role));
  if (t.pid <= 0) return "its pid is " + std::to_string(t.pid);
  if (t.nics > kNicsMax) return "it names " + number(t.nics) + " NICs, a table has " + number(kNicsMax);
  if (t.choices > kChoicesMax) return "it names " + number(t.choices) + " choices, a table has " + number(kChoicesMax);
  if (t.links > kLinksMax) return "it names " + number(t.links) + " links, a table has " + number(kLinksMax);
  if (!is_text(t.process)) return "the name of its process is no text";
  if (!is_text(t.host)) return "the name of its host is no text";
  if (!is_text(t.build)) return "its build is no text";
  for (std::uint32_t i = 0; i < t.nics; ++i) {
    if (!is_text(t.nic[i].device) || !is_text(t.nic[i].transport)) return "a name of NIC " + number(i) + " is no text";
  }
  for (std::uint32_t i = 0; i < t.links; ++i) {
    const LinkRow& l = t.link[i];
    if (l.nic >= t.nics) return "link " + number(i) + " is on NIC " + number(l.nic) + " of " + number(t.nics);
    if (!is_text(l.peer) || !is_text(l.remote)) return "a name of link " + number(i) + " is no text";
  }
  for (std::uint32_t i = 0; i < t.choices; ++i) {
    const ChoiceRow& c = t.choice[i];
    const auto by = static_cast<std::uint32_t>(c.chosen_by);
    if (by < static_cast<std::uint32_t>(ChosenBy::kForced) || by > static_cast<std::uint32_t>(ChosenBy::kStatic))
      return "choice " + number(i) + " is of an unknown kind, " + number(by);
    if (static_cast<std::uint32_t>(c.reason) > static_cast<std::uint32_t>(ChoiceReason::kStays))
      return "choice " + number(i) + " has an unknown reason, " + number(static_cast<std::uint32_t>(c.reason));
    bool text = is_text(c.collective) && is_text(c.asked) && is_text(c.planner) && is_text(c.runner_up);
    for (const ChoiceTimes& times : c.times) text = text && is_text(times.planner);
    if (!text) return "a name of choice " + number(i) + " is no text";
  }
  return "";
}

void put_label(std::span<char> label, std::string_view text) {
  const std::size_t n = std::min(text.size(), label.size() - 1);
  std::transform(text.begin(), text.begin() + n, label.begin(), [](char c) { return printable(c) ? c : '?'; });
  std::memset(label.data() + n, 0, label.size() - n);
}

}  // namespace canarynet::ipc
