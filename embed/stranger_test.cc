// Jobs that strangers knock at: another user's program with what any user may read, programs of another version or
// another job, and more connections than the process may have open. In a network namespace of its own, so that nobody
// else's job is knocked at. Needs root.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>

#include "base/random.h"
#include "control/messages.h"
#include "embed/job_test_util.h"
#include "transport/wire.h"

namespace canarynet {
namespace {

using test::last_error;
using test::Process;
using test::Strings;

constexpr uid_t kNobody = 65534;

bool enter_own_network() {
  if (unshare(CLONE_NEWNET) != 0) return false;
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq lo{};
  std::strcpy(lo.ifr_name, "lo");
  lo.ifr_flags = IFF_UP;
  const bool up = ioctl(fd, SIOCSIFFLAGS, &lo) == 0;
  close(fd);
  return up;
}

class Strangers : public ::testing::Test {
 protected:
  void SetUp() override {
    static const bool entered = enter_own_network();
    if (!entered) GTEST_SKIP() << "making a network namespace needs root";
  }
};

// --- what a program without the library can do -----------------------------------------------------------------------

std::vector<std::string> lines_of(const char* path) {
  std::ifstream file(path);
  std::vector<std::string> out;
  for (std::string line; std::getline(file, line);) out.push_back(line);
  return out;
}

// The names of abstract sockets of Canary's: "canarynet-" and 32 digits, of which the last 16 are the process's own.
std::set<std::string> socket_names() {
  std::set<std::string> out;
  for (const std::string& line : lines_of("/proc/net/unix")) {
    const std::size_t at = line.find("@canarynet-");
    if (at != std::string::npos) out.insert(line.substr(at + 1));
  }
  return out;
}

std::set<std::uint16_t> listening_ports() {
  std::set<std::uint16_t> out;
  for (const std::string& line : lines_of("/proc/net/tcp")) {
    unsigned address = 0, port = 0, state = 0;
    if (std::sscanf(line.c_str(), " %*d: %8X:%4X %*8X:%*4X %2X", &address, &port, &state) == 3 && state == 0x0A)
      out.insert(static_cast<std::uint16_t>(port));
  }
  return out;
}

int connect_to_port(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

void send_frame(int fd, wire::Kind kind, const void* data, std::size_t bytes) {
  std::vector<std::byte> out(sizeof(wire::Header) + bytes);
  wire::Header h;
  h.kind = kind;
  h.payload_bytes = static_cast<std::uint32_t>(bytes);
  h.payload_crc32 = wire::payload_crc(data, bytes);
  wire::seal(h);
  std::memcpy(out.data(), &h, sizeof h);
  std::memcpy(out.data() + sizeof h, data, bytes);
  [[maybe_unused]] const ssize_t n = send(fd, out.data(), out.size(), MSG_NOSIGNAL);
}

void say_hello(int fd, const wire::HelloPayload& hello) { send_frame(fd, wire::Kind::kHello, &hello, sizeof hello); }
void say(int fd, const control::Message& message) {
  const auto bytes = control::encode(message);
  send_frame(fd, wire::Kind::kControl, bytes.data(), bytes.size());
}

// Everything that comes within `limit_ms`, or until the other end closes.
std::string read_all(int fd, int limit_ms) {
  std::string out;
  const auto began = std::chrono::steady_clock::now();
  for (;;) {
    const int left = limit_ms - static_cast<int>(test::seconds_since(began) * 1000);
    pollfd p{fd, POLLIN, 0};
    char part[65536];
    if (left <= 0 || poll(&p, 1, left) <= 0) return out;
    const ssize_t n = recv(fd, part, sizeof part, MSG_DONTWAIT);
    if (n <= 0) return out;
    out.append(part, static_cast<std::size_t>(n));
  }
}

// Control messages among the bytes of a stream.
std::vector<control::Message> messages_in(std::string_view bytes) {
  std::vector<control::Message> out;
  for (wire::Header h; bytes.size() >= sizeof h;) {
    std::memcpy(&h, bytes.data(), sizeof h);
    bytes.remove_prefix(sizeof h);
    if (bytes.size() < h.payload_bytes) break;
    if (h.kind == wire::Kind::kControl) {
      auto m = control::decode({reinterpret_cast<const std::byte*>(bytes.data()), h.payload_bytes});
      if (m.ok()) out.push_back(std::move(m.value()));
    }
    bytes.remove_prefix(h.payload_bytes);
  }
  return out;
}

// The hello that a stream begins with, and the version of its header; 0: none.
std::pair<int, wire::HelloPayload> hello_in(std::string_view bytes) {
  wire::Header h;
  wire::HelloPayload hello;
  if (bytes.size() < sizeof h + sizeof hello) return {};
  std::memcpy(&h, bytes.data(), sizeof h);
  std::memcpy(&hello, bytes.data() + sizeof h, sizeof hello);
  return h.kind == wire::Kind::kHello ? std::pair(int{h.version}, hello) : std::pair(0, hello);
}

// --- ranks -----------------------------------------------------------------------------------------------------------

// Lines of the library's log, kept for the report.
std::mutex log_mutex;
std::string log_lines;
void keep_log() {
  canary_set_log(
      [](void*, int, const char* line, size_t length) {
        const std::lock_guard lock(log_mutex);
        log_lines.append(line, length).append("\n");
      },
      nullptr, 2);
}
std::string kept_log() {
  const std::lock_guard lock(log_mutex);
  return log_lines;
}

// Exchanges until `seconds` have passed on rank 0; "" when every result was right.
std::string exchange_for(canary_context* context, double seconds) {
  const auto began = std::chrono::steady_clock::now();
  const int ranks = canary_world_size(context);
  for (float go_on = 1; go_on != 0;) {
    go_on = canary_rank(context) == 0 && test::seconds_since(began) > seconds ? 0 : 1;
    if (canary_broadcast(canary_world(context), &go_on, &go_on, 1, CANARY_F32, 0, nullptr) != CANARY_OK)
      return last_error().message;
    std::vector<float> v(50'000, static_cast<float>(canary_rank(context) + 1));
    if (canary_all_reduce(canary_world(context), v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, nullptr) !=
        CANARY_OK)
      return last_error().message;
    const auto sum = static_cast<float>(ranks * (ranks + 1)) / 2;
    if (!std::all_of(v.begin(), v.end(), [&](float x) { return x == sum; })) return "a wrong sum";
    usleep(2'000);
  }
  return {};
}

// Joins, exchanges, leaves. "" when all went well.
std::string live(const std::string& join, int rank, int ranks, const Strings& settings, double seconds) {
  canary_context* context = nullptr;
  if (test::init(join, rank, ranks, settings, &context) != CANARY_OK) return last_error().message;
  std::string wrong = exchange_for(context, seconds);
  canary_nic_stats nics[8];
  std::size_t count = 0;
  canary_stats(context, nics, 8, &count);
  for (std::size_t i = 0; i < count && wrong.empty(); ++i) {
    if (nics[i].failovers != 0) wrong = std::string("a lane on ") + nics[i].device + " was given up";
  }
  canary_finalize(context);
  return wrong;
}

bool wait_for(const std::function<bool()>& done, double seconds) {
  for (const auto began = std::chrono::steady_clock::now(); test::seconds_since(began) < seconds; usleep(5'000)) {
    if (done()) return true;
  }
  return false;
}

// --- another user's program ------------------------------------------------------------------------------------------

// All that can be made of a name that stands in /proc/net/unix: its two halves, and what a generator seeded with them
// gives.
std::vector<std::uint64_t> guesses_from(const std::set<std::string>& names) {
  std::vector<std::uint64_t> out{0};
  for (const std::string& name : names) {
    for (const std::size_t half : {0, 1}) {
      std::uint64_t seed = 0;
      for (std::size_t i = 0; i < 8; ++i) {
        const std::string byte = name.substr(std::strlen("canarynet-") + 16 * half + 2 * i, 2);
        seed |= static_cast<std::uint64_t>(std::stoul(byte, nullptr, 16)) << (8 * i);
      }
      out.push_back(seed);
      out.push_back(Random(seed).next());
      out.push_back(Random(seed ^ 0x6a6f622d746f6b65ull).next());  // how the job's token was made once
    }
  }
  return out;
}

// Says the hellos of lanes and of a member that comes back, with every guess, to every listener. What it was given, in
// words.
std::string try_to_take_over(std::uint16_t control_port) {
  if (setgid(kNobody) != 0 || setuid(kNobody) != 0) return "could not become another user";
  const std::set<std::string> names = socket_names();
  const std::set<std::uint16_t> ports = listening_ports();
  if (names.size() < 2 || ports.size() < 3) return "the job is not to be seen";
  std::string got;
  for (const std::uint64_t token : guesses_from(names)) {
    for (const std::uint16_t port : ports) {
      std::vector<int> fds;
      for (const std::uint32_t engine : {0u, 1u}) {
        for (const std::uint16_t rail : {std::uint16_t{0}, std::uint16_t{1}}) {
          const int fd = connect_to_port(port);
          if (fd < 0) continue;
          say_hello(fd, {.job = token,
                         .engine = engine,
                         .target = 1 - engine,
                         .rail = rail,
                         .peer_rail = rail,
                         .purpose = wire::kHelloChannel});
          fds.push_back(fd);
        }
      }
      for (const int fd : fds) {
        const std::size_t bytes = read_all(fd, 60).size();
        if (bytes != 0)
          got += "as a lane: " + std::to_string(bytes) + " bytes from port " + std::to_string(port) + "\n";
        close(fd);
      }
    }
    const int fd = connect_to_port(control_port);
    if (fd < 0) return got + "the coordinator does not listen any more\n";
    say_hello(fd, {.job = token, .engine = 1, .rail = 0xffff, .peer_rail = 0xffff, .purpose = wire::kHelloControl});
    say(fd, control::Rejoin{token, 1, 1000});
    for (const control::Message& m : messages_in(read_all(fd, 100))) {
      if (!std::holds_alternative<control::Refuse>(m)) got += "as rank 1: message " + std::to_string(m.index()) + "\n";
    }
    close(fd);
  }
  // And the sockets themselves.
  for (const std::string& name : names) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::memcpy(at.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (connect(fd, reinterpret_cast<sockaddr*>(&at), length) == 0) {
      const std::size_t bytes = read_all(fd, 60).size();
      if (bytes != 0) got += "in shared memory: " + std::to_string(bytes) + " bytes\n";
    }
    close(fd);
  }
  return got;
}

TEST_F(Strangers, AnotherUserGetsNothingWithWhatAnybodyMayRead) {
  const int port = test::free_port();
  std::vector<Process> ranks;
  for (int r = 0; r < 2; ++r) ranks.emplace_back([=] { return live(test::join_url(port), r, 2, {}, 5); });
  Process stranger([=] {
    if (!wait_for([] { return socket_names().size() >= 2; }, 10)) return std::string("no job");
    usleep(300'000);
    return try_to_take_over(static_cast<std::uint16_t>(port));
  });
  EXPECT_EQ(stranger.report(), "");
  for (Process& p : ranks) EXPECT_EQ(p.report(), "");
}

// --- a job that forms ------------------------------------------------------------------------------------------------

control::Join join_of(int rank, std::uint32_t world_size, const char* setting) {
  control::Join j;
  j.engine.ranks = {rank};
  j.engine.host_id = "elsewhere";
  j.engine.host_name = "host-x";
  j.engine.pid = 4711;
  j.world_size = world_size;
  j.must_agree = {setting};
  return j;
}

TEST_F(Strangers, OfAnotherVersionOrAnotherJobDoNotEndAJobThatForms) {
  const int port = test::free_port();
  Process zero([=] {
    keep_log();
    std::string wrong = live(test::join_url(port), 0, 2, {"join_timeout=20s"}, 0.3);
    const std::string log = kept_log();
    const std::string mine = ", rank 0 " + std::to_string(wire::kVersion);
    const std::string newer_versions =
        "speaks protocol version " + std::to_string(wire::kVersion + 1) + ".." + std::to_string(wire::kVersion + 3);
    for (const std::string& part : {newer_versions + mine, "speaks protocol version 1..1" + mine,
                                    std::string("the world sizes differ"), std::string("host-x")}) {
      if (wrong.empty() && log.find(part) == std::string::npos) wrong = part + " is not in the log: " + log;
    }
    return wrong;
  });
  std::vector<int> fds;
  const auto knock = [&] {
    int fd = -1;
    EXPECT_TRUE(wait_for([&] { return (fd = connect_to_port(static_cast<std::uint16_t>(port))) >= 0; }, 10));
    fds.push_back(fd);
    return fd;
  };
  const wire::HelloPayload control{
      .engine = 0xffffffff, .rail = 0xffff, .peer_rail = 0xffff, .purpose = wire::kHelloControl};
  wire::HelloPayload newer = control;
  newer.version_min = wire::kVersion + 1;
  newer.version_max = wire::kVersion + 3;
  say_hello(knock(), newer);
  wire::HelloPayload older = control;
  older.version_min = older.version_max = 1;
  say_hello(knock(), older);
  const auto answer = hello_in(read_all(fds.back(), 500));
  EXPECT_EQ(answer.first, 1) << "in the version of greetings, which a rank of version 1 can read";
  EXPECT_EQ(answer.second.version_max, wire::kVersion);
  say_hello(knock(), control);
  say(fds.back(), join_of(1, 5, "algo=ring"));
  const auto told = messages_in(read_all(fds.back(), 500));
  EXPECT_TRUE(!told.empty() && std::holds_alternative<control::Refuse>(told.front())) << "it hears the reason at once";
  for (const int rank : {0, 1, 7}) {
    say_hello(knock(), control);
    say(fds.back(), join_of(rank, 2, "algo=nosuch"));
  }
  usleep(100'000);
  Process one([=] { return live(test::join_url(port), 1, 2, {}, 0.3); });
  EXPECT_EQ(one.report(), "");
  EXPECT_EQ(zero.report(), "");
  for (const int fd : fds) close(fd);
}

// --- more connections than may be open -------------------------------------------------------------------------------

constexpr std::size_t kIdle = 1100;

std::size_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

void limit_files(rlim_t count) {
  const rlimit limit{count, count};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// Keeps kIdle connections to all listeners together, for as long as the test lasts; `said`: they say a member's hello
// and nothing more.
std::string idle_at_every_port(double seconds, bool said) {
  std::vector<pollfd> fds;
  const wire::HelloPayload control{
      .engine = 0xffffffff, .rail = 0xffff, .peer_rail = 0xffff, .purpose = wire::kHelloControl};
  for (const auto began = std::chrono::steady_clock::now(); test::seconds_since(began) < seconds; usleep(2'000)) {
    const std::set<std::uint16_t> ports = listening_ports();
    for (auto port = ports.begin(); fds.size() < kIdle && !ports.empty(); ++port) {
      if (port == ports.end()) port = ports.begin();
      const int fd = connect_to_port(*port);
      if (fd < 0) break;
      if (said) say_hello(fd, control);
      fds.push_back({fd, POLLRDHUP, 0});
    }
    poll(fds.data(), fds.size(), 0);
    std::erase_if(fds, [](const pollfd& p) { return p.revents != 0 && close(p.fd) == 0; });
  }
  return {};
}

TEST_F(Strangers, WhoSayNothingLeaveDescriptorsAndRoomForMembers) {
  for (const bool said : {false, true}) {
    const int port = test::free_port();
    const auto rank = [=](int r) {
      return [=] {
        limit_files(1024);
        std::string wrong =
            live(test::join_url(port), r, 2, {r == 0 ? "join_timeout=15s" : "join_timeout=4s", "transports=tcp"}, 1);
        if (wrong.empty() && open_files() > 300) wrong = std::to_string(open_files()) + " files are open";
        return wrong;
      };
    };
    Process zero(rank(0));
    Process idle([=] { return idle_at_every_port(12, said); });
    usleep(1'500'000);
    Process one(rank(1));
    EXPECT_EQ(one.report(), "") << (said ? "said hello" : "said nothing");
    EXPECT_EQ(zero.report(), "");
    idle.kill();
  }
}

// A rank of two opens up to 15 files; some more may be open for a moment, while both call one another.
constexpr int kMostSpare = 20;

// One of two ranks may open only `spare` files more. Each says something in the end, "" where it lived: the limited
// one first.
struct Ends {
  int spare;
  std::string limited, other;
};
std::vector<Ends> with_few_files(int limited, const Strings& limits, const Strings& others) {
  std::vector<std::pair<int, std::vector<Process>>> jobs;
  for (int spare = 1; spare <= kMostSpare; ++spare) {
    jobs.emplace_back(spare, std::vector<Process>());
    const std::string join = test::join_url(test::free_port());
    for (int r = 0; r < 2; ++r) {
      jobs.back().second.emplace_back([=] {
        if (r == limited) limit_files(open_files() - 1 + static_cast<rlim_t>(spare));
        return live(join, r, 2, r == limited ? limits : others, 0.01);
      });
    }
  }
  std::vector<Ends> out;
  for (auto& [spare, ranks] : jobs) {
    std::string end[2] = {ranks[0].report(), ranks[1].report()};
    out.push_back({spare, end[limited], end[1 - limited]});
  }
  return out;
}
constexpr const char* kWaitsLess = "join_timeout=1s";
constexpr const char* kWaitsLonger = "join_timeout=3s";

TEST_F(Strangers, WhoRunsOutOfDescriptorsSaysSo) {
  for (const char* transports : {"transports=tcp", "transports=shm,tcp"}) {
    for (const int limited : {0, 1}) {
      std::size_t lived = 0;
      const auto ends = with_few_files(limited, {kWaitsLess, transports}, {kWaitsLonger, transports});
      for (const Ends& e : ends) {
        lived += e.limited.empty();
        if (e.limited.empty() && e.other.empty()) continue;
        EXPECT_NE(e.limited.find("raise ulimit -n"), std::string::npos)
            << "rank " << limited << " has " << e.spare << " to spare, " << transports << "\n"
            << e.limited << "\n"
            << e.other;
      }
      EXPECT_GT(lived, 0u);
      EXPECT_LT(lived, ends.size());
    }
  }
}

// No file can be opened any more.
void use_up_files() {
  int last = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd"))
    last = std::max(last, std::stoi(file.path().filename()));
  limit_files(static_cast<rlim_t>(last) + 1);
  while (dup(STDERR_FILENO) >= 0) {
  }
}

// The channel between 0 and 2, who are no neighbours by rank, is made when the operation needs it. The lower one dials.
TEST_F(Strangers, WhoRunsOutOfDescriptorsOnFirstUseIsNamedWithTheLimit) {
  constexpr int kRanks = 4;
  for (const char* transports : {"transports=tcp", "transports=shm,tcp"}) {
    for (const int limited : {0, 2}) {
      const std::string join = test::join_url(test::free_port());
      std::vector<Process> ranks;
      for (int r = 0; r < kRanks; ++r) {
        ranks.emplace_back([=]() -> std::string {
          keep_log();
          canary_context* context = nullptr;
          const Strings settings{transports, "connect_at_join=0", "algo=mesh", "silence_warning=500ms",
                                 "silence_limit=2s"};
          if (test::init(join, r, kRanks, settings, &context) != CANARY_OK) return last_error().message;
          if (r == limited) use_up_files();
          usleep(r == limited ? 0 : 500'000);
          std::vector<float> v(1000, 1);
          const canary_status got =
              canary_all_reduce(canary_world(context), v.data(), v.data(), v.size(), CANARY_F32, CANARY_SUM, nullptr);
          const test::Error error = last_error();
          std::string end = std::to_string(got) + "|" + std::to_string(error.rank) + "|" + error.message + "|";
          if (r == limited) end += kept_log();
          canary_finalize(context);
          return end;
        });
      }
      for (int r = 0; r < kRanks; ++r) {
        const std::string end = ranks[static_cast<std::size_t>(r)].report();
        const std::string begin = std::to_string(CANARY_NO_PATH) + "|" + std::to_string(limited) + "|";
        EXPECT_EQ(end.substr(0, begin.size()), begin) << transports << ", rank " << r << "\n" << end;
        const std::size_t log = end.rfind('|');
        EXPECT_NE(end.substr(0, log).find("raise ulimit -n"), std::string::npos) << transports << ", rank " << r << "\n"
                                                                                 << end;
        if (r != limited) continue;
        const std::size_t warned = end.find("silent for", log);
        ASSERT_NE(warned, std::string::npos) << end;
        EXPECT_NE(end.substr(warned, end.find('\n', warned) - warned).find("raise ulimit -n"), std::string::npos)
            << end;
      }
    }
  }
}

TEST_F(Strangers, WhoIsTurnedAwayForWantOfDescriptorsHearsThat) {
  for (const int limited : {0, 1}) {
    const auto ends = with_few_files(limited, {kWaitsLonger, "transports=tcp"}, {kWaitsLess, "transports=tcp"});
    EXPECT_TRUE(std::any_of(ends.begin(), ends.end(),
                            [](const Ends& e) {
                              return e.other.find("turned away") != std::string::npos &&
                                     e.other.find("raise ulimit -n") != std::string::npos;
                            }))
        << "rank " << limited << " is limited";
  }
}

}  // namespace
}  // namespace canarynet
