// The real model against recorded results of an independent float32 computation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/engine/model_runner.h"
#include "tests/testing/files.h"

namespace pdserve::engine::testing {
namespace {

using pdserve::testing::RealModelPath;
using pdserve::testing::TestData;
using Json = nlohmann::json;

struct Golden {
  std::vector<TokenId> prompt;
  std::vector<uint32_t> output;
  std::vector<double> margins;
};

std::vector<Golden> ReadGolden() {
  std::ifstream in(TestData("smollm2/greedy.jsonl"));
  std::vector<Golden> all;
  for (std::string line; std::getline(in, line);) {
    const Json json = Json::parse(line);
    all.push_back({Tokens(json["prompt_ids"].get<std::vector<uint32_t>>()),
                   json["output_ids"].get<std::vector<uint32_t>>(),
                   json["margin"].get<std::vector<double>>()});
  }
  return all;
}

std::unique_ptr<Model> LoadReal(const std::string& activations) {
  ModelOptions options;
  options.path = RealModelPath();
  options.activations = activations;
  return MustLoad(options);
}

// Index of the first token that differs from the recorded one, or the number of tokens.
size_t FirstDifference(const std::vector<uint32_t>& tokens, const Golden& golden) {
  const auto at = std::mismatch(tokens.begin(), tokens.end(), golden.output.begin());
  return at.first - tokens.begin();
}

// Prefills every prompt, then decodes all of them together, each until its own recorded length.
std::vector<std::vector<uint32_t>> ContinueAll(Model& model, const std::vector<Golden>& all) {
  ModelRunner runner(model, static_cast<int32_t>(all.size()), 1600);
  const size_t vocab = model.card().vocab_size;
  std::vector<std::vector<uint32_t>> outputs(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    outputs[i].push_back(ArgMax(runner.Feed(int32_t(i), all[i].prompt, 256)));
  }
  for (;;) {
    std::vector<ModelRunner::Piece> pieces;
    for (size_t i = 0; i < all.size(); ++i) {
      if (outputs[i].size() < all[i].output.size()) {
        pieces.push_back({int32_t(i), {{outputs[i].back()}}});
      }
    }
    if (pieces.empty()) return outputs;
    const std::vector<float> logits = runner.Step(pieces);
    for (size_t k = 0; k < pieces.size(); ++k) {
      outputs[pieces[k].sequence].push_back(
          ArgMax(std::span<const float>(logits).subspan(k * vocab, vocab)));
    }
  }
}

double NegativeLogProbability(std::span<const float> logits, uint32_t token) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  return std::log(sum) + highest - logits[token];
}

// Of each token of the recorded text but the first.
std::vector<double> TextLoss(Model& model, const std::vector<uint32_t>& ids) {
  ModelRunner runner(model, 1, static_cast<int32_t>(ids.size()));
  const std::vector<TokenId> tokens = Tokens(ids);
  const size_t vocab = model.card().vocab_size;
  std::vector<double> loss;
  for (size_t at = 0; at < tokens.size(); at += 128) {
    const size_t count = std::min<size_t>(128, tokens.size() - at);
    const auto logits = runner.FeedAll(0, std::span(tokens).subspan(at, count), 128);
    for (size_t i = 0; i < count && at + i + 1 < tokens.size(); ++i) {
      loss.push_back(
          NegativeLogProbability(std::span(logits).subspan(i * vocab, vocab), ids[at + i + 1]));
    }
  }
  return loss;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

TEST(SmolLm2GoldenTest, Fp32ContinuationsLeaveTheReferenceOnlyAtTies) {
  const auto model = LoadReal("fp32");
  const std::vector<Golden> all = ReadGolden();
  ASSERT_EQ(all.size(), 24u);
  const auto outputs = ContinueAll(*model, all);
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t at = FirstDifference(outputs[i], all[i]);
    if (at == outputs[i].size()) continue;
    std::printf("prompt %zu leaves at token %zu, margin %g\n", i, at, all[i].margins[at]);
    EXPECT_LE(all[i].margins[at], 0.01) << "prompt " << i << ", token " << at;
  }
}

TEST(SmolLm2GoldenTest, Fp32LossAgreesTokenByToken) {
  const auto model = LoadReal("fp32");
  const Json json = Json::parse(pdserve::testing::ReadFile(TestData("smollm2/perplexity.json")));
  const auto loss = TextLoss(*model, json["ids"].get<std::vector<uint32_t>>());
  const auto wanted = json["nll"].get<std::vector<double>>();
  ASSERT_EQ(loss.size(), wanted.size());
  double worst = 0;
  for (size_t i = 0; i < loss.size(); ++i) {
    worst = std::max(worst, std::abs(loss[i] - wanted[i]));
    EXPECT_NEAR(loss[i], wanted[i], 1e-3) << "token " << i + 1;
  }
  std::printf("mean loss %.6f, recorded %.6f, largest difference %g\n", Mean(loss), Mean(wanted),
              worst);
  EXPECT_NEAR(Mean(loss), Mean(wanted), 1e-4);
}

TEST(SmolLm2GoldenTest, Int8ContinuationsStayCloseToTheReference) {
  const auto model = LoadReal("int8");
  const std::vector<Golden> all = ReadGolden();
  const auto outputs = ContinueAll(*model, all);
  int32_t whole = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t at = FirstDifference(outputs[i], all[i]);
    whole += at == outputs[i].size() ? 1 : 0;
    if (at == outputs[i].size()) continue;
    std::printf("prompt %zu leaves at token %zu, margin %g\n", i, at, all[i].margins[at]);
    EXPECT_LE(all[i].margins[at], 0.45) << "prompt " << i << ", token " << at;
  }
  std::printf("%d of %zu agree to the end\n", whole, all.size());
  EXPECT_GE(whole, 10);
}

TEST(SmolLm2GoldenTest, Int8MeanLossIsWithinAThousandthOfFp32) {
  const auto model = LoadReal("int8");
  const Json json = Json::parse(pdserve::testing::ReadFile(TestData("smollm2/perplexity.json")));
  const double mean = Mean(TextLoss(*model, json["ids"].get<std::vector<uint32_t>>()));
  const double wanted = json["mean_nll"].get<double>();
  std::printf("mean loss %.6f, recorded %.6f\n", mean, wanted);
  EXPECT_NEAR(mean / wanted, 1.0, 1e-3);
}

}  // namespace
}  // namespace pdserve::engine::testing
