#include "transport/tcp/way_losses.h"

#include <linux/tcp.h>  // the C library's tcp_info ends before the fields that count segments
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "transport/tcp/socket.h"

namespace canarynet {
namespace {

constexpr char kBbr[] = "bbr";

}  // namespace

bool ask_losses(int fd, WayLosses* out) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  if (length < offsetof(tcp_info, tcpi_data_segs_out) + sizeof info.tcpi_data_segs_out) return false;
  out->segments = info.tcpi_data_segs_out;
  out->resent = info.tcpi_total_retrans;
  out->round_trip = Nanos{std::int64_t{info.tcpi_rtt} * 1000};
  out->least_round_trip = Nanos{std::int64_t{info.tcpi_min_rtt} * 1000};
  return true;
}

bool ask_progress(int fd, std::uint64_t* acknowledged, std::uint64_t* received) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  if (length < offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received) return false;
  *acknowledged = info.tcpi_bytes_acked;
  *received = info.tcpi_bytes_received;
  return true;
}

std::string congestion_of(int fd) {
  char name[32] = {};
  socklen_t length = sizeof name - 1;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 ? name : "";
}

bool may_use_bbr() {
  // Where it is not listed, asking for it as root would load its module.
  std::ifstream available("/proc/sys/net/ipv4/tcp_available_congestion_control");
  std::string name;
  while (available >> name) {
    if (name != kBbr) continue;
    auto made = make_stream_socket(Address::Family::kIPv4);
    return made.ok() && ::setsockopt(made.value().fd(), IPPROTO_TCP, TCP_CONGESTION, kBbr, sizeof kBbr - 1) == 0;
  }
  return false;
}

std::string loss_advice(const WayLosses& losses, const std::string& congestion) {
  char share[32];
  std::snprintf(share, sizeof share, "%.2f %%",
                100 * static_cast<double>(losses.resent) / static_cast<double>(losses.segments));
  return std::string("TCP sends ") + share + " of its segments again (" + std::to_string(losses.resent) + " of " +
         std::to_string(losses.segments) + ") though no queue builds up: the way loses them, and " + congestion +
         " slows down as for congestion; with CANARY_TCP_CONGESTION=bbr more would get through (docs/congestion.md)";
}

}  // namespace canarynet
