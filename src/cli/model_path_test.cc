// MODEL on the command line, over folders made for each test: the order of places, what is ambiguous, what is missing.
#include "cli/model_path.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/hub_cache.h"
#include "cli/model_name.h"

namespace kvarto {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOld = "1111111111111111111111111111111111111111";
constexpr const char* kNew = "2222222222222222222222222222222222222222";

class ModelPath : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = fs::current_path();
    std::string pattern = (fs::temp_directory_path() / "kvarto-model-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    fs::current_path(root_);
    places_ = {{"models", (root_ / "tree/models").string()}, (root_ / "hub").string()};
  }
  void TearDown() override {
    fs::current_path(before_);
    fs::remove_all(root_);
  }
  void touch(const fs::path& path) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << "x";
  }
  // A file of a snapshot: a link to a blob, as pull leaves it.
  void cache(const std::string& commit, const std::string& file) {
    const fs::path repo = "hub/models--acme--tiny";
    const std::string digest(64, file.size() % 2 ? 'a' : 'b');
    touch(repo / "blobs" / digest);
    const fs::path link = root_ / repo / "snapshots" / commit / file;
    fs::create_directories(link.parent_path());
    fs::create_symlink(root_ / repo / "blobs" / digest, link);
  }
  void set_main(const std::string& commit) {
    touch("hub/models--acme--tiny/refs/main");
    std::ofstream(root_ / "hub/models--acme--tiny/refs/main") << commit;
  }
  std::string path_of(std::string_view model) {
    const Result<ResolvedModel> found = resolve_model(model, places_);
    EXPECT_TRUE(found) << found.error().message;
    return found ? found->path : "";
  }
  // The error's message; each word must stand in it.
  std::string refused(std::string_view model, std::initializer_list<const char*> words) {
    const Result<ResolvedModel> found = resolve_model(model, places_);
    EXPECT_FALSE(found) << found->path;
    const std::string message = found ? "" : found.error().message;
    for (const char* word : words) EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return message;
  }

  fs::path before_, root_;
  ModelPlaces places_;
};

TEST_F(ModelPath, PathsComeFirst) {
  touch("acme/tiny");
  touch("smollm2");
  touch("models/smollm2-135m-q4_1.gguf");
  cache(kNew, "m.gguf");
  EXPECT_EQ(path_of("acme/tiny"), "acme/tiny");
  EXPECT_EQ(path_of("smollm2"), "smollm2");
  EXPECT_EQ(resolve_model("smollm2", places_)->how, "path");
}

TEST_F(ModelPath, FoldersHoldOneModel) {
  touch("one/README.md");
  touch("one/mmproj-m.gguf");
  touch("one/m.GGUF");
  touch("one/folder.gguf/x");
  fs::create_symlink("nowhere", root_ / "one/link.gguf");
  ASSERT_EQ(::mkfifo((root_ / "one/pipe.gguf").c_str(), 0600), 0);
  EXPECT_EQ(path_of("one"), "one/m.GGUF");
  for (const char* part : {"1", "2"}) touch(std::string("parts/m-0000") + part + "-of-00002.gguf");
  EXPECT_EQ(path_of("parts"), "parts/m-00001-of-00002.gguf");
  touch("two/a.gguf");
  touch("two/b.gguf");
  refused("two", {"several models", "a.gguf, b.gguf"});
  touch("none/model.safetensors");
  refused("none", {"none", "GGUF"});
  touch("hole/m-00002-of-00003.gguf");
  refused("hole", {"1 of its 3 parts"});
}

TEST_F(ModelPath, AliasAndModelFolders) {
  refused("smollm2", {"smollm2-135m-q4_1.gguf", "tools/fetch_models smollm2"});
  touch("tree/models/smollm2-135m-q4_1.gguf");
  EXPECT_EQ(path_of("smollm2"), (root_ / "tree/models/smollm2-135m-q4_1.gguf").string());
  touch("models/smollm2-135m-q4_1.gguf");
  EXPECT_EQ(path_of("smollm2"), "models/smollm2-135m-q4_1.gguf");
  EXPECT_EQ(resolve_model("smollm2", places_)->how, "alias smollm2 in models");
  touch("models/mine.gguf");
  touch("models/sub/inner.gguf");
  EXPECT_EQ(path_of("mine"), "models/mine.gguf");
  EXPECT_EQ(path_of("mine.gguf"), "models/mine.gguf");
  EXPECT_EQ(path_of("sub"), "models/sub/inner.gguf");
  touch("outside.gguf");
  fs::create_directories(root_ / "elsewhere");
  fs::current_path(root_ / "elsewhere");
  places_.folders = {(root_ / "models").string()};
  refused("../models/../outside", {"no such file"});
}

TEST_F(ModelPath, CacheTakesTheCommitOfMain) {
  cache(kOld, "m-Q8_0.gguf");
  cache(kNew, "m-Q8_0.gguf");
  set_main(kOld);
  EXPECT_EQ(path_of("acme/tiny"), (root_ / "hub/models--acme--tiny/snapshots" / kOld / "m-Q8_0.gguf").string());
  set_main(std::string(kNew) + "\n");
  EXPECT_EQ(path_of("acme/tiny:q8_0"), (root_ / "hub/models--acme--tiny/snapshots" / kNew / "m-Q8_0.gguf").string());
  EXPECT_EQ(resolve_model("acme/tiny", places_)->how, "Hugging Face cache, commit 22222222");
  cache(kOld, "m-Q4_K_M.gguf");  // only an older commit has it
  EXPECT_EQ(path_of("acme/tiny:Q4_K_M"),
            (root_ / "hub/models--acme--tiny/snapshots" / kOld / "m-Q4_K_M.gguf").string());
}

TEST_F(ModelPath, CacheErrorsNameWhatThereIs) {
  cache(kNew, "m-Q8_0.gguf");
  cache(kNew, "sub/m-Q4_K_M.gguf");
  set_main(kNew);
  refused("acme/tiny", {"2 models match", "m-Q8_0.gguf, sub/m-Q4_K_M.gguf"});
  refused("acme/tiny:Q6_K", {"Q6_K", "m-Q8_0.gguf", "kvarto pull acme/tiny:Q6_K"});
  fs::remove_all(root_ / "hub/models--acme--tiny/blobs");
  refused("acme/tiny:Q8_0", {"kvarto pull acme/tiny:Q8_0"});  // links to nothing
}

TEST_F(ModelPath, MissingNamesSayWhatWasTried) {
  refused("acme/other", {"acme/other", "models/", "hub", "kvarto pull acme/other:quant"});
  refused("nothing", {"nothing", "alias smollm2", "models/", "kvarto pull"});
  refused("", {"org/name:quant"});
  refused(std::string_view("a\0b", 3), {"\\x00"});
  refused("a/b/../c", {"no such file"});
}

TEST(ModelName, RepositoryAndQuant) {
  EXPECT_EQ(parse_model_name("a/b")->repo, "a/b");
  EXPECT_EQ(parse_model_name("a/b")->quant, "");
  EXPECT_EQ(parse_model_name("Org-1/Na.me_2:Q4_K_M")->repo, "Org-1/Na.me_2");
  EXPECT_EQ(parse_model_name("Org-1/Na.me_2:Q4_K_M")->quant, "Q4_K_M");
  for (const char* text :
       {"", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/b:", "a/b:c/d", "a b/c", "a/b--c", "-a/b", "a/b:c:d"}) {
    EXPECT_FALSE(parse_model_name(text)) << text;
  }
}

TEST(ModelName, ChoiceOfFiles) {
  const std::vector<std::string> paths = {"m-F16.gguf",    "m-BF16.gguf",   "m-Q4_0.gguf",       "m-Q4_0_4_4.gguf",
                                          "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "mmproj-m-F16.gguf", "m-Q4_K_M.txt"};
  const auto chosen = [&](std::string_view quant) {
    const auto files = choose_gguf(paths, quant);
    return files ? files->front() : "error: " + files.error().message;
  };
  EXPECT_EQ(chosen("f16"), "m-F16.gguf");
  EXPECT_EQ(chosen("BF16"), "m-BF16.gguf");
  EXPECT_EQ(chosen("q4_0"), "m-Q4_0.gguf");
  EXPECT_EQ(chosen("Q4_K_M"), "m-Q4_K_M.gguf");
  EXPECT_EQ(chosen("K_S"), "m-Q4_K_S.gguf");
  EXPECT_EQ(chosen("Q4_K").substr(0, 6), "error:");
  EXPECT_NE(chosen("Q4_K").find("m-Q4_K_M.gguf, m-Q4_K_S.gguf"), std::string::npos);
  EXPECT_EQ(chosen("").substr(0, 6), "error:");
}

TEST(HubCache, NamesFromAHubAreChecked) {
  EXPECT_TRUE(is_safe_path("a/b-c.gguf"));
  EXPECT_TRUE(is_safe_path("..a/b..c"));
  for (const char* path : {"", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\\b", "a\nb", "a\x7f"}) {
    EXPECT_FALSE(is_safe_path(path)) << path;
  }
  EXPECT_FALSE(is_safe_path(std::string_view("a\0b", 3)));
  EXPECT_FALSE(is_safe_path(std::string(256, 'x')));
  EXPECT_TRUE(is_commit(kOld));
  EXPECT_FALSE(is_commit(std::string(39, 'a') + "G"));
  EXPECT_FALSE(is_commit("main"));
  EXPECT_TRUE(is_digest(std::string(64, 'f')));
  EXPECT_FALSE(is_digest("../" + std::string(61, 'f')));
}

}  // namespace
}  // namespace kvarto
