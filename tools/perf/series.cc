#include "tools/perf/series.h"

#include <time.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace canarynet::perf {
namespace {

constexpr std::int64_t kBinNs = 10'000'000;

std::int64_t monotonic_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

Series::Series(const std::string& path) : path_(path), file_(path) {
  if (!file_) throw std::runtime_error("--series " + path + ": " + std::strerror(errno));
  file_ << "op,bytes,time_s,monotonic_ns,device,tx_bytes,rx_bytes,kernel_tx_bytes,lanes_up\n";
}

Series::~Series() {
  running_ = false;
  if (thread_.joinable()) thread_.join();
}

void Series::take(const Context& context) {
  try {
    samples_.push_back({monotonic_ns(), context.nics()});
  } catch (const Error&) {
    running_ = false;  // the loop's own next call will report the error
  }
}

void Series::start(Context& context, const std::string& op, std::uint64_t bytes) {
  op_ = op;
  bytes_ = bytes;
  samples_.clear();
  samples_.reserve(4096);
  running_ = true;
  take(context);
  thread_ = std::thread([this, &context] {
    // Absolute times: a late sample does not push back the following ones.
    for (std::int64_t at = monotonic_ns() + kBinNs; running_; at += kBinNs) {
      const timespec until{at / 1'000'000'000, at % 1'000'000'000};
      while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
      }
      take(context);
    }
  });
}

void Series::stop() {
  running_ = false;
  thread_.join();
  for (std::size_t i = 1; i < samples_.size(); ++i) {
    const auto &now = samples_[i], &before = samples_[i - 1];
    for (std::size_t k = 0; k < now.nics.size() && k < before.nics.size(); ++k) {
      const auto &a = now.nics[k], &b = before.nics[k];
      file_ << op_ << ',' << bytes_ << ',' << static_cast<double>(now.at_ns - samples_[0].at_ns) * 1e-9 << ','
            << now.at_ns << ',' << a.device << ',' << a.transmit_bytes - b.transmit_bytes << ','
            << a.receive_bytes - b.receive_bytes << ',' << a.kernel_transmit_bytes - b.kernel_transmit_bytes << ','
            << a.lanes_up << '\n';
    }
  }
  file_.flush();
  if (!file_) throw std::runtime_error("--series " + path_ + ": writing failed");
}

}  // namespace canarynet::perf
