// transport/shm/shm_lane_bench.cc -- bytes per second and CPU time of one shared-memory lane between two threads,
// copied or by reference.
//
//   shm_lane_bench [FRAMES] [FRAME_BYTES] [copy|reference] [span|slot] [RING_KIB]
//
// The sender walks through 64 MiB, as an operation does, so its bytes come from memory and not from a cache. Prints
// rate, CPU seconds per GiB of both threads, a checksum of what arrived, and the time of an empty frame there and back.
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "transport/shm/shm_lane_factory.h"

namespace canarynet {
namespace {

constexpr std::size_t kSourceBytes = std::size_t{64} << 20;
constexpr int kRounds = 200;

double thread_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Job {
  std::uint64_t frames = 200;
  std::uint32_t frame_bytes = 128 * 1024;
  bool reference = false;
  Landing::Kind landing = Landing::Kind::kSlot;
  std::size_t ring_bytes = ShmOptions{}.ring_bytes;
};

ShmOptions options(std::uint8_t number, const Job& job, shm::ArenaStore* arenas) {
  ShmOptions out;
  out.name.family = Address::Family::kSharedMemory;
  out.name.bytes[0] = number;
  const auto pid = static_cast<std::uint32_t>(::getpid());
  for (std::size_t i = 0; i < 4; ++i) out.name.bytes[8 + i] = static_cast<std::uint8_t>(pid >> (8 * i));
  out.ring_bytes = job.ring_bytes;
  out.arenas = arenas;
  return out;
}

void poll_or_sleep(LaneFactory& factory, Nanos now) {
  if (factory.poll(now) != 0 || !factory.prepare_to_sleep()) return;
  pollfd entry{factory.poll_fd(), POLLIN, 0};
  ::poll(&entry, 1, 100);
}

// Either end: counts what arrives; the far one sends empty frames back.
class End : public LaneSink, public LaneAcceptor {
 public:
  explicit End(const Job& job) : job_(job), memory_(std::size_t{job.frame_bytes} * 8) {}
  void on_accept(std::unique_ptr<Lane> accepted) override {
    accepted->set_sink(this);
    lane = std::move(accepted);
    echoes = true;
  }
  void on_up(Lane&) override { up = true; }
  Landing landing_for(Lane&, const wire::Header& header) override {
    return {.kind = job_.landing, .data = memory_.data() + (header.piece % 8) * job_.frame_bytes, .cookie = 0};
  }
  void on_frame(Lane& from, const wire::Header& header, const Arrival& arrival) override {
    ++frames;
    bad += !arrival.intact;
    checksum += header.payload_crc32 * (header.piece + 1);
    if (!echoes || header.payload_bytes != 0) return;
    from.send(header, nullptr, 0);
    from.flush(Nanos{});
  }
  void on_writable(Lane&) override {}
  void on_down(Lane&, const Status&, bool) override { down = true; }

  std::unique_ptr<Lane> lane;
  std::uint64_t frames = 0, bad = 0, checksum = 0;
  bool up = false, down = false, echoes = false;

 private:
  const Job& job_;
  std::vector<std::byte> memory_;
};

int run(const Job& job) {
  const SystemClock clock;
  shm::ArenaStore arenas;
  auto made = ShmLaneFactory::create(options(1, job, nullptr));
  if (!made.ok()) return std::fprintf(stderr, "%s\n", made.status().to_string().c_str()), 1;
  const auto far = made.take();
  End receiver(job), sender(job);
  far->set_acceptor(&receiver);
  const Address address = far->rails()[0].address;
  double receiver_cpu = 0;
  std::thread thread([&] {
    while (!receiver.down) {
      if (receiver.frames <= job.frames) receiver_cpu = thread_cpu_seconds();
      poll_or_sleep(*far, clock.now());
    }
    receiver.lane.reset();
  });

  const auto near = ShmLaneFactory::create(options(2, job, &arenas)).take();
  auto lane = near->dial(0, address, sender).take();
  while (!sender.up && !sender.down) poll_or_sleep(*near, clock.now());

  std::vector<std::byte> own(job.reference ? 0 : kSourceBytes);
  std::byte* source = job.reference ? static_cast<std::byte*>(arenas.allocate(kSourceBytes).value()) : own.data();
  for (std::size_t i = 0; i < kSourceBytes; ++i) source[i] = static_cast<std::byte>(i % job.frame_bytes * 37);
  wire::Header header;
  header.payload_bytes = job.frame_bytes;
  header.payload_crc32 = wire::payload_crc(source, job.frame_bytes);
  const std::uint64_t places = kSourceBytes / job.frame_bytes;
  const double cpu_before = thread_cpu_seconds();
  const Nanos begin = clock.now();
  std::uint64_t sent = 0;
  // The empty frame behind them comes back when all have been dealt with.
  while (sender.frames == 0 && !sender.down) {
    const bool was = sent <= job.frames;
    while (sent <= job.frames && lane->queued_bytes() < std::size_t{4} * job.frame_bytes) {
      if (sent == job.frames) header.payload_bytes = header.payload_crc32 = 0;
      header.piece = static_cast<std::uint32_t>(sent);
      wire::seal(header);
      if (!lane->send(header, source + sent % places * job.frame_bytes, sent)) break;
      ++sent;
    }
    if (was) lane->flush(clock.now());
    if (sent > job.frames || lane->queued_bytes() != 0) poll_or_sleep(*near, clock.now());
  }
  const double seconds = (clock.now() - begin).seconds();
  const double sender_cpu = thread_cpu_seconds() - cpu_before;
  const Nanos rounds_began = clock.now();
  for (std::uint64_t round = 2; round < kRounds + 2 && !sender.down; ++round) {
    lane->send(header, nullptr, 0);
    lane->flush(clock.now());
    while (sender.frames < round && !sender.down) poll_or_sleep(*near, clock.now());
  }
  const double round_us = (clock.now() - rounds_began).seconds() / kRounds * 1e6;
  lane.reset();
  thread.join();
  const double bytes = static_cast<double>(job.frames) * job.frame_bytes;
  const double gib = bytes / (1 << 30);
  std::printf(
      "%llu frames of %u bytes by %s: %.2f GB/s, CPU s/GiB: sender %.3f receiver %.3f, there and back %.1f us, "
      "checksum "
      "%016llx, bad %llu\n",
      static_cast<unsigned long long>(job.frames), job.frame_bytes, job.reference ? "reference" : "copy",
      bytes / seconds * 1e-9, sender_cpu / gib, receiver_cpu / gib, round_us,
      static_cast<unsigned long long>(receiver.checksum), static_cast<unsigned long long>(receiver.bad));
  return receiver.bad == 0 && receiver.frames == job.frames + 1 + kRounds ? 0 : 1;
}

}  // namespace
}  // namespace canarynet

int main(int argc, char** argv) {
  canarynet::Job job;
  if (argc > 1) job.frames = std::strtoull(argv[1], nullptr, 10);
  if (argc > 2) job.frame_bytes = static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10));
  if (argc > 3) job.reference = std::string(argv[3]) == "reference";
  if (argc > 4 && std::string(argv[4]) == "span") job.landing = canarynet::Landing::Kind::kSpan;
  if (argc > 5) job.ring_bytes = std::strtoull(argv[5], nullptr, 10) << 10;
  if (job.frames == 0 || job.frame_bytes <= canarynet::kInlinePayloadBytes ||
      job.frame_bytes > canarynet::wire::kPayloadMax)
    return 2;
  try {
    return canarynet::run(job);
  } catch (const std::exception& error) {  // memory ran out
    std::fprintf(stderr, "shm_lane_bench: %s\n", error.what());
    return 1;
  }
}
