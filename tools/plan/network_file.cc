#include "tools/plan/network_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <sstream>

#include "base/quantity.h"
#include "tools/arguments.h"

namespace canarynet::plan {
namespace {

constexpr int kRanksMax = 1024;

using Nics = std::vector<double>;  // bytes a second

// An error and its place in the file. The readers below throw it, parse_network_file() catches it.
struct Wrong {
  toml::source_position at;
  std::string text;
};
[[noreturn]] void wrong(const toml::node& where, const std::string& text) { throw Wrong{where.source().begin, text}; }

// A table of the file whose keys are read one by one; a key that nobody read is an error.
class Reader {
 public:
  Reader(const toml::table& table, std::string title, std::initializer_list<std::string_view> known)
      : table_(table), title_(std::move(title)) {
    for (const auto& [key, value] : table) {
      const std::string_view name = key.str();
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      std::string all;
      for (const std::string_view k : known) all += (all.empty() ? "" : ", ") + std::string(k);
      wrong(value, title_ + "there is no \"" + std::string(name) + "\"; it takes " + all);
    }
  }

  bool has(std::string_view key) const { return table_.contains(key); }
  int whole(std::string_view key, int min, int max, std::optional<int> otherwise = {}) const {
    const toml::node* node = find(key, !otherwise);
    if (node == nullptr) return *otherwise;
    const auto value = node->value_exact<std::int64_t>();
    if (!value || *value < min || *value > max)
      wrong(*node, about(key) + "takes a whole number from " + std::to_string(min) + " to " + std::to_string(max));
    return static_cast<int>(*value);
  }
  bool flag(std::string_view key) const {
    const toml::node* node = find(key, false);
    if (node == nullptr) return false;
    const auto value = node->value_exact<bool>();
    if (!value) wrong(*node, about(key) + "takes true or false");
    return *value;
  }
  double seconds(std::string_view key, std::optional<double> otherwise = {}) const {
    const toml::node* node = find(key, !otherwise);
    if (node == nullptr) return *otherwise;
    const auto text = node->value_exact<std::string>();
    const auto value = text ? seconds_of(*text) : std::nullopt;
    if (!value) wrong(*node, about(key) + "takes a time in quotes, as in \"1ms\" or \"20us\"");
    return *value;
  }
  double bytes_per_second(std::string_view key) const { return rate(*find(key, true), key); }
  Nics nics(std::string_view key) const {
    const toml::node* node = find(key, true);
    const toml::array* list = node->as_array();
    if (list == nullptr || list->empty() || list->size() > kRailsMax)
      wrong(*node, about(key) + "takes a list of 1 to " + std::to_string(kRailsMax) +
                       " rates, one per NIC, as in [\"500mbit\", \"125mbit\"]");
    Nics rates;
    for (const toml::node& one : *list) rates.push_back(rate(one, key));
    return rates;
  }
  std::string text(std::string_view key, const std::string& otherwise) const {
    const toml::node* node = find(key, false);
    if (node == nullptr) return otherwise;
    const auto value = node->value_exact<std::string>();
    if (!value) wrong(*node, about(key) + "takes a text in quotes");
    return *value;
  }
  [[noreturn]] void refuse(std::string_view key, const std::string& why) const {
    const toml::node* node = table_.get(key);
    wrong(node != nullptr ? *node : table_, (node != nullptr ? about(key) : title_) + why);
  }

 private:
  const toml::node* find(std::string_view key, bool needed) const {
    const toml::node* node = table_.get(key);
    if (node == nullptr && needed) wrong(table_, title_ + "\"" + std::string(key) + "\" is missing");
    return node;
  }
  std::string about(std::string_view key) const { return title_ + std::string(key) + ": "; }
  double rate(const toml::node& node, std::string_view key) const {
    const auto text = node.value_exact<std::string>();
    const auto bits = text ? bits_per_second(*text) : std::nullopt;
    if (!bits || *bits <= 0) wrong(node, about(key) + "takes a rate in quotes, as in \"10gbit\" or \"500mbit\"");
    return *bits / 8;
  }

  const toml::table& table_;
  const std::string title_;  // "link: ", or "" for the file's own keys
};

// [[host]] and [[link]]; none is fine.
const toml::array* tables_of(const toml::table& file, std::string_view key) {
  const toml::node* node = file.get(key);
  if (node == nullptr) return nullptr;
  const toml::array* list = node->as_array();
  if (list == nullptr || !list->is_homogeneous(toml::node_type::table))
    wrong(*node, std::string(key) + ": write [[" + std::string(key) + "]] above the keys of each");
  return list;
}

struct Host {
  Nics nics;
  double alpha = 0;
};

// [from host][to host]: bit per NIC that joins them.
using Joins = std::vector<std::vector<std::uint32_t>>;

void read_wiring(const Reader& file, NetworkFile* network, Joins* joins) {
  const std::string wiring = file.text("wiring", "flat");
  const auto n = static_cast<std::size_t>(network->hosts);
  joins->assign(n, std::vector<std::uint32_t>(n, (1u << network->rails) - 1));
  if (wiring == "flat") return;
  const auto comma = wiring.find(',');
  const bool named = wiring.starts_with("bcube:") && comma != std::string::npos;
  const auto r = named ? tools::whole(std::string_view(wiring).substr(6, comma - 6), 2, 64) : std::nullopt;
  const auto levels = named ? tools::whole(std::string_view(wiring).substr(comma + 1), 1, 11) : std::nullopt;
  if (!r || !levels) file.refuse("wiring", "takes \"flat\" or \"bcube:R,L\"");
  int hosts = 1;
  for (int l = 0; l < *levels && hosts <= kRanksMax; ++l) hosts *= *r;
  if (hosts != network->hosts || *levels != network->rails) {
    file.refuse("wiring", wiring + " joins " + std::to_string(hosts) + " hosts of " + std::to_string(*levels) +
                              " NICs, but the file says " + std::to_string(network->hosts) + " of " +
                              std::to_string(network->rails));
  }
  const Reachability cube = Reachability::bcube(*r, *levels);
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = 0; b < n; ++b) (*joins)[a][b] = cube.rails(static_cast<int>(a), static_cast<int>(b));
  }
  if (network->ranks_per_host == 1) network->bcube = {*r, *levels};
}

void read_link(const toml::table& table, NetworkFile* network, Joins* joins) {
  const Reader link(table, "link: ", {"from", "to", "nic", "alpha", "bandwidth", "missing", "one_way"});
  const int last = network->hosts - 1;
  const auto host = [&](std::string_view key) {
    const int index = link.whole(key, 0, kRanksMax);
    if (index > last)
      link.refuse(key, "there is no host " + std::to_string(index) + "; hosts are 0 to " + std::to_string(last));
    return index;
  };
  const int from = host("from"), to = host("to");
  if (from == to) link.refuse("to", "a host has no link to itself");
  const bool missing = link.flag("missing"), one_way = link.flag("one_way");
  if (missing && one_way) link.refuse("one_way", "a link is missing in both directions or in none");
  if (!missing && !link.has("alpha") && !link.has("bandwidth"))
    link.refuse("", "it says nothing: give it alpha, bandwidth, or missing = true");
  const int nic = link.whole("nic", -1, network->rails - 1, -1);
  for (const auto& [a, b] : {std::pair{from, to}, std::pair{to, from}}) {
    if (one_way && a != from) continue;
    std::uint32_t& joined = (*joins)[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
    const std::uint32_t meant = joined & (nic < 0 ? ~0u : 1u << nic);
    if (meant == 0) {
      link.refuse(nic < 0 ? "to" : "nic",
                  "no such NIC joins hosts " + std::to_string(from) + " and " + std::to_string(to) + " here");
    }
    if (missing) {
      joined &= ~meant;
      continue;
    }
    const int k = network->ranks_per_host;
    for (int l = 0; l < network->rails; ++l) {
      if ((meant >> l & 1u) == 0) continue;
      LinkCost cost = network->links.of(a * k, b * k, l);
      cost.alpha = link.seconds("alpha", cost.alpha);
      if (link.has("bandwidth")) cost.beta = 1 / link.bytes_per_second("bandwidth");
      network->links.set(a * k, b * k, l, cost);
    }
  }
}

void read(const toml::table& table, NetworkFile* network) {
  const Reader file(table, "",
                    {"hosts", "ranks_per_host", "nics", "alpha", "wiring", "gamma", "post", "local_alpha",
                     "local_bandwidth", "host", "link"});
  network->hosts = file.whole("hosts", 1, kRanksMax);
  network->ranks_per_host = file.whole("ranks_per_host", 1, kRanksMax, 1);
  if (network->ranks() > kRanksMax) {
    file.refuse("ranks_per_host",
                std::to_string(network->ranks()) + " ranks in all; at most " + std::to_string(kRanksMax));
  }
  const Nics nics = file.nics("nics");
  network->rails = static_cast<int>(nics.size());
  CostModel& model = network->model;
  model.alpha = file.seconds("alpha");
  model.beta = 1 / nics[0];
  model.gamma = file.seconds("gamma", 0);
  model.post = file.seconds("post", 0);
  model.local_alpha = file.seconds("local_alpha", 0);
  if (file.has("local_bandwidth")) model.local_beta = 1 / file.bytes_per_second("local_bandwidth");

  std::vector<Host> hosts(static_cast<std::size_t>(network->hosts), {nics, model.alpha});
  if (const toml::array* list = tables_of(table, "host"); list != nullptr) {
    for (const toml::node& one : *list) {
      const Reader host(*one.as_table(), "host: ", {"index", "nics", "alpha"});
      const int index = host.whole("index", 0, kRanksMax);
      if (index >= network->hosts) {
        host.refuse("index", "there is no host " + std::to_string(index) + "; hosts are 0 to " +
                                 std::to_string(network->hosts - 1));
      }
      Host& h = hosts[static_cast<std::size_t>(index)];
      if (host.has("nics")) h.nics = host.nics("nics");
      if (h.nics.size() != nics.size())
        host.refuse("nics", "every host has " + std::to_string(nics.size()) + "; a link of its own may be missing");
      h.alpha = host.seconds("alpha", h.alpha);
    }
  }

  Joins joins;
  read_wiring(file, network, &joins);
  network->links = LinkCosts({model.alpha, model.beta});
  const int k = network->ranks_per_host;
  for (int a = 0; a < network->hosts; ++a) {
    for (int b = 0; b < network->hosts; ++b) {
      const Host &from = hosts[static_cast<std::size_t>(a)], &to = hosts[static_cast<std::size_t>(b)];
      for (std::size_t l = 0; l < nics.size(); ++l) {
        const LinkCost cost{std::max(from.alpha, to.alpha), 1 / std::min(from.nics[l], to.nics[l])};
        if (a != b && cost != LinkCost{model.alpha, model.beta})
          network->links.set(a * k, b * k, static_cast<int>(l), cost);
      }
    }
  }
  if (const toml::array* list = tables_of(table, "link"); list != nullptr) {
    for (const toml::node& one : *list) read_link(*one.as_table(), network, &joins);
  }

  network->reach = Reachability(network->ranks());
  for (int a = 0; a < network->ranks(); ++a) {
    network->host_of.push_back(a / k);
    for (int b = 0; b < a; ++b) {
      const auto i = static_cast<std::size_t>(a / k), j = static_cast<std::size_t>(b / k);
      if (i == j) {
        network->reach.set(a, b, Reachability::kHostBit, Reachability::kHostBit);
      } else {
        network->reach.set(a, b, joins[i][j], joins[j][i]);
      }
    }
  }
}

}  // namespace

Result<NetworkFile> parse_network_file(std::string_view text, const std::string& name) {
  const auto refused = [&](const toml::source_position& at, const std::string& why) {
    return Status(CANARY_INVALID_ARGUMENT, name + ":" + std::to_string(at.line) + ": " + why);
  };
  NetworkFile network;
  try {
    const toml::table file = toml::parse(text, name);
    read(file, &network);
  } catch (const toml::parse_error& error) {
    return refused(error.source().begin, std::string(error.description()));
  } catch (const Wrong& w) {
    return refused(w.at, w.text);
  }
  return network;
}

Result<NetworkFile> read_network_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    return Status(CANARY_INVALID_ARGUMENT, path + ": can't be read: " + std::strerror(errno));
  }
  return parse_network_file(text.str(), path);
}

}  // namespace canarynet::plan
