#include "tools/run/options.h"

#include <gtest/gtest.h>

#include <set>

#include "tools/run/link_change.h"
#include "tools/run/script.h"
#include "tools/run/values.h"
#include "tools/run/wiring.h"

namespace canarynet::run {
namespace {

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> out;
  std::string word;
  for (const char c : text + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      out.push_back(word);
      word.clear();
    }
  }
  return out;
}

RunOptions parsed(const std::string& text) {
  auto result = parse_run_options(words(text));
  EXPECT_TRUE(result.ok()) << text << ": " << result.status().text();
  return result.ok() ? result.value().options : RunOptions{};
}

std::string error_of(const std::string& text) {
  const auto result = parse_run_options(words(text));
  return result.ok() ? "" : result.status().text();
}

TEST(RunOptionsText, TakesEverything) {
  const auto o = parsed(
      "-n 8 --hosts 4 --topology bcube:2,2 --rate 500mbit,2.5gbit --delay 1ms --jitter 100us --loss 0.1%,0% --mtu 9000 "
      "--no-ctl "
      "--port 5 --congestion cubic --grace 1s --timeout 10s --keep-going --no-prefix -q --burst 64KiB -- cmd --hosts "
      "-- x");
  EXPECT_EQ(o.ranks, 8);
  EXPECT_EQ(o.hosts, 4);
  EXPECT_EQ(o.nics, 2);
  EXPECT_EQ(o.rates.by_nic, (std::vector<std::int64_t>{500'000'000, 2'500'000'000}));
  EXPECT_EQ(o.delays.by_nic, std::vector<Nanos>{1_ms});
  EXPECT_EQ(o.jitters.by_nic, std::vector<Nanos>{100_us});
  EXPECT_TRUE(o.relay);
  EXPECT_EQ(o.loss_ppm.by_nic, (std::vector<std::uint32_t>{1000, 0}));
  EXPECT_EQ(o.mtu, 9000);
  EXPECT_FALSE(o.ctl);
  EXPECT_EQ(o.port, 5);
  EXPECT_EQ(o.congestion, "cubic");
  EXPECT_EQ(o.grace, 1_s);
  EXPECT_EQ(o.timeout, 10_s);
  EXPECT_TRUE(o.keep_going);
  EXPECT_FALSE(o.prefix);
  EXPECT_TRUE(o.quiet);
  EXPECT_EQ(o.bursts.by_nic, std::vector<Bytes>{Bytes{65536}});
  EXPECT_EQ(o.command, (std::vector<std::string>{"cmd", "--hosts", "--", "x"}));
  EXPECT_EQ(o.host_of(1), 0);
  EXPECT_EQ(o.host_of(2), 1);
}

TEST(RunOptionsText, EveryErrorNamesOptionValueAndWhatItTakes) {
  const struct {
    const char* text;
    std::vector<const char*> parts;
  } cases[] = {
      {"-- x", {"-n", "missing"}},
      {"-n 0 -- x", {"-n 0", "from 1 to"}},
      {"-n 3x -- x", {"-n 3x", "whole number"}},
      {"-n 2", {"command", "missing", "--"}},
      {"-n 2 x -- y", {"x", "after --"}},
      {"-n 2 --wrong -- y", {"--wrong"}},
      {"-n 3 --hosts 2 -- x", {"-n 3", "--hosts 2", "multiple"}},
      {"-n 4 --hosts 4 --topology torus -- x", {"--topology torus", "flat, mesh, bcube:r,L", "onesubnet"}},
      {"-n 4 --hosts 4 --topology bcube:2 -- x", {"--topology bcube:2", "r^L"}},
      {"-n 4 --hosts 4 --topology bcube:2,3 -- x", {"--hosts 4", "bcube:2,3", "8"}},
      {"-n 4 --hosts 4 --topology bcube:2,2 --nics 3 -- x", {"--nics 3", "bcube:2,2", "takes 2"}},
      {"-n 4 --hosts 4 --topology mesh --nics 2 -- x", {"--nics 2", "mesh", "takes 3"}},
      {"-n 1 --hosts 1 --topology mesh -- x", {"--hosts 1", "at least 2"}},
      {"-n 2 --hosts 2 --rate 500 -- x", {"--rate 500", "500mbit"}},
      {"-n 2 --hosts 2 --rate 1e3mbit -- x", {"--rate 1e3mbit"}},
      {"-n 2 --hosts 2 --nics 3 --rate 1mbit,2mbit -- x", {"--rate 1mbit,2mbit", "each of the 3 NICs"}},
      {"-n 2 --hosts 2 --delay 5 -- x", {"--delay 5", "1ms"}},
      {"-n 2 --hosts 2 --loss 0.1 -- x", {"--loss 0.1", "percentage"}},
      {"-n 2 --hosts 2 --loss 101% -- x", {"--loss 101%", "100%"}},
      {"-n 2 --hosts 2 --mtu 100 -- x", {"--mtu 100", "576"}},
      {"-n 2 --hosts 2 --burst 1 -- x", {"--burst 1", "2KiB"}},
      {"-n 2 --port 70000 -- x", {"--port 70000", "65535"}},
      {"-n 2 --rate 1gbit -- x", {"--rate", "--hosts"}},
      {"-n 2 --no-ctl -- x", {"--no-ctl", "--hosts"}},
      {"-n 2 --fabric alias -- x", {"--fabric", "--hosts"}},
      {"-n 2 --hosts 2 --fabric cloth -- x", {"--fabric cloth", "namespaces or alias"}},
      {"-n 2 --hosts 2 --fabric alias --delay 1ms -- x", {"--delay", "--fabric namespaces"}},
      {"-n 2 --hosts 2 --fabric alias --loss 1% -- x", {"--loss", "--fabric namespaces"}},
      {"-n 2 --hosts 2 --fabric alias --no-ctl -- x", {"--no-ctl", "--fabric namespaces"}},
      {"-n 2 --grace soon -- x", {"--grace soon", "time"}},
      {"-n 2 --hosts 2 --rate 1mbit,host2.nic0=2mbit -- x", {"--rate host2.nic0=2mbit", "host0 to host1"}},
      {"-n 2 --hosts 2 --rate 1mbit,host1.nic0=fast -- x", {"--rate fast", "500mbit"}},
      {"-n 2 --hosts 2 --nics 2 --burst 8KiB,72KiB,1 -- x", {"--burst 1", "2KiB"}},
      {"-n 2 --hosts 2 --nics 3 --queue 8KiB,72KiB -- x", {"--queue 8KiB,72KiB", "each of the 3 NICs"}},
      {"-n 2 --ipv6 -- x", {"--ipv6", "--hosts"}},
      {"-n 2 --script /none -- x", {"--script", "--hosts"}},
      {"-n 2 --hosts 2 --script /none -- x", {"--script /none", "can be read"}},
      {"-n 2 --hosts 2 --fabric alias --ipv6 -- x", {"--ipv6", "--fabric namespaces"}},
      {"-n 2 --hosts 2 --fabric alias --topology routed -- x", {"--topology routed", "--fabric namespaces"}},
  };
  for (const auto& c : cases) {
    const std::string error = error_of(c.text);
    ASSERT_NE(error, "") << c.text;
    for (const char* part : c.parts) EXPECT_NE(error.find(part), std::string::npos) << c.text << ": " << error;
  }
}

TEST(LinkChangeText, TakesOneActionOnOneOrAllNics) {
  auto change = parse_link_change("host=1,nic=0,rate=125mbit");
  ASSERT_TRUE(change.ok());
  EXPECT_EQ(change.value().place.host, 1);
  EXPECT_EQ(change.value().place.nic, 0);
  EXPECT_EQ(change.value().rate, 125'000'000);
  change = parse_link_change("nic=*,host=*,blackhole=on");
  ASSERT_TRUE(change.ok());
  EXPECT_EQ(change.value().place.host, -1);
  EXPECT_EQ(change.value().action, LinkChange::Action::kBlackhole);
  EXPECT_TRUE(change.value().on);
  for (const char* wrong :
       {"", "host=1,nic=0", "host=1,down", "nic=1,down", "host=1,nic=0,up,down", "host=1,nic=0,blackhole",
        "host=-1,nic=0,up", "host=1,nic=0,rate=5", "host=1,nic=0,colour=red"}) {
    EXPECT_FALSE(parse_link_change(wrong).ok()) << wrong;
  }
}

TEST(RunOptionsText, ListsHaveValuesForPlacesAndTheLastOneCounts) {
  const auto o = parsed(
      "-n 3 --hosts 3 --nics 2 --rate 500mbit,125mbit,host1.nic0=50mbit,*.nic1=80mbit,host2.*=none --burst 8KiB,72KiB "
      "--delay host0.nic1=2.5ms --queue 256KiB --loss *=1% -- x");
  const auto rate = [&](int h, int k) { return o.rates.at(h, k, std::int64_t{7}); };
  EXPECT_EQ(rate(0, 0), 500'000'000);
  EXPECT_EQ(rate(0, 1), 80'000'000);
  EXPECT_EQ(rate(1, 0), 50'000'000);
  EXPECT_EQ(rate(1, 1), 80'000'000);
  EXPECT_EQ(rate(2, 0), 0);
  EXPECT_EQ(rate(2, 1), 0);
  EXPECT_EQ(o.bursts.at(2, 1, Bytes{}), Bytes{72 << 10});
  EXPECT_EQ(o.queues.at(2, 1, Bytes{}), Bytes{256 << 10});
  EXPECT_EQ(o.delays.at(0, 1, Nanos{}), 2500_us);
  EXPECT_EQ(o.delays.at(1, 1, Nanos{}), Nanos{});
  EXPECT_EQ(o.loss_ppm.at(1, 1, 0u), 10'000u);
  EXPECT_EQ(rates_text(o, 1), "50mbit,80mbit");
}

TEST(PlaceText, NamesHostAndNicOrAll) {
  const auto at = [](const char* text) { return parse_place(text, 2, 2); };
  EXPECT_TRUE(at("host1.nic0").ok() && at("host1.nic0").value().covers(1, 0));
  EXPECT_FALSE(at("host1.nic0").value().covers(1, 1));
  EXPECT_FALSE(at("host1.nic0").value().covers(0, 0));
  EXPECT_TRUE(at("host0.*").value().covers(0, 1));
  EXPECT_FALSE(at("host0.*").value().covers(1, 1));
  EXPECT_TRUE(at("*.nic1").value().covers(1, 1));
  EXPECT_FALSE(at("*.nic1").value().covers(1, 0));
  EXPECT_TRUE(at("*").value().covers(1, 0));
  EXPECT_TRUE(at("*.*").value().covers(0, 1));
  for (const char* wrong : {"", "host0", "nic0", "host2.nic0", "host0.nic2", "host.nic0", "host0.nic", "1.0",
                            "host-1.nic0", "host0,nic0", "nic0.host0"}) {
    ASSERT_FALSE(at(wrong).ok()) << wrong;
    EXPECT_NE(at(wrong).status().text().find("host0 to host1"), std::string::npos) << at(wrong).status().text();
  }
}

TEST(ScriptText, IsReadInOrderOfTime) {
  const auto steps = parse_script("f",
                                  "# rates\n\n  2.5s host1.nic0 rate 50mbit # slower\n300ms * down\n"
                                  "300ms\thost0.* up\n1min *.nic1 blackhole on\n3s * loss 0.5%\n4s * delay 1.5ms",
                                  2, 2);
  ASSERT_TRUE(steps.ok()) << steps.status().text();
  const auto& s = steps.value();
  ASSERT_EQ(s.size(), 6u);
  EXPECT_EQ(s[0].at, 300_ms);
  EXPECT_EQ(s[0].change.action, LinkChange::Action::kDown);
  EXPECT_EQ(s[1].change.action, LinkChange::Action::kUp);
  EXPECT_EQ(s[1].change.place.host, 0);
  EXPECT_EQ(s[1].change.place.nic, -1);
  EXPECT_EQ(s[2].at, 2500_ms);
  EXPECT_EQ(s[2].change.rate, 50'000'000);
  EXPECT_EQ(s[2].text, "host1.nic0 rate 50mbit");
  EXPECT_EQ(s[3].change.loss_ppm, 5000u);
  EXPECT_EQ(s[4].change.delay, 1500_us);
  EXPECT_TRUE(s[5].change.on);
  EXPECT_EQ(s[5].at, 60_s);
}

TEST(ScriptText, EveryErrorNamesLineAndWord) {
  const struct {
    const char* line;
    std::vector<const char*> parts;
  } cases[] = {
      {"soon * down", {"word 1 \"soon\"", "2.5s"}},
      {"5 * down", {"word 1 \"5\"", "2.5s"}},
      {"1s", {"word 2 is missing", "host0.nic0"}},
      {"1s host2.nic0 down", {"word 2 \"host2.nic0\"", "host0 to host1"}},
      {"1s *", {"word 3 is missing", "rate R"}},
      {"1s * sideways", {"word 3 \"sideways\"", "rate R"}},
      {"1s * rate", {"word 4 is missing", "500mbit"}},
      {"1s * rate 5", {"word 4 \"5\"", "500mbit"}},
      {"1s * loss 1", {"word 4 \"1\"", "percentage"}},
      {"1s * delay 5", {"word 4 \"5\"", "1ms"}},
      {"1s * blackhole maybe", {"word 4 \"maybe\"", "on or off"}},
      {"1s * down now", {"word 4 \"now\"", "no value"}},
      {"1s * rate 5mbit now", {"word 5 \"now\"", "nothing"}},
  };
  for (const auto& c : cases) {
    const auto steps = parse_script("links.txt", std::string("# first\n") + c.line + "\n1s * up", 2, 1);
    ASSERT_FALSE(steps.ok()) << c.line;
    const std::string error = steps.status().text();
    EXPECT_NE(error.find("--script links.txt: line 2"), std::string::npos) << error;
    for (const char* part : c.parts) EXPECT_NE(error.find(part), std::string::npos) << c.line << ": " << error;
  }
}

TEST(RateText, IsWhatParseRateTakes) {
  for (const std::int64_t rate : {0ll, 125'000'000ll, 2'500'000'000ll, 40'000'000'000ll, 333'333ll}) {
    const auto back = parse_rate("--rate", rate_text(rate));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(back.value(), rate);
  }
}

// All hosts but `host` on the switch of (host, nic).
std::set<int> neighbours(const Wiring& w, int host, int nic) {
  std::set<int> out;
  for (const auto& p : w.ports) {
    if (p.switch_index == w.port(host, nic).switch_index && p.host != host) out.insert(p.host);
  }
  return out;
}

TEST(WiringPlan, BcubeJoinsHostsThatDifferInOneDigit) {
  const auto w = make_wiring(parsed("-n 27 --hosts 27 --topology bcube:3,3 -- x"));
  EXPECT_EQ(w.switches.size(), 27u);
  for (int h = 0; h < 27; ++h) {
    const int digits[3] = {h % 3, h / 3 % 3, h / 9};
    const int weight[3] = {1, 3, 9};
    for (int level = 0; level < 3; ++level) {
      std::set<int> expected;
      for (int d = 0; d < 3; ++d) expected.insert(h + (d - digits[level]) * weight[level]);
      expected.erase(h);
      EXPECT_EQ(neighbours(w, h, level), expected) << "host " << h << " level " << level;
    }
  }
}

TEST(WiringPlan, MeshGivesEachPairALinkAndFlatEachNicASwitch) {
  const auto mesh = make_wiring(parsed("-n 5 --hosts 5 --topology mesh -- x"));
  EXPECT_EQ(mesh.switches.size(), 10u);
  for (int h = 0; h < 5; ++h) {
    std::set<int> all;
    for (int k = 0; k < 4; ++k) {
      const auto n = neighbours(mesh, h, k);
      EXPECT_EQ(n.size(), 1u);
      all.insert(n.begin(), n.end());
    }
    EXPECT_EQ(all.size(), 4u);
  }
  const auto flat = make_wiring(parsed("-n 3 --hosts 3 --nics 2 -- x"));
  EXPECT_EQ(flat.switches.size(), 2u);
  EXPECT_EQ(neighbours(flat, 0, 1), (std::set<int>{1, 2}));
}

TEST(WiringPlan, AliasesAreTheSameNumbersInTheLoopbackNetwork) {
  const auto o = parsed("-n 4 --hosts 4 --fabric alias --topology bcube:2,2 --rate 500mbit,none -- x");
  EXPECT_TRUE(o.aliases());
  EXPECT_FALSE(o.namespaces());
  EXPECT_EQ(rates_text(o, 0), "500mbit,none");
  const auto w = make_wiring(o);
  EXPECT_EQ(alias_rails(w, 0), "127.1.0.1/24,127.2.0.1/24");
  EXPECT_EQ(alias_rails(w, 3), "127.1.1.4/24,127.2.1.4/24");
  EXPECT_EQ(rates_text(parsed("-n 2 --hosts 2 --nics 2 --rate 1gbit -- x"), 1), "1gbit,1gbit");
  EXPECT_EQ(rates_text(parsed("-n 2 --hosts 2 -- x"), 0), "");
}

TEST(WiringPlan, AddressesAreUniqueAndSwitchesAreSubnets) {
  for (const std::string text : {"-n 27 --hosts 27 --topology bcube:3,3 -- x", "-n 20 --hosts 20 --topology mesh -- x",
                                 "-n 4 --hosts 4 --nics 8 -- x", "-n 4 --hosts 4 --nics 8 --ipv6 -- x"}) {
    const auto w = make_wiring(parsed(text));
    std::set<std::string> addresses, subnets;
    for (const auto& p : w.ports) {
      EXPECT_TRUE(addresses.insert(p.address).second) << p.address;
      subnets.insert(p.address.substr(0, p.address.find_last_of(".:")) + " " +
                     w.switches[static_cast<std::size_t>(p.switch_index)]);
      EXPECT_NE(p.address.substr(0, 5), "10.0.") << "belongs to ctl0";
    }
    EXPECT_EQ(subnets.size(), w.switches.size()) << text;
  }
}

TEST(WiringPlan, BehindARouterEachNicHasAGatewayAndASubnetOrNone) {
  const auto routed = make_wiring(parsed("-n 250 --hosts 250 --nics 3 --topology routed -- x"));
  EXPECT_TRUE(routed.routed);
  EXPECT_EQ(routed.switches.size(), 1u);
  std::set<std::string> addresses, gateways;
  for (const auto& p : routed.ports) {
    EXPECT_EQ(p.prefix, 24);
    EXPECT_TRUE(addresses.insert(p.address).second) << p.address;
    EXPECT_TRUE(gateways.insert(p.gateway).second) << p.gateway << ": each NIC has a subnet of its own";
    EXPECT_EQ(p.address.substr(0, p.address.rfind('.')), p.gateway.substr(0, p.gateway.rfind('.')));
  }
  EXPECT_EQ(routed.port(3, 1).address, "10.2.3.2");
  const auto alone = make_wiring(parsed("-n 250 --hosts 250 --nics 3 --topology pointtopoint -- x"));
  for (const auto& p : alone.ports) {
    EXPECT_EQ(p.prefix, 32);
    EXPECT_TRUE(addresses.insert("alone " + p.address).second) << p.address;
    EXPECT_NE(p.address, p.gateway);
  }
  EXPECT_EQ(alone.port(1, 1).address, "10.2.0.3");
  EXPECT_EQ(alone.port(1, 1).gateway, "10.2.0.1");
  EXPECT_NE(host_addressing(alone, alone.port(1, 1)).find("route replace 10.2.0.1/32 dev nic1\n"), std::string::npos);
  EXPECT_EQ(make_wiring(parsed("-n 2 --hosts 2 --topology pointtopoint --ipv6 -- x")).port(0, 0).prefix, 128);
}

TEST(WiringPlan, OneSubnetHasAllNicsOnOneSwitch) {
  const auto w = make_wiring(parsed("-n 3 --hosts 3 --nics 2 --topology onesubnet -- x"));
  EXPECT_EQ(w.switches.size(), 1u);
  std::set<std::string> addresses;
  for (const auto& p : w.ports) {
    EXPECT_EQ(p.address.substr(0, 5), "10.1.");
    EXPECT_EQ(p.prefix, 16);
    EXPECT_EQ(p.gateway, "");
    addresses.insert(p.address);
  }
  EXPECT_EQ(addresses.size(), 6u);
}

}  // namespace
}  // namespace canarynet::run
