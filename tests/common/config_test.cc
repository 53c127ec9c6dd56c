#include "common/config.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"

namespace pdserve {
namespace {

CommandLine Parse(std::vector<std::string> words) {
  const absl::FlagSaver saver;  // flags are global: each case starts from the defaults
  words.insert(words.begin(), "pdserve");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return ParseCommandLine(static_cast<int>(argv.size()), argv.data(), {{"isa", {"auto", "fast"}}});
}

TEST(ConfigTest, ARoleTakesItsOptionsAndDefaults) {
  const CommandLine line =
      Parse({"decode", "--model=m.gguf", "--kv_pool_bytes", "2097152", "--drain_timeout=250ms"});
  ASSERT_EQ(line.text, "");
  EXPECT_EQ(line.config.role, Role::kDecode);
  EXPECT_EQ(line.config.kv_pool_bytes, 2097152);
  EXPECT_EQ(line.config.drain_timeout, absl::Milliseconds(250));
  EXPECT_EQ(line.config.listen, "127.0.0.1:9002");
  EXPECT_EQ(line.config.node_id, "decode@127.0.0.1:9002");
}

TEST(ConfigTest, NodesAreParted) {
  const CommandLine line = Parse({"router", "--nodes=127.0.0.1:1,127.0.0.1:2"});
  ASSERT_EQ(line.text, "");
  EXPECT_EQ(line.config.node_addresses(), (std::vector<std::string>{"127.0.0.1:1", "127.0.0.1:2"}));
}

class WrongValueTest
    : public ::testing::TestWithParam<std::pair<std::vector<std::string>, std::string>> {};

TEST_P(WrongValueTest, EndsWithTwoAndOneLineThatNamesIt) {
  const CommandLine line = Parse(GetParam().first);
  EXPECT_EQ(line.exit_code, 2);
  EXPECT_NE(line.text.find(GetParam().second), std::string::npos) << line.text;
  EXPECT_EQ(std::count(line.text.begin(), line.text.end(), '\n'), 1) << line.text;
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongValueTest,
    ::testing::Values(
        std::pair{std::vector<std::string>{}, std::string("role")},
        std::pair{std::vector<std::string>{"cook"}, std::string("cook")},
        std::pair{std::vector<std::string>{"both", "decode"}, std::string("role")},
        std::pair{std::vector<std::string>{"both"}, std::string("--model")},
        std::pair{std::vector<std::string>{"router"}, std::string("--nodes")},
        std::pair{std::vector<std::string>{"router", "--nodes=nowhere"}, std::string("--nodes")},
        std::pair{std::vector<std::string>{"router", "--nodes=a:1,b:2,a:1"},
                  std::string("--nodes=a:1")},
        std::pair{std::vector<std::string>{"prefill", "--model=m", "--nodes=a:1"},
                  std::string("--nodes")},
        std::pair{
            std::vector<std::string>{"all", "--model=m", "--transport=tcp", "--peer_timeout=50ms"},
            std::string("--peer_timeout=50ms")},
        std::pair{std::vector<std::string>{"both", "--model=m", "--threads=many"},
                  std::string("--threads=many")},
        std::pair{std::vector<std::string>{"both", "--model=m", "--threads=-1"},
                  std::string("--threads=-1")},
        std::pair{std::vector<std::string>{"both", "--model=m", "--activations=int4"},
                  std::string("--activations=int4")},
        std::pair{std::vector<std::string>{"both", "--model=m", "--isa=slow"},
                  std::string("--isa=slow: want one of auto, fast")},
        std::pair{std::vector<std::string>{"both", "--model=m", "--drain_timeout=5"},
                  std::string("--drain_timeout=5")},
        std::pair{std::vector<std::string>{"both", "--model=m", "--no_such=5"},
                  std::string("--no_such")},
        std::pair{std::vector<std::string>{"both", "--model=m", "--listen=here"},
                  std::string("--listen=here")},
        std::pair{std::vector<std::string>{"both", "--model=m", "--listen=a:99999"},
                  std::string("--listen=a:99999")},
        std::pair{std::vector<std::string>{"both", "--model=m", "--transport=inproc"},
                  std::string("--transport=inproc")},
        std::pair{std::vector<std::string>{"both", "--model"}, std::string("--model")},
        std::pair{std::vector<std::string>{"both", "--flagfile=/no/such/file"},
                  std::string("/no/such/file")}));

TEST(ConfigTest, AFlagfileIsReadInPlaceAndLaterOptionsWin) {
  const std::string path = ::testing::TempDir() + "/pdserve_flagfile";
  std::ofstream(path) << "# a comment\n--model=file.gguf\n\n--threads=3\n";
  const CommandLine line = Parse({"both", "--flagfile=" + path, "--threads=4"});
  std::remove(path.c_str());
  ASSERT_EQ(line.text, "");
  EXPECT_EQ(line.config.model, "file.gguf");
  EXPECT_EQ(line.config.threads, 4);
}

TEST(ConfigTest, AFlagfileThatNamesItselfIsRefused) {
  const std::string path = ::testing::TempDir() + "/pdserve_flagfile_loop";
  std::ofstream(path) << "--flagfile=" << path << "\n";
  const CommandLine line = Parse({"both", "--flagfile=" + path});
  std::remove(path.c_str());
  EXPECT_EQ(line.exit_code, 2);
}

TEST(ConfigTest, HelpNamesEveryOptionOnceWithDefaultAndRange) {
  const CommandLine line = Parse({"--help"});
  EXPECT_EQ(line.exit_code, 0);
  for (const char* part : {"--kv_pool_bytes", "default 1073741824", "from 1 to 65536",
                           "one of int8, fp32", "one of auto, fast", "--flagfile"}) {
    EXPECT_NE(line.text.find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace pdserve
