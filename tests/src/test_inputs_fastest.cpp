// The deck that trains fastest against that of pull request 349, from which docs/after_record89.md derives it.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/config/schedule.hpp"
#include "tests/support/record_deck.hpp"

using namespace nanorun;

namespace {

/// recipe349.toml with the stage of steps 715 to 1146 in two, with the shares that fastest.toml gives them.
Config recipe_in_stages_of(const Config& fastest) {
  Config recipe = input_deck("recipe349");
  recipe.stage.insert(recipe.stage.begin() + 5, recipe.stage.at(5));
  for (const int i : {5, 6}) recipe.stage[i].share = fastest.stage.at(i).share;
  return recipe;
}

}  // namespace

TEST(InputsFastest, DiffersFromRecipe349AsDocumented) {
  // Of all keys with their defaults, so that it does not matter whether a deck states one.
  const Config fastest = input_deck("fastest");
  std::vector<std::string> found;
  for (const KeyChange& change : deck_changes(to_toml(recipe_in_stages_of(fastest)), fastest))
    found.push_back(change.text);
  const std::vector<std::string> documented = {R"(run.name: "recipe349" -> "fastest")",
                                               "model.qk_dims: [64, 64, 64, 128, 64, 64, 0, 64, 64, 64, 128] -> []",
                                               "model.attention_scale_narrow: 0.12 -> 0.0",
                                               "stage.0.candidates: 0 -> 10240",
                                               "stage.1.candidates: 0 -> 10240",
                                               "stage.2.candidates: 0 -> 10240",
                                               "stage.3.candidates: 0 -> 10240",
                                               "stage.4.candidates: 0 -> 10240",
                                               "stage.5.candidates: 0 -> 14336",
                                               "stage.6.candidates: 0 -> 24576",
                                               R"(optimizer.orthogonalisation: "six_maps" -> "polar_express")"};
  EXPECT_EQ(found, documented);
}

TEST(InputsFastest, HasTheStagesOfRecipe349) {
  const Config fastest = input_deck("fastest"), recipe = input_deck("recipe349");
  ASSERT_EQ(stage_count(recipe), 8);
  ASSERT_EQ(stage_count(fastest), 9);
  for (int i = 0; i < 9; ++i) {
    const auto [recipe_first, recipe_end] = stage_steps(recipe, i <= 5 ? i : i - 1);
    const auto [first, end] = stage_steps(fastest, i);
    EXPECT_EQ(first, i == 6 ? 1003 : recipe_first) << i;
    EXPECT_EQ(end, i == 5 ? 1003 : recipe_end) << i;
  }
}
