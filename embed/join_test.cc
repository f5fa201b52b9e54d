// Wrong and missing values at the door: each call gives the right code and a sentence that names what and where, on
// every rank concerned.
#include <gtest/gtest-spi.h>

#include <cstdlib>
#include <memory>
#include <optional>

#include "embed/job_test_util.h"

namespace canarynet {
namespace {

using test::Job;
using test::last_error;
using test::Process;
using test::Strings;

// A variable for the length of a scope; nullopt unsets it.
class Environment {
 public:
  Environment(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* old = getenv(name)) before_ = old;
    set(value);
  }
  ~Environment() { set(before_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    if (value) {
      setenv(name_, value->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> before_;
};

// Expects canary_init to return `code`, with all of `parts` in the sentence.
void expect_refused(const canary_config* config, canary_status code, const Strings& parts) {
  canary_context* context = nullptr;
  ASSERT_EQ(canary_init(config, &context), code) << last_error().message;
  EXPECT_EQ(context, nullptr);
  const test::Error e = last_error();
  EXPECT_EQ(e.code, code);
  EXPECT_EQ(e.message.rfind(canary_status_name(code), 0), 0u) << e.message;
  for (const std::string& part : parts)
    EXPECT_NE(e.message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << e.message;
}

canary_config config_of(const char* join, int rank, int world_size) {
  canary_config c = CANARY_CONFIG_INIT;
  c.join = join;
  c.rank = rank;
  c.world_size = world_size;
  return c;
}

// --- one rank's own values -------------------------------------------------------------------------------------------

TEST(Join, AMissingOrMalformedAddressIsNamed) {
  const Environment unset("CANARY_JOIN", std::nullopt);
  canary_config c = config_of(nullptr, 0, 2);
  expect_refused(&c, CANARY_INVALID_SETTING, {"CANARY_JOIN", "tcp://host:port"});
  for (const char* url : {"127.0.0.1:5", "tcp://", "tcp://127.0.0.1", "tcp://:80", "tcp://127.0.0.1:0",
                          "tcp://127.0.0.1:99999", "tcp://127.0.0.1:1x", "udp://127.0.0.1:80"}) {
    c = config_of(url, 1, 2);
    expect_refused(&c, CANARY_INVALID_SETTING, {"CANARY_JOIN", std::string("\"") + url + "\"", "tcp://host:port"});
  }
  const Environment set("CANARY_JOIN", "gopher://x:1");
  c = config_of(nullptr, 1, 2);
  expect_refused(&c, CANARY_INVALID_SETTING, {"CANARY_JOIN=\"gopher://x:1\""});
}

TEST(Join, RankAndWorldSizeComeFromTheEnvironmentAndAreChecked) {
  const Environment join("CANARY_JOIN", test::join_url(test::free_port()));
  {
    const Environment rank("CANARY_RANK", "0"), world("CANARY_WORLD_SIZE", std::nullopt);
    expect_refused(nullptr, CANARY_INVALID_SETTING, {"CANARY_WORLD_SIZE is not set"});
  }
  {
    const Environment rank("CANARY_RANK", std::nullopt), world("CANARY_WORLD_SIZE", "2");
    expect_refused(nullptr, CANARY_INVALID_SETTING, {"CANARY_RANK is not set"});
  }
  for (const char* bad : {"", "two", "2 ", "-1", "70000"}) {
    const Environment rank("CANARY_RANK", bad), world("CANARY_WORLD_SIZE", "2");
    expect_refused(nullptr, CANARY_INVALID_SETTING, {std::string("CANARY_RANK=\"") + bad + "\""});
  }
  {
    const Environment rank("CANARY_RANK", "2"), world("CANARY_WORLD_SIZE", "2");
    expect_refused(nullptr, CANARY_INVALID_ARGUMENT, {"rank 2", "world of 2", "CANARY_RANK"});
  }
  for (const int world : {-1, 65536, 1 << 30}) {
    const canary_config c = config_of(nullptr, 0, world);
    expect_refused(&c, CANARY_INVALID_ARGUMENT, {"world of " + std::to_string(world)});
  }
  // The environment is right, and enough.
  const Environment rank("CANARY_RANK", "0"), world("CANARY_WORLD_SIZE", "1");
  canary_context* context = nullptr;
  ASSERT_EQ(canary_init(nullptr, &context), CANARY_OK) << last_error().message;
  EXPECT_EQ(canary_rank(context), 0);
  EXPECT_EQ(canary_world_size(context), 1);
  EXPECT_EQ(canary_finalize(context), CANARY_OK);
}

TEST(Join, ALaunchersVariablesAreReadWhereCanarysOwnAreMissing) {
  const Environment none("CANARY_RANK", std::nullopt), nothing("CANARY_WORLD_SIZE", std::nullopt),
      join("CANARY_JOIN", std::nullopt);
  {
    const Environment rank("RANK", "1"), world("WORLD_SIZE", "2"), address("MASTER_ADDR", "no such host"),
        port("MASTER_PORT", "1");
    expect_refused(nullptr, CANARY_INVALID_SETTING, {"MASTER_ADDR:MASTER_PORT+1", "no such host"});
  }
  {
    const Environment rank("OMPI_COMM_WORLD_RANK", "1"), world("OMPI_COMM_WORLD_SIZE", "2");
    expect_refused(nullptr, CANARY_INVALID_SETTING, {"CANARY_RENDEZVOUS=host:port"});
  }
  // Settings that nobody needs may be as wrong as they like.
  const Environment rank("RANK", "foo"), world("WORLD_SIZE", "");
  canary_context* context = nullptr;
  const canary_config c = config_of(nullptr, 0, 1);
  ASSERT_EQ(canary_init(&c, &context), CANARY_OK) << last_error().message;
  EXPECT_EQ(canary_finalize(context), CANARY_OK);
}

TEST(Join, BeyondLoopbackNeedsTheWord) {
  const Environment insecure("CANARY_INSECURE", std::nullopt);
  for (const char* url : {"tcp://203.0.113.77:4711", "tcp://[2001:db8::1]:4711", "tcp://0.0.0.0:4711"}) {
    for (const int rank : {0, 1}) {
      const canary_config c = config_of(url, rank, 2);
      expect_refused(&c, CANARY_INSECURE, {"CANARY_INSECURE=1", url});
    }
  }
}

TEST(Join, SettingsThatMakeNoSenseAreNamed) {
  struct {
    const char* setting;
    canary_status code;
    Strings parts;
  } const cases[] = {
      {"piece_bytes", CANARY_INVALID_ARGUMENT, {"\"piece_bytes\"", "name=value"}},
      {"peace_bytes=1", CANARY_INVALID_SETTING, {"peace_bytes"}},
      {"piece_bytes=100", CANARY_INVALID_SETTING, {"CANARY_PIECE_BYTES", "100"}},
      {"piece_bytes=lots", CANARY_INVALID_SETTING, {"CANARY_PIECE_BYTES", "lots"}},
      {"join_timeout=-1s", CANARY_INVALID_SETTING, {"CANARY_JOIN_TIMEOUT"}},
      {"join_timeout=5", CANARY_INVALID_SETTING, {"CANARY_JOIN_TIMEOUT"}},
      {"insecure=yes", CANARY_INVALID_SETTING, {"CANARY_INSECURE", "0 or 1"}},
      {"algo=rign",
       CANARY_INVALID_SETTING,
       {"CANARY_ALGO", "rign", "ring", "mesh", "bcube", "halving_doubling", "tree", "dbtree", "parameter_server",
        "ring_per_rail, hierarchical, bcube_x, mesh_relay"}},
      {"rails=nosuch0", CANARY_INVALID_SETTING, {"CANARY_RAILS", "nosuch0", "lo (127.0.0.1"}},
      {"socket_ifname==nosuch0", CANARY_INVALID_SETTING, {"CANARY_SOCKET_IFNAME", "=nosuch0"}},
  };
  const std::string join = test::join_url(test::free_port());
  for (const auto& one : cases) {
    canary_config c = config_of(join.c_str(), 0, 2);
    c.settings = &one.setting;
    c.settings_count = 1;
    expect_refused(&c, one.code, one.parts);
  }
  const Environment piece("CANARY_PIECE_BYTES", "1.5MiB");
  const canary_config c = config_of(join.c_str(), 0, 2);
  expect_refused(&c, CANARY_INVALID_SETTING, {"CANARY_PIECE_BYTES=\"1.5MiB\""});
}

TEST(Join, ConfigsOfAnotherShapeAreRefused) {
  canary_config c = config_of("tcp://127.0.0.1:1", 0, 1);
  for (const std::size_t size : {std::size_t{0}, sizeof c - 1, sizeof c + 8}) {
    c.struct_size = size;
    expect_refused(&c, CANARY_INVALID_ARGUMENT, {"struct_size is " + std::to_string(size), "CANARY_CONFIG_INIT"});
  }
  c.struct_size = sizeof c;
  c.settings_count = 1;  // and no settings
  expect_refused(&c, CANARY_INVALID_ARGUMENT, {"settings"});
  const char* null = nullptr;
  c.settings = &null;
  expect_refused(&c, CANARY_INVALID_ARGUMENT, {"name=value"});
  EXPECT_EQ(canary_init(&c, nullptr), CANARY_INVALID_ARGUMENT);
  EXPECT_NE(last_error().message.find("context is NULL"), std::string::npos);
}

TEST(Join, APortThatIsTakenIsNamed) {
  const int port = test::free_port();
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<std::uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  const std::string url = test::join_url(port);
  const canary_config c = config_of(url.c_str(), 0, 2);
  expect_refused(&c, CANARY_SYSTEM, {"127.0.0.1:" + std::to_string(port), "rank 0"});
  close(fd);
}

// --- ranks that do not fit together ----------------------------------------------------------------------------------

struct Joiner {
  int rank;
  int world_size;
  Strings settings;
};

// Every one of them in a process of its own; the lines they report: "code\nrank\nmessage".
struct Refusal {
  int code = -1;
  int rank = -1;
  std::string message;
};

std::vector<Refusal> join_all(const std::vector<Joiner>& joiners) {
  const std::string url = test::join_url(test::free_port());
  std::vector<Process> processes;
  for (const Joiner& j : joiners) {
    processes.emplace_back([&] {
      canary_context* context = nullptr;
      const canary_status code = test::init(url, j.rank, j.world_size, j.settings, &context);
      if (context != nullptr) canary_finalize(context);
      const test::Error e = last_error();
      return std::to_string(code) + "\n" + std::to_string(e.rank) + "\n" + e.message;
    });
  }
  std::vector<Refusal> out;
  for (Process& p : processes) {
    const std::string text = p.report();
    Refusal r;
    const auto first = text.find('\n'), second = text.find('\n', first + 1);
    if (second != std::string::npos) r = {std::stoi(text), std::stoi(text.substr(first + 1)), text.substr(second + 1)};
    out.push_back(r);
  }
  return out;
}

void expect_all(const std::vector<Refusal>& refusals, canary_status code, const Strings& parts) {
  for (std::size_t i = 0; i < refusals.size(); ++i) {
    EXPECT_EQ(refusals[i].code, code) << "joiner " << i << ": " << refusals[i].message;
    for (const std::string& part : parts) {
      EXPECT_NE(refusals[i].message.find(part), std::string::npos)
          << "joiner " << i << ": \"" << part << "\" is not in: " << refusals[i].message;
    }
  }
}

// By address rank 0 waits for the right ones until its limit, and tells then whom it turned away.
TEST(Join, WorldSizesThatDifferAreNamedOnBothSides) {
  expect_all(join_all({{0, 2, {"join_timeout=1s"}}, {1, 3, {}}}), CANARY_JOIN,
             {"world sizes differ", "2 on rank 0", "3 on rank 1"});
}

TEST(Join, SettingsThatMustAgreeAreNamedOnEveryRank) {
  const Strings no = {}, brief = {"join_timeout=1s"};
  expect_all(join_all({{0, 2, {"join_timeout=1s", "piece_bytes=64KiB"}}, {1, 2, no}}), CANARY_MISMATCH,
             {"piece_bytes", "64KiB", "128KiB", "rank 1"});
  expect_all(join_all({{0, 2, {"join_timeout=1s", "algo=ring"}}, {1, 2, {"algo=mesh"}}}), CANARY_MISMATCH,
             {"algo", "\"ring\" on rank 0", "\"mesh\" on rank 1"});
  expect_all(join_all({{0, 2, brief}, {1, 2, {"eager_bytes=64KiB"}}}), CANARY_MISMATCH,
             {"eager_bytes", "\"64KiB\" on rank 1"});
  expect_all(join_all({{0, 2, brief}, {1, 2, {"lanes_per_rail=2"}}}), CANARY_MISMATCH, {"lanes_per_rail"});
}

TEST(Join, ARankThatDoesNotComeIsNamedOnAllThatDid) {
  const Strings brief = {"join_timeout=1500ms"};
  const auto began = std::chrono::steady_clock::now();
  const auto refusals = join_all({{0, 4, brief}, {1, 4, brief}, {3, 4, brief}});
  EXPECT_LT(test::seconds_since(began), 8);
  expect_all(refusals, CANARY_JOIN, {"rank 2", "3 of 4"});
  for (const Refusal& r : refusals) EXPECT_EQ(r.rank, 2);
}

TEST(Join, ACoordinatorThatDoesNotComeIsNamed) {
  const auto refusals = join_all({{1, 2, {"join_timeout=400ms"}}});
  expect_all(refusals, CANARY_JOIN, {"rank 0", "127.0.0.1"});
  EXPECT_EQ(refusals[0].rank, 0);
}

TEST(Join, ARankThatJoinsTwiceIsNamedOnEveryRank) {
  const Strings brief = {"join_timeout=2s"};
  expect_all(join_all({{0, 3, brief}, {1, 3, brief}, {1, 3, brief}}), CANARY_JOIN, {"rank 1 joined twice", "pid"});
}

TEST(Join, AStrangerAtTheDoorDoesNoHarm) {
  const int port = test::free_port();
  canary_context* contexts[2] = {};
  std::thread zero(
      [&] { EXPECT_EQ(test::init(test::join_url(port), 0, 2, {}, &contexts[0]), CANARY_OK) << last_error().message; });
  int fd = -1;
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<std::uint16_t>(port));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 500; ++i) {
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0) break;
    close(fd);
    fd = -1;
    usleep(10'000);
  }
  ASSERT_GE(fd, 0);
  std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  request.resize(600, 'x');
  EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  EXPECT_EQ(test::init(test::join_url(port), 1, 2, {}, &contexts[1]), CANARY_OK) << last_error().message;
  zero.join();
  close(fd);
  test::on_threads(2, [&](int r) {
    ASSERT_NE(contexts[r], nullptr);
    float v = 1;
    EXPECT_EQ(canary_all_reduce(canary_world(contexts[r]), &v, &v, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK);
    EXPECT_EQ(v, 2);
    canary_finalize(contexts[r]);
  });
}

// --- arguments of a job that runs ------------------------------------------------------------------------------------

void expect_invalid(canary_status status, const Strings& parts) {
  EXPECT_EQ(status, CANARY_INVALID_ARGUMENT) << parts.front();
  const test::Error e = last_error();
  for (const std::string& part : parts)
    EXPECT_NE(e.message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << e.message;
}

TEST(Arguments, WrongOnesAreRefusedBeforeAnythingHappens) {
  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    canary_context* context = job.context(r);
    canary_group* g = job.world(r);
    float in[4] = {1, 2, 3, 4}, out[8] = {};
    canary_op* op = nullptr;
    const auto type = [](int t) { return static_cast<canary_type>(t); };
    const auto redop = [](int o) { return static_cast<canary_redop>(o); };
    const std::size_t huge = SIZE_MAX / 2;

    expect_invalid(canary_all_reduce(nullptr, in, out, 4, CANARY_F32, CANARY_SUM, nullptr), {"group is NULL"});
    expect_invalid(canary_all_reduce(g, nullptr, out, 4, CANARY_F32, CANARY_SUM, &op), {"all_reduce", "input is NULL"});
    expect_invalid(canary_all_reduce(g, in, nullptr, 4, CANARY_F32, CANARY_SUM, nullptr),
                   {"all_reduce", "output is NULL"});
    expect_invalid(canary_all_reduce(g, in, out, 4, type(8), CANARY_SUM, nullptr), {"all_reduce", "type 8"});
    expect_invalid(canary_all_reduce(g, in, out, 4, type(-1), CANARY_SUM, nullptr), {"type -1"});
    expect_invalid(canary_all_reduce(g, in, out, 4, CANARY_F32, redop(5), nullptr), {"redop 5"});
    expect_invalid(canary_all_reduce(g, in, out, huge, CANARY_F32, CANARY_SUM, nullptr),
                   {"count " + std::to_string(huge)});
    expect_invalid(canary_reduce_scatter(g, in, out, std::size_t{1} << 46, CANARY_F32, CANARY_SUM, nullptr),
                   {"reduce_scatter", "too large"});
    expect_invalid(canary_reduce_scatter(g, nullptr, out, 1, CANARY_F32, CANARY_SUM, nullptr),
                   {"reduce_scatter", "input is NULL"});
    expect_invalid(canary_all_gather(g, in, nullptr, 1, CANARY_F32, nullptr), {"all_gather", "output is NULL"});
    expect_invalid(canary_all_gather(g, in, out, SIZE_MAX, CANARY_I8, nullptr), {"all_gather", "too large"});
    expect_invalid(canary_broadcast(g, in, out, 1, CANARY_F32, 2, nullptr), {"broadcast", "root 2", "group of 2"});
    expect_invalid(canary_broadcast(g, in, out, 1, CANARY_F32, -1, nullptr), {"root -1"});
    expect_invalid(canary_broadcast(g, nullptr, out, 1, CANARY_F32, r, nullptr), {"broadcast", "input is NULL"});
    expect_invalid(canary_reduce(g, in, nullptr, 1, CANARY_F32, CANARY_SUM, r, nullptr), {"reduce", "output is NULL"});
    expect_invalid(canary_reduce(g, in, out, 1, CANARY_F32, CANARY_SUM, 2, nullptr), {"reduce", "root 2"});
    expect_invalid(canary_gather(g, nullptr, out, 1, CANARY_F32, 0, nullptr), {"gather", "input is NULL"});
    expect_invalid(canary_gather(g, in, nullptr, 1, CANARY_F32, r, nullptr), {"gather", "output is NULL"});
    expect_invalid(canary_scatter(g, nullptr, out, 1, CANARY_F32, r, nullptr), {"scatter", "input is NULL"});
    expect_invalid(canary_scatter(g, in, nullptr, 1, CANARY_F32, 0, nullptr), {"scatter", "output is NULL"});
    expect_invalid(canary_scatter(g, in, out, std::size_t{1} << 46, CANARY_F32, 0, nullptr), {"scatter", "too large"});
    expect_invalid(canary_all_to_all(g, in, nullptr, 1, CANARY_F32, nullptr), {"all_to_all", "output is NULL"});
    expect_invalid(canary_all_to_all(g, out, out, 1, CANARY_F32, nullptr), {"all_to_all", "overlap"});
    expect_invalid(canary_all_to_all(g, out, out + 3, 2, CANARY_F32, nullptr), {"all_to_all", "overlap"});
    const std::size_t ones[] = {1, 1}, far[] = {0, 3}, big[] = {std::size_t{1} << 60, 1}, none[] = {0, 0};
    const std::size_t uneven[] = {std::size_t(2 - r), std::size_t(1 + r)};
    expect_invalid(canary_all_gather_v(g, in, out, nullptr, CANARY_F32, nullptr), {"all_gather_v", "counts are NULL"});
    expect_invalid(canary_all_gather_v(g, in, nullptr, ones, CANARY_F32, nullptr), {"all_gather_v", "output is NULL"});
    expect_invalid(canary_all_gather_v(g, in, out, big, CANARY_F32, nullptr), {"all_gather_v", "rank 0", "too large"});
    expect_invalid(canary_all_to_all_v(g, in, nullptr, nullptr, out, ones, nullptr, CANARY_F32, nullptr),
                   {"all_to_all_v", "counts are NULL"});
    expect_invalid(canary_all_to_all_v(g, in, ones, nullptr, out, nullptr, nullptr, CANARY_F32, nullptr),
                   {"all_to_all_v", "counts are NULL"});
    expect_invalid(canary_all_to_all_v(g, nullptr, ones, nullptr, out, ones, nullptr, CANARY_F32, nullptr),
                   {"all_to_all_v", "input is NULL"});
    expect_invalid(canary_all_to_all_v(g, in, ones, big, out, ones, nullptr, CANARY_F32, nullptr), {"too large"});
    expect_invalid(canary_all_to_all_v(g, out + 3, ones, nullptr, out, ones, far, CANARY_F32, nullptr),
                   {"all_to_all_v", "overlap"});
    expect_invalid(canary_all_to_all_v(g, in, uneven, nullptr, out, ones, nullptr, CANARY_F32, nullptr),
                   {"all_to_all_v", "rank " + std::to_string(r) + " sends 2 elements to itself and receives 1"});
    expect_invalid(canary_barrier(nullptr, nullptr), {"group is NULL"});
    EXPECT_EQ(op, nullptr);
    expect_invalid(canary_op_test(nullptr), {"op is NULL"});
    expect_invalid(canary_op_wait(nullptr), {"op is NULL"});
    expect_invalid(canary_op_set_deadline(nullptr, 1), {"op is NULL"});
    expect_invalid(canary_group_abort(nullptr, "why"), {"group is NULL"});
    expect_invalid(canary_group_destroy(nullptr), {"group is NULL"});
    expect_invalid(canary_group_destroy(g), {"world"});
    expect_invalid(canary_stats(context, nullptr, 1, nullptr), {"NULL"});
    expect_invalid(canary_finalize(nullptr), {"context is NULL"});
    EXPECT_EQ(canary_rank(nullptr), -1);
    EXPECT_EQ(canary_world_size(nullptr), -1);
    EXPECT_EQ(canary_world(nullptr), nullptr);
    EXPECT_EQ(canary_group_rank(nullptr), -1);
    EXPECT_EQ(canary_group_size(nullptr), -1);
    EXPECT_STREQ(canary_group_algorithm(nullptr), "");

    canary_group* made = nullptr;
    const int both[] = {0, 1}, twice[] = {r, r}, beyond[] = {r, 2}, negative[] = {r, -1}, other[] = {1 - r};
    expect_invalid(canary_group_create(context, nullptr, 2, &made), {"NULL"});
    expect_invalid(canary_group_create(context, both, 2, nullptr), {"NULL"});
    expect_invalid(canary_group_create(nullptr, both, 2, &made), {"NULL"});
    expect_invalid(canary_group_create(context, both, 0, &made), {"count 0"});
    expect_invalid(canary_group_create(context, both, 3, &made), {"count 3", "world of 2"});
    expect_invalid(canary_group_create(context, twice, 2, &made), {"rank " + std::to_string(r) + " is listed twice"});
    expect_invalid(canary_group_create(context, beyond, 2, &made), {"rank 2 does not exist"});
    expect_invalid(canary_group_create(context, negative, 2, &made), {"rank -1 does not exist"});
    expect_invalid(canary_group_create(context, other, 1, &made), {"only members", "rank " + std::to_string(r)});
    EXPECT_EQ(made, nullptr);

    // No operation was counted: the ranks are still in step. Empty operations need no buffers.
    EXPECT_EQ(canary_all_reduce(g, nullptr, nullptr, 0, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK)
        << last_error().message;
    EXPECT_EQ(canary_all_to_all(g, nullptr, nullptr, 0, CANARY_F32, nullptr), CANARY_OK) << last_error().message;
    EXPECT_EQ(canary_all_gather_v(g, nullptr, nullptr, none, CANARY_F32, nullptr), CANARY_OK) << last_error().message;
    EXPECT_EQ(canary_all_to_all_v(g, nullptr, none, nullptr, nullptr, none, nullptr, CANARY_F32, nullptr), CANARY_OK)
        << last_error().message;
    EXPECT_EQ(canary_all_reduce(g, in, out, 4, CANARY_F32, CANARY_SUM, nullptr), CANARY_OK) << last_error().message;
    EXPECT_EQ(out[3], 8);
  });
}

TEST(Arguments, GroupListsThatDifferTimeOutAndNameWhoDidNotAsk) {
  Job job(2, {"entry_limit=300ms"});
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    const int up[] = {0, 1}, down[] = {1, 0};
    canary_group* g = nullptr;
    EXPECT_EQ(canary_group_create(job.context(r), r == 0 ? up : down, 2, &g), CANARY_ENTRY_TIMEOUT);
    const test::Error e = last_error();
    EXPECT_EQ(e.rank, 1 - r) << e.message;
    EXPECT_NE(e.message.find("rank " + std::to_string(1 - r) + " did not ask for the group"), std::string::npos)
        << e.message;
    const std::string theirs = r == 0 ? "1, 0" : "0, 1", mine = r == 0 ? "0, 1" : "1, 0";
    EXPECT_NE(e.message.find("asked for ranks " + theirs), std::string::npos) << e.message;
    EXPECT_NE(e.message.find("here ranks " + mine), std::string::npos) << e.message;
    EXPECT_EQ(g, nullptr);
  });
}

TEST(LastError, HasItsFieldsAndBelongsToTheThread) {
  EXPECT_EQ(canary_last_error(nullptr), CANARY_INVALID_ARGUMENT);
  canary_error wrong{};
  wrong.struct_size = sizeof wrong - 1;
  EXPECT_EQ(canary_last_error(&wrong), CANARY_INVALID_ARGUMENT);

  Job job(2);
  ASSERT_TRUE(job.joined());
  job.each([&](int r) {
    EXPECT_EQ(last_error().code, CANARY_OK);  // a new thread
    EXPECT_EQ(last_error().message, "");
    float v = 1;
    EXPECT_EQ(canary_barrier(job.world(r), nullptr), CANARY_OK);
    // Operation 2: counts that differ.
    const int n = r + 1;
    float two[2] = {1, 2};
    EXPECT_EQ(canary_all_reduce(job.world(r), two, two, static_cast<std::size_t>(n), CANARY_F32, CANARY_SUM, nullptr),
              CANARY_MISMATCH);
    const test::Error e = last_error();
    EXPECT_EQ(e.code, CANARY_MISMATCH);
    EXPECT_EQ(e.op, "all_reduce");
    EXPECT_EQ(e.op_number, 2);
    EXPECT_GE(e.epoch, 1u);
    EXPECT_EQ(e.group, 1u) << "the world, as canarynet.h says";
    EXPECT_TRUE(e.rank == 0 || e.rank == 1);
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    EXPECT_EQ(e.host, name);
    EXPECT_EQ(e.phase, "exchange");
    EXPECT_LT(e.elapsed_ns, 60'000'000'000u);
    // A success does not wipe it.
    EXPECT_STREQ(canary_status_name(CANARY_MISMATCH), "MISMATCH");
    EXPECT_EQ(last_error().code, CANARY_MISMATCH);
    // A later one of the same group says the same, with its own number.
    EXPECT_EQ(canary_all_reduce(job.world(r), &v, &v, 1, CANARY_F32, CANARY_SUM, nullptr), CANARY_MISMATCH);
    EXPECT_NE(last_error().message.find("all_reduce #3: operation #2"), std::string::npos) << last_error().message;
    EXPECT_EQ(last_error().op, "all_reduce");
    EXPECT_EQ(last_error().op_number, 3);
    EXPECT_EQ(last_error().phase, "entry");
  });
}

// The tests of several processes rest on this.
TEST(Processes, FailWithTheirChecksAlsoWhenNobodyAsks) {
  const auto with_failed_check = []() -> std::string {
    if (freopen("/dev/null", "w", stdout) == nullptr) return "freopen";
    EXPECT_EQ(1, 2);
    return "fine";
  };
  Process asked(with_failed_check);
  EXPECT_NONFATAL_FAILURE(EXPECT_EQ(asked.report(), "fine"), "checks failed in it");
  auto forgotten = std::make_unique<Process>(with_failed_check);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(forgotten->pid()), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_NONFATAL_FAILURE(forgotten.reset(), "checks failed in it");
  Process crashed([]() -> std::string {
    signal(SIGTERM, SIG_DFL);
    raise(SIGTERM);
    return "fine";
  });
  EXPECT_NONFATAL_FAILURE(EXPECT_EQ(crashed.report(), ""), "ended by signal 15");
}

}  // namespace
}  // namespace canarynet
