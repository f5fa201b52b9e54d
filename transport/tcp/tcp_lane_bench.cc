// transport/tcp/tcp_lane_bench.cc -- bytes per second and CPU time of one TCP lane (or several) between two threads
// over loopback.
//
//   tcp_lane_bench [FRAMES] [FRAME_BYTES] [LANES] [span|slot|discard]
//
// Prints rate, CPU seconds per GiB of both threads and a checksum of what arrived. Loopback is no NIC: the figure says
// what the lane costs, not what a network carries.
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "transport/tcp/tcp_lane_factory.h"

namespace canarynet {
namespace {

double thread_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  const auto add = [](double sum, const timeval& t) {
    return sum + static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return add(add(0, usage.ru_utime), usage.ru_stime);
}

struct Job {
  std::uint64_t frames = 0;
  std::uint32_t frame_bytes = 0;
  int lanes = 1;
  Landing::Kind landing = Landing::Kind::kSpan;
};

TcpOptions options() {
  TcpOptions out;
  Rail rail;
  rail.device = "lo";
  rail.address = Address::parse("127.0.0.1").value();
  out.rails = {rail};
  return out;
}

void idle(LaneFactory& factory) {
  pollfd entry{factory.poll_fd(), POLLIN, 0};
  ::poll(&entry, 1, 100);
}

class Receiver : public LaneSink, public LaneAcceptor {
 public:
  explicit Receiver(const Job& job) : job_(job), memory_(job.frame_bytes * 8) {}
  void on_accept(std::unique_ptr<Lane> lane) override {
    lane->set_sink(this);
    lanes_.push_back(std::move(lane));
  }
  void on_up(Lane&) override {}
  Landing landing_for(Lane&, const wire::Header& header) override {
    return {.kind = job_.landing, .data = memory_.data() + (header.piece % 8) * job_.frame_bytes, .cookie = 0};
  }
  void on_frame(Lane&, const wire::Header& header, const Arrival& arrival) override {
    ++frames;
    bad += !arrival.intact && !arrival.discarded;
    checksum += header.payload_crc32 * (header.piece + 1);
  }
  void on_writable(Lane&) override {}
  void on_down(Lane&, const Status&, bool) override { ++downs; }
  void close() { lanes_.clear(); }

  std::uint64_t frames = 0, bad = 0, checksum = 0;
  int downs = 0;

 private:
  const Job& job_;
  std::vector<std::byte> memory_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

class Sender : public LaneSink {
 public:
  void on_up(Lane&) override { ++ups; }
  Landing landing_for(Lane&, const wire::Header&) override { return {}; }
  void on_frame(Lane&, const wire::Header&, const Arrival&) override {}
  void on_writable(Lane&) override {}
  void on_down(Lane&, const Status& reason, bool) override {
    std::fprintf(stderr, "down: %s\n", reason.to_string().c_str());
    ++downs;
  }
  int ups = 0, downs = 0;
};

int run(const Job& job) {
  const SystemClock clock;
  auto made = TcpLaneFactory::create(options());
  if (!made.ok()) return std::fprintf(stderr, "%s\n", made.status().to_string().c_str()), 1;
  const auto far = made.take();
  Receiver receiver(job);
  far->set_acceptor(&receiver);
  const Address address = far->rails()[0].address;
  double receiver_cpu = 0;
  std::thread thread([&] {
    while (receiver.frames < job.frames && receiver.downs == 0) {
      if (far->poll(clock.now()) == 0) idle(*far);
    }
    receiver_cpu = thread_cpu_seconds();
  });

  const auto near = TcpLaneFactory::create(options()).take();
  Sender sender;
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int i = 0; i < job.lanes; ++i) lanes.push_back(near->dial(0, address, sender).take());
  while (sender.ups < job.lanes && sender.downs == 0) near->poll(clock.now());

  std::vector<std::byte> payload(job.frame_bytes);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 37);
  wire::Header header;
  header.payload_bytes = job.frame_bytes;
  header.payload_crc32 = wire::payload_crc(payload.data(), payload.size());
  const double cpu_before = thread_cpu_seconds();
  const Nanos begin = clock.now();
  const std::size_t ahead = std::max<std::size_t>(4 * std::size_t{job.frame_bytes}, 64 * 1024);  // as a channel does
  std::uint64_t sent = 0;
  std::size_t queued = 1;
  while ((sent < job.frames || queued > 0) && sender.downs == 0) {
    queued = 0;
    for (auto& lane : lanes) {
      while (sent < job.frames && lane->queued_bytes() < ahead) {
        header.piece = static_cast<std::uint32_t>(sent);
        wire::seal(header);
        if (!lane->send(header, payload.data(), sent)) break;
        ++sent;
      }
      lane->flush(clock.now());
      queued += lane->queued_bytes();
    }
    if (near->poll(clock.now()) == 0 && queued > 0) idle(*near);
  }
  const double sender_cpu = thread_cpu_seconds() - cpu_before;
  thread.join();
  const double seconds = (clock.now() - begin).seconds();
  const double bytes = static_cast<double>(job.frames) * job.frame_bytes;
  const double gib = bytes / (1 << 30);
  std::printf(
      "%llu frames of %u bytes, %d lane(s): %.2f GB/s, CPU s/GiB: sender %.3f receiver %.3f, checksum %016llx, bad "
      "%llu\n",
      static_cast<unsigned long long>(job.frames), job.frame_bytes, job.lanes, bytes / seconds * 1e-9, sender_cpu / gib,
      receiver_cpu / gib, static_cast<unsigned long long>(receiver.checksum),
      static_cast<unsigned long long>(receiver.bad));
  lanes.clear();
  receiver.close();
  return receiver.bad == 0 && receiver.frames == job.frames ? 0 : 1;
}

}  // namespace
}  // namespace canarynet

int main(int argc, char** argv) {
  canarynet::Job job;
  job.frames = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200;
  job.frame_bytes = argc > 2 ? static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 128 * 1024;
  job.lanes = argc > 3 ? std::atoi(argv[3]) : 1;
  const std::string landing = argc > 4 ? argv[4] : "span";
  using Kind = canarynet::Landing::Kind;
  job.landing = landing == "slot" ? Kind::kSlot : landing == "discard" ? Kind::kDiscard : Kind::kSpan;
  if (job.frame_bytes > canarynet::wire::kPayloadMax || job.lanes < 1) return 2;
  return canarynet::run(job);
}
