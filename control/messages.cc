#include "control/messages.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/text.h"

namespace canarynet::control {
namespace {

class Writer {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_integral_v<T>);
    const auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i) bytes.push_back(static_cast<std::byte>(bits >> (8 * i) & 0xff));
  }
  void raw_text(std::string_view value, std::size_t limit) {
    value = value.substr(0, limit);
    number(static_cast<std::uint16_t>(value.size()));
    const auto* data = reinterpret_cast<const std::byte*>(value.data());
    bytes.insert(bytes.end(), data, data + value.size());
  }
  void text(std::string value, std::size_t limit) {
    make_printable(&value);
    raw_text(value, limit);
  }
  std::vector<std::byte> bytes;
};

// Reads while all is well; after the first failure every value is zero and `wrong` names the field.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  T number(const char* field) {
    static_assert(std::is_integral_v<T>);
    if (rest_.size() < sizeof(T)) return fail(field), T{};
    std::make_unsigned_t<T> bits = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bits = static_cast<std::make_unsigned_t<T>>(bits | static_cast<std::make_unsigned_t<T>>(rest_[i]) << (8 * i));
    }
    rest_ = rest_.subspan(sizeof(T));
    return static_cast<T>(bits);
  }
  // It goes to logs and users.
  std::string text(const char* field, std::size_t limit) {
    std::string value = raw_text(field, limit), printable = value;
    make_printable(&printable);
    check(printable == value, field);
    return value;
  }
  std::string raw_text(const char* field, std::size_t limit) {
    const auto size = number<std::uint16_t>(field);
    if (size > limit || size > rest_.size()) return fail(field), std::string();
    std::string value(reinterpret_cast<const char*>(rest_.data()), size);
    rest_ = rest_.subspan(size);
    return value;
  }
  // The number of entries of a list whose entries take at least `entry_bytes` each: no more than can follow.
  std::size_t count(const char* field, std::size_t limit, std::size_t entry_bytes) {
    const auto entries = number<std::uint32_t>(field);
    if (entries > limit || entries > rest_.size() / entry_bytes) return fail(field), 0;
    return entries;
  }
  void check(bool condition, const char* field) {
    if (!condition) fail(field);
  }
  void fail(const char* field) {
    if (wrong_ == nullptr) wrong_ = field;
    rest_ = {};
  }
  const char* finish() {
    if (wrong_ == nullptr && !rest_.empty()) wrong_ = "bytes left over";
    return wrong_;
  }
  bool ok() const { return wrong_ == nullptr; }

 private:
  std::span<const std::byte> rest_;
  const char* wrong_ = nullptr;
};

// --- common parts ----------------------------------------------------------------------------------------------------

std::size_t address_bytes(Address::Family family) {
  return family == Address::Family::kIPv4 ? 4 : family == Address::Family::kNone ? 0 : 16;
}

void put(Writer& w, const Address& address) {
  w.number(static_cast<std::uint8_t>(address.family));
  w.number(address.prefix_bits);
  w.number(address.port);
  for (std::size_t i = 0; i < address_bytes(address.family); ++i) w.number(address.bytes[i]);
}

Address get_address(Reader& r) {
  Address address;
  const auto family = r.number<std::uint8_t>("address family");
  r.check(family == 0 || family == 1 || family == 4 || family == 6, "address family");
  if (!r.ok()) return {};
  address.family = static_cast<Address::Family>(family);
  address.prefix_bits = r.number<std::uint8_t>("address prefix");
  address.port = r.number<std::uint16_t>("address port");
  const std::size_t bytes = address_bytes(address.family);
  r.check(address.prefix_bits <= 8 * bytes, "address prefix");
  for (std::size_t i = 0; i < bytes; ++i) address.bytes[i] = r.number<std::uint8_t>("address");
  return address;
}

void put(Writer& w, const Network& network) {
  w.number(static_cast<std::uint8_t>(network.base.family));
  w.number(network.bits);
  for (std::size_t i = 0; i < address_bytes(network.base.family); ++i) w.number(network.base.bytes[i]);
}

Network get_network(Reader& r) {
  Network network;
  const auto family = r.number<std::uint8_t>("route family");
  r.check(family == 4 || family == 6, "route family");
  if (!r.ok()) return {};
  network.base.family = static_cast<Address::Family>(family);
  network.bits = r.number<std::uint8_t>("route prefix");
  const std::size_t bytes = address_bytes(network.base.family);
  r.check(network.bits <= 8 * bytes, "route prefix");
  for (std::size_t i = 0; i < bytes; ++i) network.base.bytes[i] = r.number<std::uint8_t>("route");
  return network;
}

void put(Writer& w, const std::vector<int>& ranks) {
  w.number(static_cast<std::uint32_t>(ranks.size()));
  for (const int rank : ranks) w.number(static_cast<std::uint32_t>(rank));
}

std::vector<int> get_ranks(Reader& r, const char* field) {
  std::vector<int> ranks(r.count(field, kWorldMax, sizeof(std::uint32_t)));
  for (int& rank : ranks) {
    const auto value = r.number<std::uint32_t>(field);
    r.check(value < kWorldMax, field);
    rank = static_cast<int>(value);
  }
  return ranks;
}

void put(Writer& w, const EngineInfo& engine) {
  w.number(engine.engine);
  put(w, engine.ranks);
  w.raw_text(engine.host_id, kNameMax);  // is compared only, with the coordinator's own as well
  w.text(engine.host_name, kNameMax);
  w.number(engine.pid);
  w.number(static_cast<std::uint8_t>(engine.caller_driven));
  w.number(static_cast<std::uint16_t>(std::min(engine.cores, 0xffff)));
  put(w, engine.control);
  w.number(static_cast<std::uint32_t>(engine.rails.size()));
  for (const Rail& rail : engine.rails) {
    w.text(rail.device, kNameMax);
    put(w, rail.address);
    w.number(rail.nominal.count);
    w.number(static_cast<std::uint32_t>(rail.beyond.size()));
    for (const Network& network : rail.beyond) put(w, network);
  }
}

EngineInfo get_engine(Reader& r) {
  EngineInfo engine;
  engine.engine = r.number<std::uint32_t>("engine");
  engine.ranks = get_ranks(r, "ranks");
  r.check(!engine.ranks.empty(), "ranks");
  for (std::size_t i = 1; i < engine.ranks.size(); ++i) r.check(engine.ranks[i - 1] < engine.ranks[i], "ranks");
  engine.host_id = r.raw_text("host id", kNameMax);
  engine.host_name = r.text("host name", kNameMax);
  engine.pid = r.number<std::int64_t>("pid");
  const auto caller_driven = r.number<std::uint8_t>("caller driven");
  r.check(caller_driven <= 1, "caller driven");
  engine.caller_driven = caller_driven == 1;
  engine.cores = r.number<std::uint16_t>("cores");
  engine.control = get_address(r);
  engine.rails.resize(r.count("rails", kRailsMax + 1, 18));
  for (Rail& rail : engine.rails) {
    rail.device = r.text("device", kNameMax);
    rail.address = get_address(r);
    rail.nominal.count = r.number<std::int64_t>("nominal rate");
    r.check(rail.nominal.count >= 0, "nominal rate");
    rail.beyond.resize(r.count("routes", kBeyondMax, 6));
    for (Network& network : rail.beyond) network = get_network(r);
  }
  return engine;
}

canary_status get_status(Reader& r) {
  const auto code = r.number<std::uint32_t>("status");
  // A failure says so: OK and WOULD_BLOCK are none.
  r.check(code > CANARY_WOULD_BLOCK && code <= CANARY_INTERNAL, "status");
  return r.ok() ? static_cast<canary_status>(code) : CANARY_INTERNAL;
}

std::int32_t get_culprit(Reader& r) {
  const auto rank = r.number<std::int32_t>("rank");
  r.check(rank >= -1 && rank < static_cast<std::int32_t>(kWorldMax), "rank");
  return rank;
}

// --- one pair per message --------------------------------------------------------------------------------------------

void put(Writer& w, const Join& m) {
  put(w, m.engine);
  w.number(m.world_size);
  w.number(static_cast<std::uint32_t>(m.must_agree.size()));
  for (const std::string& setting : m.must_agree) w.raw_text(setting, kSettingMax);
}
void get(Reader& r, Join* m) {
  m->engine = get_engine(r);
  m->world_size = r.number<std::uint32_t>("world size");
  r.check(m->world_size >= 1 && m->world_size <= kWorldMax, "world size");
  m->must_agree.resize(r.count("settings", 256, sizeof(std::uint16_t)));
  for (std::string& setting : m->must_agree) setting = r.raw_text("setting", kSettingMax);
}

void put(Writer& w, const Welcome& m) {
  w.number(m.job);
  w.number(m.world_size);
  w.number(m.engines);
  w.number(m.first);
  w.number(m.piece_bytes);
  w.number(m.epoch_seed);
  w.number(static_cast<std::uint32_t>(m.part.size()));
  for (const EngineInfo& engine : m.part) put(w, engine);
}
void get(Reader& r, Welcome* m) {
  m->job = r.number<std::uint64_t>("job");
  m->world_size = r.number<std::uint32_t>("world size");
  m->engines = r.number<std::uint32_t>("engines");
  m->first = r.number<std::uint32_t>("first engine");
  m->piece_bytes = r.number<std::int64_t>("piece size");
  m->epoch_seed = r.number<std::uint64_t>("epochs");
  r.check(m->world_size >= 1 && m->world_size <= kWorldMax, "world size");
  r.check(m->engines >= 1 && m->engines <= m->world_size && m->first < m->engines, "engines");
  r.check(m->piece_bytes >= 1 && m->piece_bytes <= std::int64_t{wire::kPayloadMax}, "piece size");
  const std::size_t count = r.count("engines in part", kEnginesMax, 32);
  r.check(count >= 1 && count <= m->engines - m->first, "engines in part");
  if (!r.ok()) return;
  m->part.reserve(count);
  for (std::size_t i = 0; i < count && r.ok(); ++i) {
    m->part.push_back(get_engine(r));
    r.check(m->part.back().engine == m->first + i, "engine");
    for (const int rank : m->part.back().ranks) r.check(static_cast<std::uint32_t>(rank) < m->world_size, "ranks");
  }
}

void put(Writer& w, const Refuse& m) {
  w.number(static_cast<std::uint32_t>(m.code));
  w.number(m.rank);
  w.text(m.host, kNameMax);
  w.text(m.text, kTextMax);
}
void get(Reader& r, Refuse* m) {
  m->code = get_status(r);
  m->rank = get_culprit(r);
  m->host = r.text("host name", kNameMax);
  m->text = r.text("text", kTextMax);
}

void put(Writer& w, const GroupRequest& m) {
  w.number(m.request);
  w.number(m.settled);
  w.number(m.rank);
  put(w, m.members);
}
void get(Reader& r, GroupRequest* m) {
  m->request = r.number<std::uint32_t>("request");
  m->settled = r.number<std::uint32_t>("settled");
  m->rank = r.number<std::uint32_t>("rank");
  r.check(m->request != 0 && m->settled <= m->request, "request");
  r.check(m->rank < kWorldMax, "rank");
  m->members = get_ranks(r, "members");
}

void put(Writer& w, const GroupCreated& m) {
  w.number(m.request);
  w.number(m.flow);
}
void get(Reader& r, GroupCreated* m) {
  m->request = r.number<std::uint32_t>("request");
  m->flow = r.number<std::uint32_t>("flow");
  r.check(m->flow != 0 && m->flow <= kFlowsMax, "flow");
}

void put(Writer& w, const GroupFailed& m) {
  w.number(m.request);
  put(w, Refuse{m.code, m.rank, m.host, m.text});
}
void get(Reader& r, GroupFailed* m) {
  m->request = r.number<std::uint32_t>("request");
  Refuse reason;
  get(r, &reason);
  m->code = reason.code;
  m->rank = reason.rank;
  m->host = std::move(reason.host);
  m->text = std::move(reason.text);
}

void put(Writer& w, const VerdictNote& m) {
  const Verdict& v = m.verdict;
  w.number(static_cast<std::uint32_t>(v.code));
  w.number(static_cast<std::int32_t>(v.rank));
  w.number(v.op);
  w.number(v.flow);
  w.number(v.epoch);
  w.number(v.reporter);
  w.number(v.elapsed.count);
  w.text(v.text, kTextMax);
}
void get(Reader& r, VerdictNote* m) {
  Verdict& v = m->verdict;
  v.code = get_status(r);
  v.rank = get_culprit(r);
  v.op = r.number<std::int64_t>("operation");
  v.flow = r.number<std::uint32_t>("flow");
  v.epoch = r.number<std::uint32_t>("epoch");
  v.reporter = r.number<std::uint32_t>("reporter");
  v.elapsed.count = r.number<std::int64_t>("elapsed");
  v.text = r.text("text", kTextMax);
}

void put(Writer& w, const Death& m) {
  w.number(m.engine);
  w.number(static_cast<std::uint8_t>(m.sure));
  w.text(m.why, kTextMax);
}
void get(Reader& r, Death* m) {
  m->engine = r.number<std::uint32_t>("engine");
  const auto sure = r.number<std::uint8_t>("kind of death");
  r.check(sure <= 1, "kind of death");
  m->sure = sure != 0;
  m->why = r.text("text", kTextMax);
}

void put(Writer& w, const std::vector<LastWord>& words) {
  const std::size_t said = std::min<std::size_t>(words.size(), kLastWordsMax);
  w.number(static_cast<std::uint32_t>(said));
  for (std::size_t i = 0; i < said; ++i) {
    for (const std::uint32_t n : {words[i].group.flow, words[i].group.epoch, words[i].rank, words[i].op}) w.number(n);
  }
}
void get(Reader& r, std::vector<LastWord>* words) {
  words->resize(r.count("last words", kLastWordsMax, 4 * sizeof(std::uint32_t)));
  for (LastWord& word : *words) {
    for (std::uint32_t* n : {&word.group.flow, &word.group.epoch, &word.rank, &word.op})
      *n = r.number<std::uint32_t>("last words");
  }
}

void put(Writer& w, const Leave& m) { put(w, m.words); }
void get(Reader& r, Leave* m) { get(r, &m->words); }

void put(Writer&, const Retract&) {}
void get(Reader&, Retract*) {}

void put(Writer& w, const Left& m) {
  w.number(m.engine);
  put(w, m.words);
}
void get(Reader& r, Left* m) {
  m->engine = r.number<std::uint32_t>("engine");
  get(r, &m->words);
}

void put(Writer& w, const Heartbeat& m) {
  w.number(static_cast<std::uint32_t>(m.heard.size()));
  for (const std::uint64_t word : m.heard) w.number(word);
}
void get(Reader& r, Heartbeat* m) {
  m->heard.resize(r.count("heard engines", kEnginesMax / 64 + 1, sizeof(std::uint64_t)));
  for (std::uint64_t& word : m->heard) word = r.number<std::uint64_t>("heard engines");
}

void put(Writer& w, const Rejoin& m) {
  w.number(m.job);
  w.number(m.engine);
  w.number(m.attempt);
  w.number(m.coordinator);
  w.number(m.forgotten);
}
void get(Reader& r, Rejoin* m) {
  m->job = r.number<std::uint64_t>("job");
  m->engine = r.number<std::uint32_t>("engine");
  m->attempt = r.number<std::uint32_t>("attempt");
  m->coordinator = r.number<std::uint32_t>("coordinator");
  m->forgotten = r.number<std::uint32_t>("flow");
  r.check(m->forgotten <= kFlowsMax, "flow");
}

void put(Writer& w, const Rejoined& m) { w.number(m.attempt); }
void get(Reader& r, Rejoined* m) { m->attempt = r.number<std::uint32_t>("attempt"); }

// An entry of a report without its groups and its text.
constexpr std::size_t kMissedBytes = 2 * sizeof(std::uint32_t) + 2 * sizeof(std::uint8_t) + sizeof(std::uint16_t);

// The report fits one frame: all engines are in it, and as many of their groups and texts as there is room for. Groups
// that are left out are in a later report, when the coordinator's verdicts have ended those of this one.
void put(Writer& w, const MissReport& m) {
  constexpr std::size_t kRoom = wire::kPayloadMax - 64;
  static_assert(kEnginesMax * kMissedBytes < kRoom);
  std::size_t room = kRoom - m.missed.size() * kMissedBytes;
  w.number(static_cast<std::uint32_t>(m.missed.size()));
  for (const Missed& missed : m.missed) {
    const auto why = std::string_view(missed.why).substr(0, std::min(room, kObstacleTextMax));
    room -= why.size();
    const std::size_t said =
        std::min({missed.waiting.size(), std::size_t{kWaitingGroupsMax}, room / sizeof(GroupEpoch)});
    room -= said * sizeof(GroupEpoch);
    w.number(missed.engine);
    w.number(static_cast<std::uint32_t>(said));
    for (const GroupEpoch& group : std::span(missed.waiting).first(said)) {
      w.number(group.flow);
      w.number(group.epoch);
    }
    w.number(static_cast<std::uint8_t>(missed.obstacle));
    w.text(std::string(why), kObstacleTextMax);
    w.number(static_cast<std::uint8_t>(missed.deaf));
  }
}
void get(Reader& r, MissReport* m) {
  m->missed.resize(r.count("missed engines", kEnginesMax, kMissedBytes));
  for (Missed& missed : m->missed) {
    missed.engine = r.number<std::uint32_t>("missed engine");
    missed.waiting.resize(r.count("waiting groups", kWaitingGroupsMax, sizeof(GroupEpoch)));
    for (GroupEpoch& group : missed.waiting) {
      group.flow = r.number<std::uint32_t>("waiting group");
      group.epoch = r.number<std::uint32_t>("waiting group");
    }
    const auto obstacle = r.number<std::uint8_t>("obstacle");
    r.check(obstacle <= static_cast<std::uint8_t>(Obstacle::kThere), "obstacle");
    missed.obstacle = static_cast<Obstacle>(obstacle);
    missed.why = r.text("obstacle", kObstacleTextMax);
    const auto deaf = r.number<std::uint8_t>("who hears whom");
    r.check(deaf <= 1, "who hears whom");
    missed.deaf = deaf != 0;
  }
}

void put(Writer& w, const EntryQuestion& m) {
  w.number(m.group.flow);
  w.number(m.group.epoch);
}
void get(Reader& r, EntryQuestion* m) {
  m->group.flow = r.number<std::uint32_t>("group");
  m->group.epoch = r.number<std::uint32_t>("group");
}

void put(Writer& w, const EntryState& m) {
  put(w, EntryQuestion{m.entered.group});
  for (const auto* list : {&m.entered.by_rank, &m.entered.heard}) {
    w.number(static_cast<std::uint32_t>(list->size()));
    for (const std::uint32_t n : *list) w.number(n);
  }
}
void get(Reader& r, EntryState* m) {
  EntryQuestion group;
  get(r, &group);
  m->entered.group = group.group;
  m->entered.by_rank.resize(r.count("entered operations", kWorldMax, sizeof(std::uint32_t)));
  for (std::uint32_t& n : m->entered.by_rank) n = r.number<std::uint32_t>("entered operations");
  m->entered.heard.resize(r.count("engines heard", kEnginesMax, sizeof(std::uint32_t)));
  for (std::uint32_t& n : m->entered.heard) n = r.number<std::uint32_t>("engines heard");
}

void put(Writer& w, const ConnectRequest& m) { w.number(m.engine); }
void get(Reader& r, ConnectRequest* m) { m->engine = r.number<std::uint32_t>("engine"); }

void put(Writer& w, const GroupKnown& m) {
  put(w, m.ranks);
  w.number(m.flow);
  put(w, m.members);
}
void get(Reader& r, GroupKnown* m) {
  m->ranks = get_ranks(r, "ranks");
  r.check(!m->ranks.empty(), "ranks");
  m->flow = r.number<std::uint32_t>("flow");
  r.check(m->flow != 0 && m->flow <= kFlowsMax, "flow");
  m->members = get_ranks(r, "members");
}

void put(Writer&, const Testified&) {}
void get(Reader&, Testified*) {}

void put(Writer& w, const std::vector<std::uint32_t>& workers) {
  w.number(static_cast<std::uint32_t>(workers.size()));
  for (const std::uint32_t worker : workers) w.number(worker);
}
std::vector<std::uint32_t> get_workers(Reader& r) {
  std::vector<std::uint32_t> workers(r.count("members", kWorldMax, sizeof(std::uint32_t)));
  for (std::size_t i = 0; i < workers.size(); ++i) {
    workers[i] = r.number<std::uint32_t>("member");
    r.check(workers[i] < kWorldMax && (i == 0 || workers[i] > workers[i - 1]), "member");
  }
  return workers;
}

void put(Writer& w, const PolicyId& id) {
  w.number(id.flow);
  w.number(id.epoch);
  w.number(id.number);
}
void get(Reader& r, PolicyId* id) {
  id->flow = r.number<std::uint32_t>("policy");
  id->epoch = r.number<std::uint32_t>("policy");
  id->number = r.number<std::uint64_t>("policy");
}

void put(Writer& w, const PolicyWord& m) {
  using Kind = PolicyWord::Kind;
  put(w, m.policy);
  w.number(m.rank);
  w.number(m.serial);
  w.number(m.seen);
  w.number(static_cast<std::uint8_t>(m.kind));
  if (m.kind == Kind::kOpen || m.kind == Kind::kResume) {
    w.text(m.name, kPolicyNameMax);
    w.number(static_cast<std::uint32_t>(m.members.size()));
    for (std::size_t i = 0; i < m.members.size(); ++i) {
      w.number(m.members[i]);
      w.number(m.hosts[i]);
    }
  }
  if (m.kind == Kind::kAsk || m.kind == Kind::kResume) {
    w.number(static_cast<std::uint8_t>(m.question.kind));
    w.number(m.question.number);
    w.number(m.question.iterations);
    w.number(m.question.capability.count);
    w.number(m.question.applied);
    w.number(m.question.doubted);
    w.number(static_cast<std::uint8_t>(m.question.unsure));
  }
  if (m.kind != Kind::kResume) return;
  const sync::Recollection::Told& told = m.told;
  const unsigned flags =
      (m.asked ? 1u : 0) | (m.open ? 2u : 0) | (m.has_told ? 4u : 0) | (told.done ? 8u : 0) | (m.leaves ? 16u : 0);
  w.number(static_cast<std::uint8_t>(flags));
  w.number(m.ago.count);
  w.number(static_cast<std::uint8_t>(told.kind));
  w.number(told.number);
  put(w, told.members);
  w.number(std::int32_t{told.source});
  put(w, told.behind);
}
void get(Reader& r, PolicyWord* m) {
  get(r, &m->policy);
  m->rank = r.number<std::uint32_t>("rank");
  m->serial = r.number<std::uint32_t>("serial");
  m->seen = r.number<std::uint32_t>("replies seen");
  const auto kind = r.number<std::uint8_t>("kind of word");
  r.check(kind <= static_cast<std::uint8_t>(PolicyWord::Kind::kResume), "kind of word");
  if (!r.ok()) return;
  using Kind = PolicyWord::Kind;
  m->kind = static_cast<Kind>(kind);
  if (m->kind == Kind::kOpen || m->kind == Kind::kResume) {
    m->name = r.text("policy's name", kPolicyNameMax);
    const std::size_t members = r.count("members", kWorldMax, 2 * sizeof(std::uint32_t));
    for (std::size_t i = 0; i < members; ++i) {
      m->members.push_back(r.number<int>("member"));
      m->hosts.push_back(r.number<std::uint32_t>("host"));
      r.check(m->hosts.back() < kWorldMax, "host");
    }
  }
  if (m->kind == Kind::kOpen || m->kind == Kind::kLeave) return;
  const auto question = r.number<std::uint8_t>("question");
  r.check(question <= static_cast<std::uint8_t>(sync::Question::Kind::kArrived), "question");
  m->question.kind = static_cast<sync::Question::Kind>(question);
  m->question.number = r.number<std::int64_t>("question's number");
  m->question.iterations = r.number<std::int64_t>("iterations");
  m->question.capability = Nanos{r.number<std::int64_t>("capability")};
  m->question.applied = r.number<std::int64_t>("round applied");
  m->question.doubted = r.number<std::int64_t>("round in doubt");
  const auto unsure = r.number<std::uint8_t>("unsure");
  r.check(unsure <= 1, "unsure");
  m->question.unsure = unsure != 0;
  if (m->kind != Kind::kResume) return;
  const auto flags = r.number<std::uint8_t>("what was said");
  r.check(flags < 32, "what was said");
  m->asked = (flags & 1) != 0;
  m->open = (flags & 2) != 0;
  m->has_told = (flags & 4) != 0;
  m->told.done = (flags & 8) != 0;
  m->leaves = (flags & 16) != 0;
  m->ago = Nanos{r.number<std::int64_t>("age of a question")};
  const auto told = r.number<std::uint8_t>("answer");
  r.check(told <= static_cast<std::uint8_t>(sync::Answer::Kind::kLate), "answer");
  if (r.ok()) m->told.kind = static_cast<sync::Answer::Kind>(told);
  m->told.number = r.number<std::int64_t>("answer's number");
  m->told.members = get_workers(r);
  m->told.source = r.number<std::int32_t>("source");
  m->told.behind = get_workers(r);
}

void put(Writer& w, const PolicyReply& m) {
  put(w, m.policy);
  w.number(m.rank);
  w.number(m.serial);
  w.number(m.heard);
  w.number(static_cast<std::uint8_t>(m.last));
  w.number(static_cast<std::uint8_t>(m.failed));
  if (m.failed != CANARY_OK) return w.text(m.text, kTextMax);
  w.number(static_cast<std::uint8_t>(m.kind));
  w.number(m.number);
  w.number(static_cast<std::uint8_t>(m.requested));
  w.number(m.steps);
  put(w, m.members);
  w.number(m.source);
  w.number(static_cast<std::uint8_t>(m.counted));
  put(w, m.behind);
}
void get(Reader& r, PolicyReply* m) {
  get(r, &m->policy);
  m->rank = r.number<std::uint32_t>("rank");
  m->serial = r.number<std::uint32_t>("serial");
  m->heard = r.number<std::uint32_t>("words heard");
  const auto last = r.number<std::uint8_t>("last");
  r.check(last <= 1, "last");
  m->last = last != 0;
  const auto failed = r.number<std::uint8_t>("status");
  r.check(failed <= CANARY_INTERNAL && failed != CANARY_WOULD_BLOCK, "status");
  if (!r.ok()) return;
  m->failed = static_cast<canary_status>(failed);
  if (m->failed != CANARY_OK) {
    m->text = r.text("reason", kTextMax);
    return;
  }
  const auto kind = r.number<std::uint8_t>("answer");
  r.check(kind <= static_cast<std::uint8_t>(sync::Answer::Kind::kLate), "answer");
  m->kind = static_cast<sync::Answer::Kind>(kind);
  m->number = r.number<std::int64_t>("answer's number");
  const auto requested = r.number<std::uint8_t>("requested");
  r.check(requested <= 1, "requested");
  m->requested = requested != 0;
  m->steps = r.number<std::int32_t>("steps");
  m->members = get_workers(r);
  m->source = r.number<std::int32_t>("source");
  const auto counted = r.number<std::uint8_t>("counted");
  r.check(counted <= 1, "counted");
  m->counted = counted != 0;
  m->behind = get_workers(r);
}

// Alternative `kind` of the variant: the kind on the wire is its index plus one, so that zeroed bytes are no message.
template <std::size_t kind = 0>
Message get_kind(Reader& r, std::size_t wanted) {
  if constexpr (kind < std::variant_size_v<Message>) {
    if (wanted != kind) return get_kind<kind + 1>(r, wanted);
    std::variant_alternative_t<kind, Message> message;
    get(r, &message);
    return message;
  } else {
    r.fail("kind");
    return Leave{};
  }
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  Writer w;
  w.number(static_cast<std::uint8_t>(message.index() + 1));
  w.number(kFormat);
  std::visit([&w](const auto& m) { put(w, m); }, message);
  return std::move(w.bytes);
}

Result<Message> decode(std::span<const std::byte> bytes) {
  Reader r(bytes);
  const auto kind = r.number<std::uint8_t>("kind");
  const auto format = r.number<std::uint8_t>("format");
  r.check(format == kFormat, "format");
  r.check(kind != 0, "kind");
  if (const char* wrong = r.ok() ? nullptr : r.finish()) {
    return Status(CANARY_SYSTEM, std::string("control message refused: ") + wrong);
  }
  Message message = get_kind(r, std::size_t{kind} - 1);
  if (const char* wrong = r.finish()) return Status(CANARY_SYSTEM, std::string("control message refused: ") + wrong);
  return message;
}

std::size_t welcome_bytes(const EngineInfo& engine) {
  Writer w;
  put(w, engine);
  return w.bytes.size();
}

}  // namespace canarynet::control
