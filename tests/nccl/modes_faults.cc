// The modes for events that must do no harm: abort, churn, foreign bytes, another plugin, killed and stopped ranks.
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "tests/nccl/modes.h"

namespace nccltest {
namespace {

constexpr Millis kLimit{30'000};

int count_entries(const char* path) {
  int count = 0;
  if (DIR* folder = opendir(path)) {
    while (readdir(folder)) ++count;
    closedir(folder);
  }
  return count;
}

long resident_kib() {
  std::ifstream file("/proc/self/statm");
  long pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

double random_seconds(std::uint64_t* state, double most) {
  *state = mix64(*state);
  return static_cast<double>(*state % 1'000'000) / 1e6 * most;
}

void sleep_seconds(double seconds) { sleep_us(static_cast<long>(seconds * 1e6)); }

struct Place {
  in_addr address;
  int port;
};

struct OwnSocket {
  Place local, remote;
  bool listens;
};

// The IPv4 TCP sockets of this process.
std::vector<OwnSocket> own_sockets() {
  std::set<std::string> own;
  if (DIR* folder = opendir("/proc/self/fd")) {
    while (const dirent* entry = readdir(folder)) {
      char target[128];
      const ssize_t n = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
      if (n <= 0) continue;
      target[n] = '\0';
      if (std::strncmp(target, "socket:[", 8) == 0)
        own.insert(std::string(target + 8, static_cast<std::size_t>(n) - 9));
    }
    closedir(folder);
  }
  const auto place = [](const std::string& text) {  // "0100007F:A1B2"
    return Place{{static_cast<in_addr_t>(std::stoul(text.substr(0, 8), nullptr, 16))},
                 static_cast<int>(std::stoul(text.substr(9), nullptr, 16))};
  };
  std::vector<OwnSocket> found;
  std::ifstream table("/proc/self/net/tcp");
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, skipped, inode;
    fields >> number >> local >> remote >> state;
    for (int i = 0; i < 5; ++i) fields >> skipped;
    fields >> inode;
    if (own.count(inode) == 0 || local.size() != 13 || remote.size() != 13) continue;
    found.push_back({place(local), place(remote), state == "0A"});
  }
  return found;
}

// The sockets of the plugin that a port scanner would find.
std::vector<Place> listening_sockets() {
  std::vector<Place> found;
  for (const OwnSocket& socket : own_sockets()) {
    if (socket.listens) found.push_back(socket.local);
  }
  return found;
}

// The networks of this process's interfaces, which may be dialled.
class OwnNetworks {
 public:
  OwnNetworks() {
    ifaddrs* all = nullptr;
    if (getifaddrs(&all) != 0) return;
    for (const ifaddrs* entry = all; entry; entry = entry->ifa_next) {
      if (!entry->ifa_addr || !entry->ifa_netmask) continue;
      const auto bytes = [](const sockaddr* a) {
        std::string text;
        if (a->sa_family == AF_INET)
          text.assign(reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in*>(a)->sin_addr), 4);
        if (a->sa_family == AF_INET6)
          text.assign(reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr), 16);
        return text;
      };
      const std::string address = bytes(entry->ifa_addr), mask = bytes(entry->ifa_netmask);
      if (!address.empty() && mask.size() == address.size()) networks_.push_back({address, mask});
    }
    freeifaddrs(all);
  }

  bool has(in_addr address) const {
    const std::string text(reinterpret_cast<const char*>(&address), 4);
    return std::any_of(networks_.begin(), networks_.end(), [&](const Network& n) {
      bool same = n.address.size() == text.size();
      for (std::size_t i = 0; i < text.size() && same; ++i) same = ((text[i] ^ n.address[i]) & n.mask[i]) == 0;
      return same;
    });
  }

  // Byte `at` of a handle, changed. In a part of one of our addresses only bits that leave the network the same change:
  // a handle that is dialled must lead nowhere else.
  unsigned char changed(const unsigned char* handle, std::size_t at) const {
    unsigned change = 0x11;
    for (const Network& n : networks_) {
      for (std::size_t i = 0; i < n.address.size(); ++i) {
        if (at < i || at - i + n.address.size() > kHandleBytes) continue;
        if (std::memcmp(handle + at - i, n.address.data(), n.address.size()) == 0)
          change &= ~static_cast<unsigned>(static_cast<unsigned char>(n.mask[i]));
      }
    }
    return static_cast<unsigned char>(handle[at] ^ change);
  }

 private:
  struct Network {
    std::string address, mask;  // in network byte order
  };
  std::vector<Network> networks_;
};

// Returns descriptors that stay open: silent clients must not hold up anybody either.
std::vector<int> bother(const std::vector<Place>& targets) {
  std::vector<std::string> garbage = {"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", std::string(1, '\0'),
                                      std::string(4096, '\xff'), std::string(64, '\0')};
  std::string noise;
  for (std::uint64_t i = 0; i < 8192; ++i) noise += static_cast<char>(mix64(i));
  garbage.push_back(noise);
  std::vector<int> open;
  for (const Place& target : targets) {
    for (std::size_t i = 0; i < garbage.size() * 2; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr = target.address;
      if (address.sin_addr.s_addr == 0) address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(static_cast<std::uint16_t>(target.port));
      if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        close(fd);
        continue;
      }
      const std::string& bytes = garbage[i / 2];
      send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (i % 2) {
        open.push_back(fd);
      } else {
        const linger hard{1, 0};  // ends in a reset
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        close(fd);
      }
    }
  }
  return open;
}

struct Victim {
  std::string pid, host;  // as it calls itself
};

std::string with(std::string pattern, const std::string& name, const std::string& value) {
  for (std::size_t at = 0; (at = pattern.find(name, at)) != std::string::npos; at += value.size())
    pattern.replace(at, name.size(), value);
  return pattern;
}

// One line has to say everything: in a log other processes' lines stand between a plugin's.
void check_warnings(const std::vector<std::string>& patterns, const Victim& victim) {
  const std::vector<std::string> texts = warnings();
  if (texts.empty()) return fail("the error came without a WARN");
  std::vector<std::regex> musts;
  std::string wanted;
  for (const std::string& pattern : patterns) {
    const std::string must = with(with(pattern, "{pid}", victim.pid), "{host}", victim.host);
    musts.emplace_back(must);
    wanted += (wanted.empty() ? "\"" : ", \"") + must + "\"";
  }
  const bool told = std::any_of(texts.begin(), texts.end(), [&](const std::string& line) {
    return std::all_of(musts.begin(), musts.end(),
                       [&](const std::regex& must) { return std::regex_search(line, must); });
  });
  if (!told)
    fail("no WARN line has all of %s; the last of %zu: %s", wanted.c_str(), texts.size(), texts.back().c_str());
}

}  // namespace

int abort_mode(const Options& options) {
  const Loaded plugin = load(options);
  if (!plugin.net) return 1;
  std::uint64_t random = options.seed * 1000 + static_cast<std::uint64_t>(options.rank);
  double slowest_error = 0;
  int rounds = 0, descriptors = 0, threads = 0;
  for (int round = 0; round < options.repeat && failures() == 0; ++round) {
    if (round == 2) {
      descriptors = count_entries("/proc/self/fd");
      threads = count_entries("/proc/self/task");
    }
    const bool one = options.variant == "one" || (options.variant.empty() && round % 2 == 1);
    Communicator comm(*plugin.net, options, 0, round);
    if (!comm.init() || !comm.connect().connected) break;
    comm.start(~std::uint64_t{0});
    std::uint64_t shared = mix64(options.seed + static_cast<std::uint64_t>(round));
    sleep_seconds(random_seconds(&shared, 0.3));
    if (one && options.rank != options.victim) {
      const std::uint64_t begin = now_ns();
      // A rank that waits for one that has left must be told.
      if (!comm.wait_for_error(options.error_limit + 0.5))
        fail("round %d: no error %.1f s after rank %d left", round, options.error_limit + 0.5, options.victim);
      slowest_error = std::max(slowest_error, seconds_between(begin, now_ns()));
    } else {
      sleep_seconds(random_seconds(&random, 0.05));
    }
    comm.stop();
    clear_warnings();
    comm.close();
    comm.finalize();
    sleep_us(100'000);
    comm.check_untouched();
    ++rounds;
    if (!comm.bootstrap().barrier(kLimit)) {
      if (failures() == 0) fail("round %d: a rank did not come back", round);
      break;
    }
  }
  if (rounds > 2 && failures() == 0) {
    sleep_us(300'000);  // by now the plugin has closed what it closes after its calls
    const int more = count_entries("/proc/self/fd") - descriptors,
              more_threads = count_entries("/proc/self/task") - threads;
    if (more > 4 || more_threads > 2)
      fail("%d rounds later: %d more descriptors, %d more threads", rounds - 2, more, more_threads);
  }
  Json json;
  json.add("rounds", rounds).add("slowest_error_seconds", slowest_error);
  return finish_mode(options, json);
}

int churn_mode(const Options& options) {
  const Loaded plugin = load(options);
  if (!plugin.net) return 1;
  Json json;
  int descriptors = 0, threads = 0, rounds = 0;
  long resident = 0;
  const int settle = std::min(5, options.repeat / 2);
  {
    Communicator comm(*plugin.net, options, 0);
    bool whole = comm.init();
    for (int round = 0; round < options.repeat && whole && failures() == 0; ++round) {
      if (round == settle) {
        descriptors = count_entries("/proc/self/fd");
        threads = count_entries("/proc/self/task");
        resident = resident_kib();
      }
      if (round % 10 == 9) {
        comm.finalize();
        whole = comm.init();
      }
      if (!whole || !comm.connect().connected) break;
      comm.start(options.messages);
      whole = comm.wait(120);
      comm.stop();
      comm.close();
      ++rounds;
    }
    comm.bootstrap().barrier(kLimit);
    sleep_us(300'000);  // by now the plugin has closed what it closes after its calls
    if (failures() == 0) {
      const int more = count_entries("/proc/self/fd") - descriptors,
                more_threads = count_entries("/proc/self/task") - threads;
      json.add("descriptors_grown", more).add("threads_grown", more_threads);
      json.add("resident_kib_grown", static_cast<int>(resident_kib() - resident));
      if (more > 4) fail("%d more descriptors after %d rounds than after %d", more, rounds, settle);
      if (more_threads > 2) fail("%d more threads after %d rounds than after %d", more_threads, rounds, settle);
    }
    comm.finalize();
  }
  json.add("rounds", rounds);
  return finish_mode(options, json);
}

int foreign_mode(const Options& options) {
  const Loaded plugin = load(options);
  if (!plugin.net) return 1;
  Json json;
  std::vector<int> open;
  {
    Communicator comm(*plugin.net, options, 0);
    if (comm.init()) {
      Net& net = *plugin.net;
      // Bytes that are no handles must be refused at once or within the limit: never a connection, never endless
      // silence.
      std::vector<std::string> handles = {std::string(kHandleBytes, '\0'), std::string(kHandleBytes, '\xff'),
                                          std::string(kHandleBytes, 'A'), ""};
      for (std::uint64_t i = 0; i < kHandleBytes; ++i) handles.back() += static_cast<char>(mix64(i));
      for (std::size_t h = 0; h < handles.size(); ++h) {
        unsigned char handle[kHandleBytes];
        std::memcpy(handle, handles[h].data(), kHandleBytes);
        clear_warnings();
        Result result = kSuccess;
        void* send_comm = nullptr;
        const std::uint64_t begin = now_ns();
        comm.service().run([&] {
          while (result == kSuccess && !send_comm && seconds_between(begin, now_ns()) < options.error_limit) {
            result = net.connect(comm.ctx(), 0, handle, &send_comm);
            sleep_us(200);
          }
        });
        if (send_comm || result == kSuccess)
          fail("a foreign handle (%zu) was %s", h, send_comm ? "connected" : "never refused");
        if (result != kSuccess && last_warning().empty()) fail("a foreign handle (%zu) was refused without a WARN", h);
      }
      // Own handles with a byte changed may lead to any result, within bounds, and finalize cleans up. Each is used in
      // a communicator of its own: NCCL makes nothing more in one whose connect has failed.
      std::vector<void*> contexts(kHandleBytes, reinterpret_cast<void*>(std::uintptr_t{0xDEAD0}));
      for (void*& context : contexts) {
        if (net.init(&context, 0xA51DE, plugin_logger()) != kSuccess) fail("init of another communicator");
      }
      unsigned char real[kHandleBytes] = {};
      void* listener = nullptr;
      int refused = 0, connected = 0, pending = 0;
      const OwnNetworks networks;
      comm.service().run([&] {
        if (net.listen(comm.ctx(), 0, real, &listener) != kSuccess) return fail("listen");
        for (std::size_t at = 0; at < kHandleBytes; ++at) {
          unsigned char handle[kHandleBytes];
          std::memcpy(handle, real, kHandleBytes);
          handle[at] = networks.changed(real, at);
          if (handle[at] == real[at]) continue;
          Result result = kSuccess;
          void* send_comm = nullptr;
          const std::uint64_t begin = now_ns();
          while (result == kSuccess && !send_comm && seconds_between(begin, now_ns()) < 0.02) {
            result = net.connect(contexts[at], 0, handle, &send_comm);
            sched_yield();
          }
          if (const double took = seconds_between(begin, now_ns()); took > 1.0)
            fail("connect with byte %zu changed blocked for %.1f s", at, took);
          for (const OwnSocket& own : own_sockets()) {
            char text[INET_ADDRSTRLEN];
            if (!own.listens && !networks.has(own.remote.address))
              fail("connect with byte %zu changed dials %s, on no network of this host", at,
                   inet_ntop(AF_INET, &own.remote.address, text, sizeof text));
          }
          ++(result != kSuccess ? refused : send_comm ? connected : pending);
          if (send_comm && net.close_send(send_comm) != kSuccess) fail("closeSend");
        }
        if (net.close_listen(listener) != kSuccess) fail("closeListen");
      });
      json.add("changed_refused", refused).add("changed_connected", connected).add("changed_pending", pending);
      clear_warnings();
      std::size_t listeners = 0;
      const ConnectOutcome outcome = comm.connect(false, [&] {
        const std::vector<Place> targets = listening_sockets();
        listeners = targets.size();
        open = bother(targets);
        if (listeners == 0) {
          fail("no TCP listener of this process was found: no stranger could come");
        } else if (open.empty()) {
          fail("no stranger got through to any of %zu TCP listeners", listeners);
        }
      });
      json.add("listeners", static_cast<int>(listeners)).add("strangers", static_cast<int>(open.size()));
      json.add("connect_seconds", outcome.seconds);
      if (outcome.connected) {
        comm.start(options.messages);
        comm.wait(120);
        comm.stop();
        comm.bootstrap().barrier(kLimit);
        comm.close();
      }
      comm.finalize();
      for (void* context : contexts) {
        if (net.finalize(context) != kSuccess) fail("finalize of another communicator");
      }
    }
  }
  for (int fd : open) close(fd);
  return finish_mode(options, json);
}

int mixed_mode(const Options& options) {
  const Loaded plugin = load(options);
  if (!plugin.net) return 1;
  Json json;
  {
    Communicator comm(*plugin.net, options, 0);
    if (comm.init()) {
      const ConnectOutcome outcome = comm.connect(true);
      json.add("plugin", plugin.net->name())
          .add("result", std::string(result_name(outcome.result)))
          .add("call", outcome.call);
      json.add("refused_after_seconds", outcome.seconds);
      if (outcome.connected) fail("connections between different plugins were made");
      if (!outcome.connected && outcome.result == kSuccess)
        fail("neither connected nor refused within %.1f s", options.connect_limit);
      if (outcome.result != kSuccess && last_warning().empty()) fail("refused without a WARN");
      if (outcome.seconds > options.error_limit) fail("refused after %.1f s", outcome.seconds);
      comm.bootstrap().barrier(kLimit);
      comm.close();
      comm.finalize();
    }
  }
  return finish_mode(options, json);
}

int kill_mode(const Options& options) {
  const Loaded plugin = load(options);
  if (!plugin.net) return 1;
  Json json;
  Communicator comm(*plugin.net, options, 0);
  if (!comm.init() || !comm.connect().connected) return finish_mode(options, json);
  clear_warnings();
  comm.start(~std::uint64_t{0});
  comm.bootstrap().barrier(kLimit);
  if (options.rank == options.victim) {
    std::uint64_t random = mix64(options.seed);
    sleep_seconds(0.3 + random_seconds(&random, 0.5));
    char host[HOST_NAME_MAX + 1] = {};
    gethostname(host, sizeof host - 1);
    const std::string last_word = std::to_string(now_ns()) + " " + std::to_string(getpid()) + " " + host;
    for (int peer = 0; peer < options.ranks; ++peer) {
      if (peer != options.rank) comm.bootstrap().send(peer, last_word);
    }
    kill(getpid(), SIGKILL);
  }
  std::string text;
  if (!comm.bootstrap().receive(options.victim, &text, kLimit)) {
    fail("rank %d was not killed", options.victim);
    return finish_mode(options, json);
  }
  std::istringstream last_word(text);
  std::uint64_t killed = 0;
  Victim victim;
  last_word >> killed >> victim.pid >> victim.host;
  // It waits past the limit too: how late the error comes is worth knowing.
  const bool told = comm.wait_for_error(3 * options.error_limit);
  const ProgressError error = comm.error();
  const double after = told ? seconds_between(killed, error.at_ns) : -1;
  json.add("error_after_seconds", after).add("result", std::string(result_name(error.result))).add("call", error.call);
  json.add("peer", error.peer).add("killed_pid", victim.pid).add("warn", last_warning());
  if (!told) {
    fail("no error within %.1f s of the kill", 3 * options.error_limit);
  } else {
    if (error.result != kRemoteError)
      fail("%s gave %s, not ncclRemoteError", error.call.c_str(), result_name(error.result));
    if (after > options.error_limit) fail("the error came %.2f s after the kill", after);
    check_warnings(options.warn_must, victim);
  }
  comm.stop();
  if (options.hold) {
    const auto survives = [&](int r) { return r != options.rank && r != options.victim; };
    for (int r = 0; r < options.ranks; ++r) {
      if (survives(r)) comm.bootstrap().send(r, "told");
    }
    for (int r = 0; r < options.ranks; ++r) {
      std::string unused;
      if (survives(r) && !comm.bootstrap().receive(r, &unused, kLimit)) say("rank %d said nothing at the end", r);
    }
  }
  comm.close();
  comm.finalize();
  comm.check_untouched();
  return finish_mode(options, json);
}

int stop_mode(const Options& options) {
  const Loaded plugin = load(options);
  if (!plugin.net) return 1;
  Json json;
  {
    Options own = options;
    own.gap_ms = 200;
    Communicator comm(*plugin.net, own, 0);
    if (comm.init() && comm.connect().connected) {
      comm.start(~std::uint64_t{0});
      comm.bootstrap().barrier(kLimit);
      sleep_seconds(0.3);
      if (own.rank == own.victim) {
        const pid_t waker = fork();
        if (waker == 0) {
          sleep_seconds(own.stop_seconds);
          kill(getppid(), SIGCONT);
          _exit(0);
        }
        raise(SIGSTOP);
      }
      sleep_seconds(own.seconds);
      if (!comm.failed()) comm.finish(60);
      if (comm.failed()) comm.wait(0.1);
      comm.stop();
      double longest = 0;
      for (const auto& endpoint : comm.endpoints()) {
        for (const Gap& gap : endpoint->gaps()) longest = std::max(longest, seconds_between(gap.begin_ns, gap.end_ns));
      }
      if (longest < 0.8 * own.stop_seconds)
        fail("the longest pause was %.2f s: nobody was stopped for %.1f s", longest, own.stop_seconds);
      json.add("longest_pause_seconds", longest).add("bytes", comm.received_bytes());
      comm.close();
      comm.finalize();
    }
  }
  return finish_mode(options, json);
}

}  // namespace nccltest
