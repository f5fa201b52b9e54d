#include "tests/nccl/endpoint.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "tests/nccl/call_timer.h"
#include "tests/nccl/log.h"

namespace nccltest {
namespace {

constexpr std::size_t kGuardBytes = 4096;   // after each slot
constexpr std::size_t kGuardChecked = 192;  // part of it: more than a chunk's rounding, cheap enough for each time
constexpr unsigned char kPoison = 0xA7;
constexpr unsigned char kClosed = 0x3C;
constexpr int kNotWritten = 0x5A5A5A5A;
constexpr int kSizesBytes = 64;  // the length of NCCL's array
constexpr std::uint64_t kLandingLimitNs = 10'000'000'000;
void* const kBadRequest = reinterpret_cast<void*>(std::uintptr_t{0x5});
void* const kHint = reinterpret_cast<void*>(kOptionalRecvCompletion);

constexpr std::size_t kSampleBytes = 64;

}  // namespace

std::uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

Endpoint::Endpoint(Net& net, const EndpointOptions& options, const Traffic& traffic)
    : net_(net), options_(options), traffic_(traffic), slots_(static_cast<std::size_t>(options.depth)) {
  const std::size_t slots = slots_.size() * group();
  for (int i = 0; i < kProtocolBuffers; ++i) {
    Area& area = areas_[i];
    area.slot_bytes = traffic_.largest(static_cast<Protocol>(i));
    area.stride = (area.slot_bytes + 2 * kGuardBytes - 1) / kGuardBytes * kGuardBytes;
    area.mapped = area.stride * slots;
    void* data = mmap(nullptr, area.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      say("out of memory: %zu bytes of buffers", area.mapped);
      std::abort();
    }
    area.data = static_cast<unsigned char*>(data);
    // The memory is touched before time is measured, as pinned memory would be.
    std::memset(area.data, kPoison, area.mapped);
  }
  if (options_.gap_ns_min > 0) gaps_.reserve(1 << 16);
}

Endpoint::~Endpoint() {
  for (Area& area : areas_) munmap(area.data, area.mapped);
}

Result Endpoint::register_buffers() {
  for (Area& area : areas_) {
    const Result result = timed(CallOf::kService, "regMr",
                                [&] { return net_.reg_mr(comm_, area.data, area.mapped, kPtrHost, &area.mhandle); });
    if (result != kSuccess) return result;
    area.registered = true;
  }
  return kSuccess;
}

Result Endpoint::deregister_buffers() {
  Result first = kSuccess;
  for (Area& area : areas_) {
    if (!area.registered) continue;
    area.registered = false;
    const Result result = timed(CallOf::kService, "deregMr", [&] { return net_.dereg_mr(comm_, area.mhandle); });
    if (first == kSuccess) first = result;
  }
  return first;
}

Result Endpoint::close() {
  if (!comm_) return kSuccess;
  void* comm = comm_;
  comm_ = nullptr;
  const Result result = options_.sends ? net_.close_send(comm) : net_.close_recv(comm);
  closed_ = true;
  if (!options_.sends) {
    for (Area& area : areas_) std::memset(area.data, kClosed, area.mapped);
  }
  return result;
}

bool Endpoint::untouched_since_close() const {
  if (options_.sends || !closed_) return true;
  return std::all_of(std::begin(areas_), std::end(areas_),
                     [](const Area& area) { return check_bytes(area.data, area.mapped, kClosed) == area.mapped; });
}

bool Endpoint::stop(const char* call, Result result) {
  error_ = result;
  error_call_ = call;
  return true;
}

bool Endpoint::step(std::uint64_t now, bool may_post) {
  bool moved = false;
  if (may_post && posted() < limit() && posted() - consumed() < static_cast<std::uint64_t>(options_.depth) * group()) {
    moved = post(now) || moved;
    if (error_ != kSuccess) return true;
  }
  if (tested_ < posted()) moved = test_oldest(now) || moved;
  if (error_ != kSuccess) return true;
  if (consumed() < tested_) moved = land(now) || moved;
  return moved;
}

// Within a group sends go out in another order than the receives are listed in; their tags say where they belong.
std::uint64_t Endpoint::sent_sequence(std::uint64_t sequence) const {
  const std::uint64_t n = group(), base = sequence / n * n;
  return base + (sequence - base + base / n) % n;
}

int Endpoint::tag_of(std::uint64_t sequence) const {
  return options_.tag + (group() > 1 ? 1000 * static_cast<int>(sequence % group()) : 0);
}

bool Endpoint::post(std::uint64_t now) {
  if (last_consumed_ns_ == 0) last_consumed_ns_ = now;
  const std::uint64_t first = posted();
  Slot& s = slot(first);
  const std::uint64_t members = options_.sends ? 1 : group();
  if (prepared_ == first) {
    for (std::uint64_t k = 0; k < members; ++k) {
      const std::uint64_t sequence = options_.sends ? sent_sequence(first) : first + k;
      const Message message = traffic_.at(options_.connection, sequence);
      const Area& area = areas_[static_cast<int>(message.protocol)];
      const std::size_t index = sequence % (slots_.size() * group());
      const std::uint64_t member = options_.sends ? first % group() : k;
      s.message[member] = message;
      s.data[member] = area.data + index * area.stride;
      if (options_.sends) {
        if (options_.check == Check::kFull) {
          fill_pattern(s.data[member], message.size, pattern_key(options_.connection, sequence));
        } else if (options_.check == Check::kSample) {
          const std::uint64_t key = pattern_key(options_.connection, sequence);
          const std::size_t end = std::min(message.size, kSampleBytes);
          fill_pattern(s.data[member] + message.size - end, end, key + 1);
          fill_pattern(s.data[member], end, key);
        }
      } else if (options_.check == Check::kFull) {
        std::memset(s.data[member], kPoison, message.bound + kGuardChecked);
      }
    }
    prepared_ = first + members;
  }
  return options_.sends ? post_send(s, first) : post_receive(s, first);
}

bool Endpoint::post_send(Slot& s, std::uint64_t sequence) {
  const std::uint64_t member = sequence % group();
  const Message& message = s.message[member];
  // The slot still holds the request that it had eight messages ago; now and then a value that is no request at all.
  void* const before = sequence % 2 || !s.request[member] ? kBadRequest : s.request[member];
  void* request = before;
  const Result result = timed(CallOf::kProgress, "isend", [&] {
    return net_.isend(comm_, s.data[member], message.size, tag_of(sent_sequence(sequence)),
                      areas_[static_cast<int>(message.protocol)].mhandle, &request);
  });
  if (result != kSuccess) return stop("isend", result);
  if (request == kBadRequest) {
    fail("connection %llx: isend of message %llu left *request untouched",
         static_cast<unsigned long long>(options_.connection), static_cast<unsigned long long>(sequence));
    return stop("isend", kInternalError);
  }
  if (!request) return false;
  s.request[member] = request;
  posted_.store(sequence + 1, std::memory_order_release);
  return true;
}

bool Endpoint::post_receive(Slot& s, std::uint64_t sequence) {
  void* data[Net::kMaxGroup];
  std::size_t sizes[Net::kMaxGroup];
  int tags[Net::kMaxGroup];
  void* mhandles[Net::kMaxGroup];
  for (std::uint64_t k = 0; k < group(); ++k) {
    data[k] = s.data[k];
    sizes[k] = s.message[k].bound;
    tags[k] = tag_of(sequence + k);
    mhandles[k] = areas_[static_cast<int>(s.message[k].protocol)].mhandle;
  }
  s.hinted = group() == 1 && s.message[0].protocol != Protocol::kSimple;
  void* const before = s.hinted ? kHint : sequence % 2 || !s.request[0] ? kBadRequest : s.request[0];
  void* request = before;
  const Result result = timed(CallOf::kProgress, "irecv",
                              [&] { return net_.irecv(comm_, options_.group, data, sizes, tags, mhandles, &request); });
  if (result != kSuccess) return stop("irecv", result);
  if (request == kBadRequest || request == kHint) {
    fail("connection %llx: irecv of message %llu left *request at %p",
         static_cast<unsigned long long>(options_.connection), static_cast<unsigned long long>(sequence), request);
    return stop("irecv", kInternalError);
  }
  if (!request) return false;
  s.request[0] = request;
  s.deadline_ns = 0;
  posted_.store(sequence + group(), std::memory_order_release);
  return true;
}

bool Endpoint::test_oldest(std::uint64_t now) {
  const std::uint64_t members = options_.sends ? 1 : group();
  Slot& s = slot(tested_);
  int done = kNotWritten;
  int sizes[kSizesBytes] = {};
  const Result result = timed(CallOf::kProgress, "test", [&] {
    return net_.test(s.request[options_.sends ? tested_ % group() : 0], &done, sizes);
  });
  if (result != kSuccess) return stop("test", result);
  const auto where = static_cast<unsigned long long>(options_.connection);
  if (done != 0 && done != 1) {
    fail("connection %llx: test of message %llu left *done at %#x", where, static_cast<unsigned long long>(tested_),
         done);
    return stop("test", kInternalError);
  }
  if (!done) return false;
  if (!std::all_of(sizes + members, sizes + kSizesBytes, [](int size) { return size == 0; })) {
    fail("connection %llx: test of message %llu wrote more sizes than it has parts", where,
         static_cast<unsigned long long>(tested_));
  }
  if (!s.hinted || arrived(s, tested_, false)) {
    for (std::uint64_t k = 0; k < members; ++k) {
      const std::size_t want = s.message[options_.sends ? tested_ % group() : k].size;
      if (static_cast<std::size_t>(sizes[k]) != want) {
        fail("connection %llx: message %llu is %zu bytes, test says %d", where,
             static_cast<unsigned long long>(tested_ + k), want, sizes[k]);
      }
    }
  }
  tested_ += members;
  s.deadline_ns = now + kLandingLimitNs;
  return true;
}

bool Endpoint::arrived(Slot& s, std::uint64_t sequence, bool report) {
  if (options_.check == Check::kNone) return true;
  bool right = true;
  for (std::uint64_t k = 0; k < group(); ++k) {
    const Message& message = s.message[k];
    const std::uint64_t key = pattern_key(options_.connection, sequence + k);
    std::size_t wrong = message.bound;
    if (options_.check == Check::kFull) {
      const std::size_t good = check_pattern(s.data[k], message.size, key);
      const std::size_t rest = message.bound + kGuardChecked - message.size;
      const std::size_t clean = good < message.size ? 0 : check_bytes(s.data[k] + message.size, rest, kPoison);
      if (good == message.size && clean == rest) continue;
      wrong = good + clean;
    } else {
      const std::size_t end = std::min(message.size, kSampleBytes);
      const std::size_t head = check_pattern(s.data[k], end, key);
      // Short messages overlap, so only the head is whole then.
      const bool tail =
          message.size < 2 * kSampleBytes || check_pattern(s.data[k] + message.size - end, end, key + 1) == end;
      if (head == end && tail) continue;
      wrong = head < end ? head : message.size - end;
    }
    right = false;
    if (report) {
      const std::size_t at = std::min(wrong, message.bound + kGuardChecked - 1);
      fail("connection %llx from rank %d: message %llu (%zu bytes, posted with %zu): byte %zu is %#x%s",
           static_cast<unsigned long long>(options_.connection), options_.peer,
           static_cast<unsigned long long>(sequence + k), message.size, message.bound, wrong, s.data[k][at],
           wrong >= message.size ? ", behind the message, which must stay untouched" : "");
    }
  }
  return right;
}

// A receive whose completion was said to be optional may be done before its bytes have landed: the GPU waits for those
// by looking at the data.
bool Endpoint::land(std::uint64_t now) {
  const std::uint64_t sequence = consumed(), members = options_.sends ? 1 : group();
  Slot& s = slot(sequence);
  std::uint64_t bytes = 0;
  for (std::uint64_t k = 0; k < members; ++k) bytes += s.message[options_.sends ? sequence % group() : k].size;
  if (!options_.sends) {
    const bool last = !s.hinted || now > s.deadline_ns;
    if (!arrived(s, sequence, last) && !last) return false;
    if (options_.gap_ns_min > 0 && now - last_consumed_ns_ > options_.gap_ns_min && gaps_.size() < gaps_.capacity()) {
      gaps_.push_back({last_consumed_ns_, now});
    }
    last_consumed_ns_ = now;
  }
  bytes_.store(bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_release);
  consumed_.store(sequence + members, std::memory_order_release);
  return true;
}

}  // namespace nccltest
