#include "examples/train_fashion_mnist/traffic.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <span>

namespace train {
namespace {

constexpr std::size_t kNicsMax = 16;  // per rank, in the exchange of figures
constexpr double kMega = 1e6;

struct Record {
  char device[32];
  std::uint64_t sent, kernel_sent, used;
};

void set_shares(std::vector<NicTraffic>* nics) {
  for (auto& nic : *nics) {
    std::uint64_t total = 0;
    for (const auto& other : *nics) total += other.rank == nic.rank ? other.sent : 0;
    nic.share = total > 0 ? static_cast<double>(nic.sent) / static_cast<double>(total) : 0;
  }
}

}  // namespace

std::vector<NicTraffic> Traffic::own() const {
  std::vector<NicTraffic> nics;
  const auto now = context_.nics();
  for (std::size_t i = 0; i < std::min(now.size(), start_.size()); ++i) {
    nics.push_back({.rank = context_.rank(),
                    .device = now[i].device,
                    .sent = now[i].transmit_bytes - start_[i].transmit_bytes,
                    .kernel_sent = now[i].kernel_transmit_bytes - start_[i].kernel_transmit_bytes});
  }
  set_shares(&nics);
  return nics;
}

std::vector<NicTraffic> Traffic::everybodys() const {
  std::vector<Record> mine(kNicsMax), all(kNicsMax * static_cast<std::size_t>(context_.world_size()));
  const auto nics = own();
  for (std::size_t i = 0; i < std::min(kNicsMax, nics.size()); ++i) {
    std::memcpy(mine[i].device, nics[i].device.c_str(), std::min(nics[i].device.size(), sizeof mine[i].device - 1));
    mine[i].sent = nics[i].sent;
    mine[i].kernel_sent = nics[i].kernel_sent;
    mine[i].used = 1;
  }
  context_.world().all_gather(
      std::span(reinterpret_cast<const std::uint8_t*>(mine.data()), mine.size() * sizeof(Record)),
      std::span(reinterpret_cast<std::uint8_t*>(all.data()), all.size() * sizeof(Record)));
  std::vector<NicTraffic> result;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].used == 0) continue;
    result.push_back({.rank = static_cast<int>(i / kNicsMax),
                      .device = all[i].device,
                      .sent = all[i].sent,
                      .kernel_sent = all[i].kernel_sent});
  }
  set_shares(&result);
  return result;
}

std::string traffic_text(const std::vector<NicTraffic>& nics) {
  std::string text;
  int rank = -1;
  for (const auto& nic : nics) {
    text += nic.rank != rank ? format("  rank %-3d", nic.rank) : "          ";
    rank = nic.rank;
    text +=
        format("%-8s %9.2f MB  %5.1f %%   (the kernel counted %.2f MB)\n", nic.device.c_str(),
               static_cast<double>(nic.sent) / kMega, 100 * nic.share, static_cast<double>(nic.kernel_sent) / kMega);
  }
  return text;
}

std::string traffic_json(const std::vector<NicTraffic>& nics) {
  std::string text = "[";
  for (std::size_t i = 0; i < nics.size(); ++i) {
    text += format(
        "%s\n  {\"rank\": %d, \"device\": \"%s\", \"tx_bytes\": %llu, \"kernel_tx_bytes\": %llu, \"share\": %.4f}",
        i == 0 ? "" : ",", nics[i].rank, nics[i].device.c_str(), static_cast<unsigned long long>(nics[i].sent),
        static_cast<unsigned long long>(nics[i].kernel_sent), nics[i].share);
  }
  return text + "]";
}

std::string format(const char* pattern, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(line, sizeof line, pattern, arguments);
  va_end(arguments);
  return line;
}

}  // namespace train
