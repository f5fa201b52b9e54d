#include "examples/train_fashion_mnist/dataset.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>

namespace train {
namespace {

class DatasetFiles : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "train_dataset_" + std::to_string(getpid());
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void write(const std::string& name, const std::vector<std::uint8_t>& bytes) const {
    const gzFile file = gzopen((directory_ + "/" + name).c_str(), "wb");
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())), static_cast<int>(bytes.size()));
    gzclose(file);
  }
  // Two images of 2 x 3 pixels.
  void write_good() const {
    write("train-images-idx3-ubyte.gz",
          {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, 0, 1, 2, 3, 4, 5, 250, 251, 252, 253, 254, 255});
    write("train-labels-idx1-ubyte.gz", {0, 0, 8, 1, 0, 0, 0, 2, 7, 3});
  }
  std::string error() const {
    try {
      Dataset::load(directory_, "train");
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "";
  }
  std::string directory_;
};

TEST_F(DatasetFiles, GiveTheImagesThatWereAskedForNormalised) {
  write_good();
  const auto dataset = Dataset::load(directory_, "train");
  ASSERT_EQ(dataset.size(), 2u);
  ASSERT_EQ(dataset.pixels(), 6u);
  const std::vector<std::uint32_t> indices = {1, 0, 1};
  std::vector<float> images(18);
  std::vector<std::uint8_t> labels(3);
  dataset.batch(indices, images, labels);
  EXPECT_EQ(labels, (std::vector<std::uint8_t>{3, 7, 3}));
  EXPECT_NEAR(images[5], (1 - 0.2860f) / 0.3530f, 1e-5);  // pixel 255
  EXPECT_NEAR(images[6], (0 - 0.2860f) / 0.3530f, 1e-5);  // pixel 0
  EXPECT_EQ(images[0], images[12]);
}

TEST_F(DatasetFiles, ErrorsNameTheFile) {
  EXPECT_NE(error().find("train-images"), std::string::npos);
  write_good();
  EXPECT_EQ(error(), "");
  write("train-labels-idx1-ubyte.gz", {0, 0, 8, 1, 0, 0, 0, 3, 7, 3, 1});
  EXPECT_NE(error().find("not as many labels"), std::string::npos);
  write("train-labels-idx1-ubyte.gz", {0, 0, 8, 1, 0, 0, 0, 2, 7, 10});
  EXPECT_NE(error().find("above 9"), std::string::npos);
  write("train-labels-idx1-ubyte.gz", {0, 0, 8, 1, 0, 0, 0, 2, 7});
  EXPECT_NE(error().find("ends early"), std::string::npos);
  write("train-labels-idx1-ubyte.gz", {0, 0, 13, 1, 0, 0, 0, 2, 7, 3});
  EXPECT_NE(error().find("no IDX file"), std::string::npos);
  write("train-labels-idx1-ubyte.gz", {0, 0, 8, 1, 255, 255, 255, 255, 7, 3});
  EXPECT_NE(error().find("impossible"), std::string::npos);
}

TEST(Shuffle, IsAPermutationThatDependsOnSeedAndEpochAlone) {
  auto order = shuffled(1000, 1, 0);
  EXPECT_EQ(order, shuffled(1000, 1, 0));
  EXPECT_NE(order, shuffled(1000, 1, 1));
  EXPECT_NE(order, shuffled(1000, 2, 0));
  std::sort(order.begin(), order.end());
  for (std::uint32_t i = 0; i < 1000; ++i) ASSERT_EQ(order[i], i);
}

TEST(FashionMnist, HasItsKnownShape) {
  const std::string directory = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(directory)) GTEST_SKIP() << "package dataset-fashion-mnist is not installed";
  const auto test = Dataset::load(directory, "t10k");
  EXPECT_EQ(test.size(), 10000u);
  EXPECT_EQ(test.pixels(), 784u);
}

}  // namespace
}  // namespace train
