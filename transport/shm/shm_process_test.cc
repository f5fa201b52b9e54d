// Shared-memory lanes between two real processes, one of which dies or stops: what the other one sees, and what is left
// behind.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <sstream>
#include <string>

#include "transport/shm/leftovers_test_util.h"
#include "transport/shm/shm_fixture.h"

namespace canarynet {
namespace {

using lane_test::Doorman;
using lane_test::make_header;
using lane_test::pattern_bytes;
using lane_test::Recorder;

std::string read_all(const char* path) {
  std::stringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// Names of this host's abstract sockets, mappings and descriptors of this process, files in shared memory: by what is
// ours in them.
std::string leftovers(const std::string& name) {
  std::string out;
  const auto lines_with = [&](const char* path, const std::string& what) {
    std::istringstream in(read_all(path));
    for (std::string line; std::getline(in, line);) {
      if (line.find(what) != std::string::npos) out += line + "\n";
    }
  };
  lines_with("/proc/net/unix", name);
  lines_with("/proc/self/maps", "canary-");
  return out + test::descriptors_of_ours();
}

std::string hexadecimal(const Address& name) {
  std::string out = "canarynet-";
  for (const std::uint8_t byte : name.bytes) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

// This process accepts, its child dials and lives as `body` says.
class ShmProcess : public ::testing::Test {
 protected:
  struct Child {
    ShmLaneFactory& factory;
    Recorder& sink;
    Lane& lane;
    shm::ArenaStore& arenas;
    SystemClock& clock;
    // The other side may send now.
    void ready() const {
      lane.send(make_header(0, {}), nullptr, 0);
      lane.flush(clock.now());
    }
    void step() const {
      if (factory.poll(clock.now()) != 0 || !factory.prepare_to_sleep()) return;
      pollfd entry{factory.poll_fd(), POLLIN, 0};
      ::poll(&entry, 1, 1);
    }
  };

  // `body` does not return in the child: it ends in _exit or in a signal.
  void start(const std::function<void(Child&)>& body) {
    const ShmOptions options = shm_test_options(&arenas_);
    const ShmOptions child_options = shm_test_options();
    child_name_ = child_options.name;
    name_ = options.name;
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::alarm(60);
      ::close(ready[1]);
      char byte;
      if (::read(ready[0], &byte, 1) != 1) ::_exit(3);
      ::close(ready[0]);
      shm::ArenaStore arenas;
      ShmOptions own = child_options;
      own.arenas = &arenas;
      auto factory = ShmLaneFactory::create(own).take();
      Address to = options.name;
      to.port = 1;
      Recorder sink;
      auto lane = factory->dial(0, to, sink);
      if (!lane.ok()) ::_exit(4);
      SystemClock clock;
      Child self{*factory, sink, *lane.value(), arenas, clock};
      while (sink.ups == 0) self.step();
      body(self);
      ::_exit(5);
    }
    ::close(ready[0]);
    auto made = ShmLaneFactory::create(options);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    factory_ = made.take();
    factory_->set_acceptor(&doorman_);
    ASSERT_EQ(::write(ready[1], "x", 1), 1);
    ::close(ready[1]);
    ASSERT_TRUE(run_until([&] { return doorman_.lanes.size() == 1; }));
  }
  void TearDown() override {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
  }
  bool run_until(const std::function<bool()>& done, Nanos limit = 20_s) {
    const Nanos end = clock_.now() + limit;
    while (!done()) {
      if (clock_.now() >= end) return false;
      if (factory_->poll(clock_.now()) != 0 || !factory_->prepare_to_sleep()) continue;
      pollfd entry{factory_->poll_fd(), POLLIN, 0};
      ::poll(&entry, 1, 1);
    }
    return true;
  }
  Lane& lane() { return *doorman_.lanes.at(0); }
  bool send(std::uint32_t piece, std::span<const std::byte> payload, std::uint64_t cookie) {
    const bool taken = lane().send(make_header(piece, payload), payload.data(), cookie);
    lane().flush(clock_.now());
    return taken;
  }
  // Everything of ours closed as well, nothing of either process is left.
  void expect_nothing_left() {
    ::waitpid(child_, nullptr, 0);
    child_ = -1;
    EXPECT_EQ(leftovers(hexadecimal(child_name_)).find(hexadecimal(child_name_)), std::string::npos);
    doorman_.lanes.clear();
    factory_.reset();
    EXPECT_EQ(leftovers(hexadecimal(name_)), "");
  }

  SystemClock clock_;
  shm::ArenaStore arenas_;
  Recorder sink_;
  Doorman doorman_{&sink_};
  std::unique_ptr<ShmLaneFactory> factory_;
  Address name_, child_name_;
  pid_t child_ = -1;
};

TEST_F(ShmProcess, FramesOfAllSizesPassBetweenProcesses) {
  start([](Child& self) {
    while (self.sink.frames < 40 || !self.sink.received.back().payload.empty()) self.step();
    std::uint32_t wrong = 0;
    for (const auto& got : self.sink.received) {
      wrong += !got.intact || got.payload != pattern_bytes(got.header.piece, got.payload.size());
    }
    self.lane.send(make_header(wrong, {}), nullptr, 0);
    self.lane.flush(self.clock.now());
    for (;;) self.step();
  });
  std::vector<std::vector<std::byte>> payloads;
  for (std::uint32_t i = 0; i < 40; ++i) payloads.push_back(pattern_bytes(i, std::size_t{1} << (i / 2 % 21)));
  for (std::uint32_t i = 0; i < 40; ++i) ASSERT_TRUE(send(i, payloads[i], i));
  ASSERT_TRUE(send(0, {}, 99));
  ASSERT_TRUE(run_until([&] { return sink_.frames == 1; }));
  EXPECT_EQ(sink_.received[0].header.piece, 0u) << "frames that arrived wrong";
}

TEST_F(ShmProcess, AKilledPeerIsAHangupAndNothingOfItIsLeft) {
  start([](Child& self) {
    const auto payload = pattern_bytes(1, 100'000);
    auto made = self.arenas.allocate(1 << 20);
    auto* memory = static_cast<std::byte*>(made.value());
    for (std::uint32_t i = 0;; ++i) {
      self.lane.send(make_header(i, payload), payload.data(), i);
      const std::span<const std::byte> all(memory, 1 << 20);
      self.lane.send(make_header(i, all), all.data(), i);
      self.lane.flush(self.clock.now());
      self.step();
    }
  });
  sink_.keep = false;
  const std::vector<std::byte> ours(1 << 20);
  ASSERT_TRUE(run_until([&] {
    for (std::uint32_t i = 0; i < 4; ++i) send(i, ours, i);
    return sink_.frames > 50;
  }));
  ::kill(child_, SIGKILL);
  const Nanos killed = clock_.now();
  ASSERT_TRUE(run_until([&] { return sink_.downs == 1; }));
  EXPECT_TRUE(sink_.hangup) << sink_.reason;
  EXPECT_NE(sink_.reason.find("pid " + std::to_string(child_)), std::string::npos) << sink_.reason;
  EXPECT_LT(clock_.now() - killed, 1_s);
  expect_nothing_left();
}

TEST_F(ShmProcess, MemoryThatAStoppedPeerIsReadingIsTakenFromItByCancel) {
  start([](Child& self) {
    bool same = true;
    self.sink.keep = false;
    self.sink.frame_hook = [&](Lane&, const wire::Header&, const Arrival& arrival) {
      ::raise(SIGSTOP);
      same = arrival.intact && std::all_of(arrival.payload.begin(), arrival.payload.end(),
                                           [](std::byte b) { return b == std::byte{0x11}; });
    };
    self.ready();
    while (self.sink.frames == 0) self.step();
    ::_exit(same ? 0 : 1);
  });
  auto* memory = static_cast<std::byte*>(arenas_.allocate(1 << 20).value());
  std::fill_n(memory, 1 << 20, std::byte{0x11});
  ASSERT_TRUE(run_until([&] { return sink_.frames == 1; }));
  ASSERT_TRUE(send(1, {memory, 1 << 20}, 7));
  ASSERT_NE(arenas_.find(memory, 1), nullptr);
  int how = 0;
  ASSERT_EQ(::waitpid(child_, &how, WUNTRACED), child_);
  ASSERT_TRUE(WIFSTOPPED(how)) << how;
  const Nanos began = clock_.now();
  EXPECT_FALSE(lane().cancel(7)) << "its reading had begun";
  EXPECT_LT(clock_.now() - began, 1_s);
  std::fill_n(memory, 1 << 20, std::byte{0xee});
  EXPECT_EQ(arenas_.find(memory, 1), nullptr) << "what peers no longer see must not be referred to";
  ::kill(child_, SIGCONT);
  ASSERT_EQ(::waitpid(child_, &how, 0), child_);
  child_ = -1;
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << "it saw memory that had been given back";
}

TEST_F(ShmProcess, APeerKilledInTheMiddleOfReadingCostsNothing) {
  start([](Child& self) {
    self.sink.frame_hook = [](Lane&, const wire::Header&, const Arrival&) { ::raise(SIGKILL); };
    self.ready();
    for (;;) self.step();
  });
  auto* memory = static_cast<std::byte*>(arenas_.allocate(1 << 20).value());
  ASSERT_TRUE(run_until([&] { return sink_.frames == 1; }));
  ASSERT_TRUE(send(1, {memory, 1 << 20}, 7));
  int how = 0;
  ASSERT_EQ(::waitpid(child_, &how, 0), child_);
  EXPECT_FALSE(lane().cancel(7));
  EXPECT_NE(arenas_.find(memory, 1), nullptr) << "nobody reads it any more: it stays shared";
  std::uint32_t id = 0;
  EXPECT_TRUE(arenas_.release(memory, &id).ok());
  ASSERT_TRUE(run_until([&] { return sink_.downs == 1; }));
  EXPECT_TRUE(sink_.hangup);
  expect_nothing_left();
}

}  // namespace
}  // namespace canarynet
